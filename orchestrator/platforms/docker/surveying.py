"""What one engine offers now, computed from what was read before. Reads nothing itself."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.core.accelerators import Accelerator
from orchestrator.core.job import Kind
from orchestrator.core.offer import Offer, Traits, Unavailable, Until, UntilKind, until_human
from orchestrator.core.own_accelerators import NO_OWN, Own, own_named, row_named
from orchestrator.core.wording import count_text
from orchestrator.platforms.docker import gpus
from orchestrator.platforms.docker.container import Found
from orchestrator.platforms.docker.gpus import Probe
from orchestrator.platforms.docker.options import DockerOptions

CPU = "cpu"


def offers(
    name: str,
    options: DockerOptions,
    info: dict[str, Any],
    *,
    others: tuple[Found, ...],
    probe: Probe,
    own: Own = NO_OWN,
) -> tuple[Offer, ...]:
    """The engine's offers.

    `info` is its own report, `others` are the containers of other homes and platforms, and `probe` is what
    the configured GPUs reported. `own`: the accelerators of the user's config.
    """
    mine = own_named(options.accelerator, own)
    found = _offers(name, options, info, others, probe, row_named(options.accelerator, own))
    return tuple(replace(each, own=mine) for each in found)


def _offers(
    name: str,
    options: DockerOptions,
    info: dict[str, Any],
    others: tuple[Found, ...],
    probe: Probe,
    row: Accelerator | None,
) -> tuple[Offer, ...]:
    if options.accelerator == CPU or (row is not None and row.kind is Kind.CPU):
        return (_cpu(name, options, info),)
    reason = gpus.lack(info)
    if reason is not None:
        return (_gpu(name, options, 1, Unavailable(reason, until_human(*gpus.HOW_TO_ADD))),)
    devices = row.devices if row is not None else 1
    unfit = _unfit(name, options, devices, probe)
    if unfit is not None:
        return (_gpu(name, options, 1, unfit),)
    left = set(options.gpus) - (set() if options.share_gpus else gpus.held(others))
    slots = options.slots if options.share_gpus else len(left) // devices
    taken = Unavailable("its GPUs are in use by other sessions", Until(UntilKind.TIME))
    return (_gpu(name, options, max(1, slots), None if slots else taken, probe.memory_gb),)


def _unfit(name: str, options: DockerOptions, devices: int, probe: Probe) -> Unavailable | None:
    """Why the configured GPUs cannot be this accelerator."""
    named = len(set(options.gpus))
    if named < devices:
        ids = ", ".join(f"'{number}'" for number in range(devices))
        needed = count_text(devices, "GPU")
        reason = f"{options.accelerator} needs {needed}, but the config names {named or 'none'}"
        return Unavailable(reason, until_human(f"write `gpus: [{ids}]` under {name} in the config"))
    if probe.refusal is not None:
        reason = f"the engine does not provide GPU {', '.join(options.gpus)}: {probe.refusal}"
        return Unavailable(reason, until_human(*gpus.way_out(probe.refusal)))
    return None


def _cpu(name: str, options: DockerOptions, info: dict[str, Any]) -> Offer:
    memory = options.memory_gb or float(info.get("MemTotal") or 0) / 1e9 or None
    cores = int(options.cpus or info.get("NCPU") or 1)
    return Offer(
        platform=name,
        accelerator=options.accelerator,
        traits=_traits(options),
        slots=options.slots,
        memory_gb=memory,
        threads=options.threads or max(1, cores // (1 if options.cpus else options.slots)),
    )


def _gpu(
    name: str,
    options: DockerOptions,
    slots: int,
    unavailable: Unavailable | None,
    memory_gb: float | None = None,
) -> Offer:
    return Offer(
        platform=name,
        accelerator=options.accelerator,
        traits=_traits(options),
        slots=slots,
        memory_gb=memory_gb,
        threads=options.threads,
        unavailable=unavailable,
    )


def _traits(options: DockerOptions) -> Traits:
    return options.traits(
        internet=options.network != "none", custom_images=True, needs_image=options.image is None
    )
