"""For `init`: this machine's GPUs as platforms of type `process`, and why one is left out. Writes nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from orchestrator import nvidia
from orchestrator.config import PlatformConfig
from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import accelerator_of, several
from orchestrator.nvidia import Found, Gpu

_PCI = Path("/sys/bus/pci/devices")
_NVIDIA, _DISPLAY = "0x10de", ("0x0300", "0x0302")  # of PCI: the maker, and the classes of its GPUs
VISIBLE = "CUDA_VISIBLE_DEVICES"
MEASURE = "orchestrator doctor --measure"


@dataclass(frozen=True)
class OwnGpus:
    """`platforms`: what the config says of them. `notes`: why each is used or not, one sentence each."""

    platforms: tuple[PlatformConfig, ...]
    notes: tuple[str, ...]


def is_supported() -> bool:
    """Whether sessions can be processes here: they are found by /proc and pidfd."""
    return platform.system() == "Linux"


def of_this_machine(seen: Found, name: str, *, pci: Path = _PCI) -> OwnGpus:
    """One platform for each kind of GPU, and one for all of a kind together. `name`: that of the platform
    for processes on the CPU, which theirs begin with."""
    kinds: dict[str, list[Gpu]] = {}
    notes = []
    visible = nvidia.visible(seen.gpus, os.environ.get(VISIBLE))
    for gpu in seen.gpus:
        kind = accelerator_of(gpu.name, gpu.memory_gb)
        why = _left_out(gpu, kind, visible)
        if why:
            notes.append(f"GPU {gpu.index} ({gpu.name}) is left out: {why}")
        elif kind is not None:
            kinds.setdefault(kind, []).append(gpu)
    if not seen.gpus and (without := _without_driver(seen, pci)):
        notes.append(without)
    platforms = tuple(_platforms(kinds, name))
    notes += [
        f"{each.name}: each session gets {_what(each)} for itself, without Docker" for each in platforms
    ]
    if platforms and importlib.util.find_spec("torch") is None:
        notes.append(
            "torch is not installed beside this program: a job that imports it needs it in its Python"
        )
    return OwnGpus(platforms, tuple(notes))


def _left_out(gpu: Gpu, kind: str | None, visible: tuple[Gpu, ...]) -> str:
    if gpu.mig:
        return "it is in MIG mode; `sudo nvidia-smi -mig 0` ends that, then run init again"
    if gpu not in visible:
        return f"{VISIBLE}={os.environ.get(VISIBLE)} does not name it"
    if kind is None:
        return f"the catalogue does not know it; `{MEASURE}` prints the row for `accelerators` in the config"
    retired = catalogue[kind].retired
    return f"{kind} is retired: {retired}" if retired is not None else ""


def _platforms(kinds: dict[str, list[Gpu]], name: str) -> list[PlatformConfig]:
    found = []
    for number, (kind, gpus) in enumerate(kinds.items()):
        title = f"{name}-gpu" if number == 0 else f"{name}-{_plain(kind)}"
        found.append(PlatformConfig(title, "process", {"accelerator": kind, "gpus": "all"}))
        together = several(kind, len(gpus)) if len(gpus) > 1 else None
        if together is not None:
            options = {"accelerator": together, "gpus": "all"}
            found.append(PlatformConfig(f"{name}-{_plain(together)}", "process", options))
    return found


def _plain(kind: str) -> str:
    return kind.lower()


def _what(given: PlatformConfig) -> str:
    row = catalogue[given.options["accelerator"]]
    return f"one {row.name}" if row.devices == 1 else f"{row.devices} GPUs ({row.name})"


def _without_driver(seen: Found, pci: Path) -> str:
    """What to say if there is a GPU, but no driver that shows it."""
    for device in sorted(pci.glob("*")):
        try:
            maker, kind = ((device / file).read_text().strip() for file in ("vendor", "class"))
        except OSError:
            continue
        if maker == _NVIDIA and kind.startswith(_DISPLAY):
            return (
                f"there is an NVIDIA GPU, but {seen.trouble or 'its driver shows none'}: install its driver"
            )
    return ""
