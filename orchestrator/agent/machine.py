"""What the agent reads about the machine: what a bitwise resume depends on, and the out-of-memory kills.

Any of it may be missing on some machine. A missing value is empty, never an error.
"""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.order import Order
from orchestrator.interpreters import Interpreter

_VERSION_BYTES_MAX = 100  # it goes into every manifest
_VECTOR = re.compile(r"sse\w*|ssse3|avx\w*|fma\w*|f16c|amx\w*|bmi\d|asimd\w*|sve\w*|neon")


def fingerprint(order: Order, python_path: str = "", python: Interpreter | None = None) -> dict[str, str]:
    """What must be equal for a bitwise resume (docs/training-contract.md#what-resume-promises).

    The versions of packages come from their metadata, without importing them. `python_path` is the command's
    PYTHONPATH, whose packages it finds first. `python` runs the command; None: ours does.
    """
    folders = [*filter(None, python_path.split(":")), *(sys.path if python is None else python.folders)]
    return {
        "accelerator": order.accelerator,
        "devices": str(order.devices),
        "micro_batch": str(order.micro_batch),
        "precision": order.precision.value,
        "threads": "" if order.threads is None else str(order.threads),
        "python": platform.python_version() if python is None else python.version_text,
        "torch": _version("torch", folders),
        "numpy": _version("numpy", folders),
        "instruction_set": instruction_set(_read(Path("/proc/cpuinfo"))),
    }


def instruction_set(cpuinfo: str) -> str:
    """The machine's architecture, the processor's vendor (docs/decisions/012), and the sorted flags of
    /proc/cpuinfo that decide which arithmetic kernels run."""
    match = re.search(r"^(?:flags|Features)\s*:(.*)$", cpuinfo, re.MULTILINE)
    flags = sorted(flag for flag in set(match[1].split()) if _VECTOR.fullmatch(flag)) if match else []
    maker = re.search(r"^(?:vendor_id|CPU implementer)\s*:\s*(\S+)$", cpuinfo, re.MULTILINE)
    return " ".join([platform.machine(), *([maker[1]] if maker else []), *flags])


def oom_kills() -> int:
    """How many processes of this control group the kernel has ever killed because memory ran out; where
    groups are not counted, of the whole machine."""
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            counted = ("/sys/fs/cgroup", "memory.events")
        elif controllers == "memory":
            counted = ("/sys/fs/cgroup/memory", "memory.oom_control")
        else:
            continue
        mount, name = counted
        for folder in (Path(mount, path.lstrip("/")), Path(mount)):
            if (found := _oom_kills(folder / name)) is not None:
                return found
    return _oom_kills(Path("/proc/vmstat")) or 0


def _oom_kills(path: Path) -> int | None:
    match = re.search(r"^oom_kill (\d+)$", _read(path), re.MULTILINE)
    return None if match is None else int(match[1])


def _version(package: str, folders: list[str]) -> str:
    """The version that an import finds first; empty if there is none."""
    try:
        found = next(iter(metadata.distributions(name=package, path=folders)), None)
        version = None if found is None else found.version
    except (OSError, ValueError, KeyError):  # its metadata is damaged
        version = None
    return bounds.text(version or "", _VERSION_BYTES_MAX)


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
