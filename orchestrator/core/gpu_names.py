"""Which row of the catalogue a GPU is, by its driver's name for it: "NVIDIA GeForce RTX 3050 Laptop GPU".

A name is taken for a row only where nothing but maker, form factor and memory size is left over: an L40S
is no L4, an RTX 3070 Ti no RTX 3070. Pure.
"""

from __future__ import annotations

import re

from orchestrator.core.accelerators import catalogue

# What stands beside the model in the names of nvidia-smi: maker, form factor, link, generation.
_BESIDE = frozenset({
    "nvidia", "tesla", "geforce", "quadro", "grid", "laptop", "mobile", "gpu", "generation", "with", "design",
    "max", "q", "blackwell", "ada", "server", "workstation", "edition", "pcie", "nvl", "sxm", "sxm2", "sxm3",
    "sxm4", "sxm5", "hbm2", "hbm2e", "hbm3", "hbm3e",
})  # fmt: skip
_MEMORY = re.compile(r"\d+gb")
_OTHER_NAMES = {"k80": "K80half"}  # the driver shows each half of the board as a GPU of its own


def accelerator_of(name: str) -> str | None:
    """The catalogue's name of one such GPU, None where it has no row."""
    words = [word for word in re.split(r"[\s/_-]+", name.lower()) if word]
    model = "".join(word for word in words if word not in _BESIDE and not _MEMORY.fullmatch(word))
    rows = {row.lower(): row for row, found in catalogue.items() if found.arch.startswith("sm_")}
    return _OTHER_NAMES.get(model) or rows.get(model)


def several(accelerator: str, count: int) -> str | None:
    """The row of `count` such GPUs used as one accelerator, as `T4x2`; None where there is none."""
    name = accelerator if count == 1 else f"{accelerator}x{count}"
    return name if name in catalogue else None
