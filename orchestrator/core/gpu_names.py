"""Finds the catalogue's row for a GPU by the driver's name: "NVIDIA GeForce RTX 3050 Laptop GPU".

A name matches a row only if the rest of it is maker, form factor and memory size: an L40S is not an L4, and
an RTX 3070 Ti is not an RTX 3070. Pure.
"""

from __future__ import annotations

import re

from orchestrator.core.accelerators import catalogue

# Words around the model in nvidia-smi's names: maker, form factor, link, generation.
_BESIDE = frozenset({
    "nvidia", "tesla", "geforce", "quadro", "grid", "laptop", "mobile", "gpu", "generation", "with", "design",
    "max", "q", "blackwell", "ada", "server", "workstation", "edition", "pcie", "nvl", "sxm", "sxm2", "sxm3",
    "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e",
})  # fmt: skip
_MEMORY = re.compile(r"\d+gb")
_OTHER_NAMES = {"k80": "K80half"}  # the driver shows each half of the board as one GPU


def accelerator_of(name: str) -> str | None:
    """The catalogue's name of one such GPU; None if it has no row."""
    words = [word for word in re.split(r"[\s/_-]+", name.lower()) if word]
    model = "".join(word for word in words if word not in _BESIDE and not _MEMORY.fullmatch(word))
    rows = {row.lower(): row for row, found in catalogue.items() if found.arch.startswith("sm_")}
    return _OTHER_NAMES.get(model) or rows.get(model)


def several(accelerator: str, count: int) -> str | None:
    """The row of `count` such GPUs used as one accelerator, such as `T4x2`; None if there is no such row."""
    name = accelerator if count == 1 else f"{accelerator}x{count}"
    return name if name in catalogue else None
