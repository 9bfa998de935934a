"""The keys of a training config and their checks. Must never know torch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Config:
    """What is trained and on what; how (steps, batches, precision, seed) comes from the command line.

    `source` is a folder of Python source, the running interpreter's standard library if None. `held_out`
    is a share of modules, `mask_words` and `mask_nodes` shares of words and facts to be guessed, `warmup`
    counts steps, `workers` the processes that make batches (0: the training's own).
    """

    triples: int
    roots: int
    leaves: int
    vocabulary: int
    held_out: float
    mask_words: float
    mask_nodes: float
    width: int
    layers: int
    heads: int
    learning_rate: float
    warmup: int
    weight_decay: float
    source: str | None = None
    workers: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"width: {self.width} does not divide by heads: {self.heads}")
        for key in ("held_out", "mask_words", "mask_nodes"):
            if not 0 < getattr(self, key) < 1:
                raise ValueError(f"{key}: {getattr(self, key)} is not between 0 and 1")


def read(path: Path) -> Config:
    """Raises ValueError that names the file and every key at fault."""
    with path.open(encoding="utf-8") as file:
        given = yaml.safe_load(file)
    if not isinstance(given, dict):
        raise ValueError(f"{path}: expected keys and values")
    known = {field.name for field in fields(Config)}
    if unknown := sorted(given.keys() - known):
        raise ValueError(f"{path}: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    try:
        return Config(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
