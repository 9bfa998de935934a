"""Checks of a Docker engine for `doctor`: address, size, disk, limits, GPUs.

Disk space is read from this machine's file system if the engine runs here, and otherwise not checked.
The engine's own report (`docker system df`) walks every layer and volume, which can take minutes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import docker

from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import accelerator_of, several
from orchestrator.platforms.docker import container as containers
from orchestrator.platforms.docker import gpus
from orchestrator.platforms.docker.gpus import Gpu
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.docker.surveying import CPU
from orchestrator.platforms.platform import Finding, Health

DISK_GB_MIN = 5.0  # an image with a CUDA build of torch, and a checkpoint or two
_DELEGATE = "/etc/systemd/system/user@.service.d/delegate.conf"
_ADVICE_ROOTLESS = (
    f"printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee {_DELEGATE}\n"
    "sudo systemctl daemon-reload, then log in again"
)
_ADVICE_KERNEL = "give the engine's kernel these cgroup controllers: cpu, memory, pids"


def findings(
    client: docker.DockerClient, options: DockerOptions, info: dict[str, Any], *, place: str, home: str
) -> tuple[Finding, ...]:
    """`info` is the engine's own report, `place` its address. Why an offer is unavailable: see the offer."""
    return (
        _engine(info, place),
        *_disk(info),
        *limits(options, info),
        *_gpus(client, options, info, home),
    )


def _engine(info: dict[str, Any], place: str) -> Finding:
    text = f"Docker {info.get('ServerVersion')} at {place}: {info.get('OperatingSystem')}"
    text += (
        f", {info.get('Architecture')}, {info.get('NCPU')} CPUs, {(info.get('MemTotal') or 0) / 1e9:.1f} GB"
    )
    open_to_all = [each for each in info.get("Warnings") or () if "without encryption" in each]
    if open_to_all:
        told = f"{text}; anyone who reaches its port has root rights there: {open_to_all[0]}"
        return Finding("engine", Health.WARNING, told, "make it require TLS: dockerd --tlsverify")
    return Finding("engine", Health.OK, text + (", rootless" if _rootless(info) else ""))


def _rootless(info: dict[str, Any]) -> bool:
    return any("rootless" in each for each in info.get("SecurityOptions") or ())


def _disk(info: dict[str, Any]) -> Iterator[Finding]:
    """Compares host names: this machine may have a folder of that name even if the engine is elsewhere."""
    root = Path(str(info.get("DockerRootDir") or ""))
    if info.get("Name") != os.uname().nodename or not root.is_dir():
        return
    try:
        free = shutil.disk_usage(root).free / 1e9
    except OSError:
        return
    health = Health.OK if free >= DISK_GB_MIN else Health.WARNING
    advice = "" if health is Health.OK else "free some space: `docker system prune`"
    yield Finding("disk", health, f"{free:.1f} GB free in {root}", advice)


def limits(options: DockerOptions, info: dict[str, Any]) -> Iterator[Finding]:
    """Limits in the config that the engine cannot enforce. It drops some silently and refuses others."""
    advice = _ADVICE_ROOTLESS if _rootless(info) else _ADVICE_KERNEL
    dropped = [f"pids ({options.pids})"] if info.get("PidsLimit") is False else []
    if options.memory_gb is not None and info.get("MemoryLimit") is False:
        dropped.append(f"memory_gb ({options.memory_gb:g})")
    if dropped:
        text = f"the engine cannot limit containers, so it ignores: {', '.join(dropped)}"
        yield Finding("limits", Health.WARNING, text, advice)
    if options.cpus is not None and info.get("CpuCfsQuota") is False:
        text = f"the engine cannot limit CPUs and refuses containers with cpus ({options.cpus:g})"
        yield Finding("limits", Health.MISSING, text, f"{advice}\nor remove `cpus` from the config")


# --- GPUs -------------------------------------------------------------------------------------------------


def _gpus(
    client: docker.DockerClient, options: DockerOptions, info: dict[str, Any], home: str
) -> Iterator[Finding]:
    lack = gpus.lack(info)
    if lack is not None:
        if options.accelerator == CPU:
            yield Finding("gpus", Health.OK, f"none for containers: {lack}", "\n".join(gpus.HOW_TO_ADD))
        return
    probe = gpus.probe(client, options, gpus.ALL, cdi=gpus.by_cdi(info), home=home)
    if probe.refusal is not None:
        if options.accelerator == CPU:
            advice = "\n".join(gpus.way_out(probe.refusal))
            yield Finding("gpus", Health.OK, f"none for containers: {probe.refusal}", advice)
        return
    if not probe.found:
        ids = f": {', '.join(gpus.cdi_ids(info))}" if gpus.cdi_ids(info) else ""
        yield Finding(
            "gpus", Health.OK, f"available to containers{ids}; models unknown until the engine has an image"
        )
        return
    holders = {gpu: each.session for each in containers.listed(client) for gpu in gpus.held([each])}
    text = "; ".join(_gpu_text(each, holders) for each in probe.found)
    yield _judged(options, probe.found, text)


def _gpu_text(gpu: Gpu, holders: dict[str, str]) -> str:
    session = holders.get(gpu.index) or holders.get(gpu.uuid)
    return f"{gpu.index} {gpu.name}, {gpu.memory_gb:.1f} GB" + (f", in use by {session}" if session else "")


def _judged(options: DockerOptions, found: tuple[Gpu, ...], text: str) -> Finding:
    if options.accelerator == CPU:
        rows = {each.index: accelerator_of(each.name, each.memory_gb) for each in found}
        entry = next(((row, index) for index, row in rows.items() if row), None)
        advice = f"a platform with accelerator: {entry[0]}, gpus: ['{entry[1]}']" if entry else ""
        return Finding("gpus", Health.OK, f"{text}; this platform uses none", advice)
    other = sorted(_others(options, found))
    if other:
        said = f"{text}; the config says {options.accelerator}"
        return Finding("gpus", Health.WARNING, said, f"set its accelerator to {' or '.join(other)}")
    return Finding("gpus", Health.OK, text)


def _others(options: DockerOptions, found: Iterable[Gpu]) -> set[str]:
    """The catalogue rows of the configured GPUs that differ from the configured accelerator."""
    row = catalogue.get(options.accelerator)
    count = row.devices if row is not None else 1
    used = [each for each in found if {each.index, each.uuid} & set(options.gpus)]
    singles = (accelerator_of(each.name, each.memory_gb) for each in used)
    rows = {several(single, count) for single in singles if single}
    return {each for each in rows if each is not None and each != options.accelerator}
