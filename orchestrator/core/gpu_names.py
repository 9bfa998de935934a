"""Finds the catalogue's row for a GPU by the driver's name: "NVIDIA GeForce RTX 3050 Laptop GPU".

A name matches a row only if the rest of it is maker, form factor and memory size: an L40S is not an L4, and
an RTX 3070 Ti is not an RTX 3070. Where a GPU has rows of several memory sizes, the memory decides. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from orchestrator.core.accelerators import Accelerator, catalogue, split

# Words around the model in nvidia-smi's names: maker, form factor, link, generation.
_BESIDE = frozenset({
    "nvidia", "tesla", "geforce", "grid", "mobile", "gpu", "generation", "with", "design", "max", "q",
    "blackwell", "server", "workstation", "edition", "sxm", "sxm2", "sxm3", "sxm4", "sxm5", "hbm2", "hbm2e",
    "hbm3", "hbm3e",
})  # fmt: skip
_LINKS = frozenset({"pcie", "nvl"})  # a row may be for one of them only
_LAPTOP = "laptop"
_MEMORY = re.compile(r"(\d+)gb?")
_SIZED = re.compile(r"(.+)-\d+gb")
_OTHER_NAMES = {"k80": "k80half"}  # the driver shows each half of the board as one GPU
_NAMED_BY_HOST_MEMORY = "gh200"  # "NVIDIA GH200 480GB": the memory of its CPU
_GIB_PER_GB = 1e9 / 1024**3
_TOLERANCE = 0.12  # error correction and the driver keep some


def accelerator_of(name: str, memory_gb: float | None = None) -> str | None:
    """The catalogue's name of one such GPU; None if it has no row. `memory_gb`: as nvidia-smi says, in units
    of 1e9 bytes; without it, a GPU of several sizes is taken for the usual one."""
    groups, size = _read(name)
    if size is None and memory_gb is not None:
        size = memory_gb * _GIB_PER_GB
    for rows in groups:
        if size is None:
            return rows[0].name
        nearest = min(rows, key=lambda row: abs(row.memory_gb - (size or 0.0)))
        if abs(nearest.memory_gb - size) <= _TOLERANCE * nearest.memory_gb:
            return nearest.name
    return None


def may_be(name: str, row: Accelerator) -> bool:
    """Whether a device of this name can be one of this accelerator. Of its memory, only what the name says is
    looked at; more than the accelerator's is enough."""
    if row.gpu_names:
        return name in row.gpu_names
    parts = split(row.name)
    single = row.name if row.devices == 1 or parts is None else parts[0]
    groups, size = _read(name)
    rows = [each for group in groups for each in group if each.name == single]
    return any(size is None or size >= (1 - _TOLERANCE) * each.memory_gb for each in rows)


def several(accelerator: str, count: int) -> str | None:
    """The row of `count` such GPUs used as one accelerator, such as `T4x2`; None if there is no such row."""
    name = accelerator if count == 1 else f"{accelerator}x{count}"
    return name if name in catalogue else None


def _read(name: str) -> tuple[list[list[Accelerator]], float | None]:
    """The rows that it may be, the best first, grouped by model; and the memory that it says."""
    words = [word for word in re.split(r"[\s/_-]+", name.lower()) if word]
    if "quadro" in words and "rtx" not in words:
        return [], None
    links = [word for word in words if word in _LINKS]
    sizes = [float(match[1]) for word in words if (match := _MEMORY.fullmatch(word))]
    aside = _BESIDE | _LINKS | {_LAPTOP}
    model = "".join(word for word in words if word not in aside and not _MEMORY.fullmatch(word))
    model = _OTHER_NAMES.get(model, model)
    keys = [
        *(f"{model}{_LAPTOP}" for _ in words if _LAPTOP in words),
        *(model + each for each in links),
        model,
    ]
    groups = [list(rows) for key in dict.fromkeys(keys) if (rows := _models().get(key))]
    known = sizes and model != _NAMED_BY_HOST_MEMORY
    return groups, sizes[0] if known else None


@cache
def _models() -> Mapping[str, tuple[Accelerator, ...]]:
    """The single GPUs of the catalogue by their name without a memory size; the plain name comes first."""
    found: dict[str, list[Accelerator]] = {}
    for name, row in catalogue.items():
        if row.arch.startswith("sm_") and row.devices == 1:
            match = _SIZED.fullmatch(name.lower())
            found.setdefault(match[1] if match else name.lower(), []).insert(len(name) if match else 0, row)
    return {model: tuple(rows) for model, rows in found.items()}
