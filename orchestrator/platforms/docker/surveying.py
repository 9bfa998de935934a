"""What one engine offers now. Changes nothing on it, but for a moment's container that asks nvidia-smi."""

from __future__ import annotations

from typing import Any

from orchestrator.core.accelerators import catalogue
from orchestrator.core.offer import Offer, Traits, Unavailable, Uplink, until_human
from orchestrator.platforms.docker import gpus
from orchestrator.platforms.docker.container import Found
from orchestrator.platforms.docker.options import DockerOptions

CPU = "cpu"


def offers(
    name: str,
    options: DockerOptions,
    info: dict[str, Any],
    *,
    foreign: tuple[Found, ...],
    gpu_memory_gb: float | None,
) -> tuple[Offer, ...]:
    """`info` is the engine's own; `foreign` are containers of other homes; `gpu_memory_gb` where known."""
    if options.accelerator == CPU:
        return (_cpu(name, options, info),)
    reason = gpus.lack(info)
    if reason is None and not options.gpus:
        reason = f"the config names no `gpus` for {options.accelerator}"
        return (_gpu(name, options, gpu_memory_gb, 1, Unavailable(reason, until_human("gpus: ['0']"))),)
    if reason is not None:
        return (_gpu(name, options, gpu_memory_gb, 1, Unavailable(reason, until_human(*gpus.HOW_TO_ADD))),)
    row = catalogue.get(options.accelerator)
    devices = row.devices if row is not None else 1
    left = set(options.gpus) - (set() if options.share_gpus else gpus.held(foreign))
    slots = options.slots if options.share_gpus else len(left) // devices
    taken = Unavailable("other orchestrators' sessions hold its GPUs", until_human("wait, or stop them"))
    return (_gpu(name, options, gpu_memory_gb, max(1, slots), None if slots else taken),)


def _cpu(name: str, options: DockerOptions, info: dict[str, Any]) -> Offer:
    memory = options.memory_gb or float(info.get("MemTotal") or 0) / 1e9 or None
    cores = int(options.cpus or info.get("NCPU") or 1)
    return Offer(
        platform=name,
        accelerator=CPU,
        traits=_traits(options),
        slots=options.slots,
        memory_gb=memory,
        threads=options.threads or max(1, cores // (1 if options.cpus else options.slots)),
    )


def _gpu(
    name: str, options: DockerOptions, memory_gb: float | None, slots: int, unavailable: Unavailable | None
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
    return Traits(
        session_seconds=options.session_seconds,
        wall_margin_seconds=options.wall_margin_seconds,
        slack_seconds=options.slack_seconds,
        uplink=Uplink.SHARED,
        durable_mid_run=True,
        visibility_seconds=options.visibility_seconds,
        poll_seconds=options.poll_seconds,
        setup_seconds=options.setup_seconds,
        custom_images=True,
        needs_image=options.image is None,
        owned=True,
        metered=False,
        internet=options.network != "none",
    )
