"""A small corpus of real source and its batches, for GraphMER's tests."""

from __future__ import annotations

import shutil
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from graphmer import graph
from graphmer.config import Config, from_plain
from graphmer.corpus import Corpus
from graphmer.model import Encoder
from graphmer.objectives import Constraints, Loss
from graphmer.plan import Plan

PACKAGES = ("json", "email", "logging", "concurrent", "xml", "urllib", "http")
SMALL: dict[str, dict[str, Any]] = {
    "data": {"vocabulary": 1500, "held_out": 0.25, "curriculum": {0: 64, 40: 96}, "leaves": 6, "workers": 0},
    "model": {"width": 48, "layers": 2, "heads": 2, "feed": 128},
    "optimizer": {"learning_rate": 2e-3, "warmup": 10},
    "evaluation": {"every": 50, "facts": 100, "report": False},
}


def copied(folder: Path, packages: Sequence[str] = PACKAGES) -> Path:
    """A few packages of the standard library."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in packages:
        shutil.copytree(library / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def small() -> Config:
    return from_plain(SMALL)


def corpus(source: Path) -> Corpus:
    data = small().data
    return Corpus.build(
        graph.build([source]), vocabulary=data.vocabulary, passage_tokens=86, held_out=data.held_out
    )


def plan(made: Corpus, global_batch: int = 16, seed: int = 7) -> Plan:
    data = small().data
    return Plan(made, seed=seed, global_batch=global_batch, group=8, phases=data.phases, leaves=data.leaves)


def batch(made: Corpus, step: int = 1, global_batch: int = 16) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in plan(made, global_batch)[step].items()}


class Subject:
    """An encoder, its losses and a batch."""

    def __init__(self, made: Corpus, step: int = 1) -> None:
        torch.manual_seed(0)
        config = small()
        self.encoder = Encoder(config.model, made.vocabulary, len(made.relations))
        self.entities = torch.from_numpy(made.entity_tokens).long()
        self.loss = Loss(config.objectives, self.entities, Constraints.of(made.relations))
        self.batch = batch(made, step)

    def hidden(self, **changed: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.encoder(self.batch | changed, self.entities)
        return hidden
