"""Batches: every one a function of (seed, step), whoever makes it and after however many resumes.

Order and masks come from counters, not from generators that advance (facts/training.md §0.4, §3). Must
never know the model, nor how a batch is divided into micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphmer.chains import MASK, PAD, UNKNOWN, Chain

IGNORED = -100  # no guess is asked for here
_ORDER, _MASKS, _HELD_OUT = range(3)  # independent streams of random numbers

Batch = dict[str, NDArray[np.int64]]


def _random(seed: int, stream: int, index: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, 0, index]))


@dataclass(frozen=True)
class Masks:
    """The shares of words and of nodes to be guessed."""

    words: float
    nodes: float


class Table:
    """Chains as rows: `roots` columns of words, then `leaves` columns of tails, padded."""

    def __init__(self, chains: Sequence[Chain], roots: int, leaves: int) -> None:
        shape = (len(chains), roots + leaves)
        self.roots = roots
        self.words = np.full(shape, PAD, dtype=np.int64)
        self.places = np.zeros(shape, dtype=np.int64)  # of a leaf: its root
        self.relations = np.zeros(shape, dtype=np.int64)  # 0: no leaf
        for row, chain in enumerate(chains):
            self.words[row, : len(chain.roots)] = chain.roots
            self.places[row, :roots] = np.arange(roots)
            for column, (root, relation, tail) in enumerate(chain.leaves, start=roots):
                self.words[row, column] = tail
                self.places[row, column] = root
                self.relations[row, column] = relation + 1

    def __len__(self) -> int:
        return len(self.words)

    def masked(self, rows: NDArray[np.int64], masks: Masks, random: np.random.Generator) -> Batch:
        """The rows with some words and at least one known node replaced by MASK.

        `words`, `places`, `relations`, `word_targets`, `node_targets`: each (rows, roots + leaves).
        """
        words = self.words[rows]
        draw = random.random(words.shape)
        draw[(words == PAD) | (words == UNKNOWN)] = 1.0
        chosen = draw < masks.words
        chosen[:, self.roots :] = draw[:, self.roots :] < np.maximum(
            masks.nodes, draw[:, self.roots :].min(axis=1, keepdims=True) + 1e-12
        )
        chosen &= draw < 1.0
        targets = np.where(chosen, words, IGNORED)
        word_targets, node_targets = targets.copy(), targets
        word_targets[:, self.roots :] = IGNORED
        node_targets[:, : self.roots] = IGNORED
        return {
            "words": np.where(chosen, MASK, words),
            "places": self.places[rows],
            "relations": self.relations[rows],
            "word_targets": word_targets,
            "node_targets": node_targets,
        }


class Plan:
    """The training's batches, indexed by step (from 1); a map-style dataset for torch's DataLoader.

    Samples are numbered through all epochs, so a batch may end one epoch and begin the next.
    """

    def __init__(self, table: Table, seed: int, global_batch: int, masks: Masks) -> None:
        self.table = table
        self.seed = seed
        self.global_batch = global_batch
        self.masks = masks

    def __getitem__(self, step: int) -> Batch:
        first = (step - 1) * self.global_batch
        numbers = np.arange(first, first + self.global_batch)
        epochs, places = np.divmod(numbers, len(self.table))
        rows = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            order = _random(self.seed, _ORDER, int(epoch)).permutation(len(self.table))
            rows[epochs == epoch] = order[places[epochs == epoch]]
        return self.table.masked(rows, self.masks, _random(self.seed, _MASKS, step))


def held_out(table: Table, size: int, masks: Masks) -> list[Batch]:
    """All rows in batches, masked the same way whatever the training's seed."""
    starts = range(0, len(table), size)
    every = np.arange(len(table))
    return [table.masked(every[i : i + size], masks, _random(0, _HELD_OUT, i)) for i in starts]
