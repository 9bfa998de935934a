"""Pages: rows of text with hidden words and leaves, as arrays of one length.

Decides the layout of a batch. Must never know how its facts were drawn, or steps or models.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphmer.corpus import ANCHOR, HEAD, PASSAGE, RELATION, SPAN, Corpus
from graphmer.tokens import MASK, PAD

IGNORED = -100  # nothing to guess here
NO_LEAF, TRUE, FALSE, HIDDEN = range(4)  # states of a leaf
QUERIES = 3  # maximum of hidden leaves in a row
_SPARE = 8  # extra word slots, because the last word may exceed the share

Ids = NDArray[np.int64]
Batch = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Leaves:
    """Leaves (n,) by row: fact numbers, slots of passages on the page, rows, shown tails, and states."""

    facts: Ids
    slots: Ids
    rows: Ids
    tails: Ids
    states: Ids


class Page:
    """Rows with M passages side by side. `batch` is filled step by step to what `plan.Plan` describes."""

    def __init__(self, corpus: Corpus, rows: Sequence[Sequence[int]], length: int, leaves: int) -> None:
        self.corpus = corpus
        self.length, self.leaves = length, leaves
        self.room = length - leaves
        counts = np.array([len(row) for row in rows])
        self.rows = np.repeat(np.arange(len(rows)), counts)  # (M,), like those below
        self.passages = np.array([passage for row in rows for passage in row], dtype=np.int64)
        self.sizes = np.minimum(np.diff(corpus.starts)[self.passages], self.room)
        before = np.cumsum(self.sizes) - self.sizes
        self.columns = before - before[np.cumsum(counts) - counts][self.rows]
        self.segments = ranks(self.rows) + 1

        self.slots = np.repeat(np.arange(len(self.passages)), self.sizes)  # for each token on the page
        places = ranges(np.zeros_like(self.sizes), self.sizes)
        self.source = corpus.starts[self.passages][self.slots] + places
        self.cells = (self.rows * length + self.columns)[self.slots] + places
        self.batch: Batch = {name: np.zeros((len(rows), length), dtype=np.int64) for name in _COLUMNS}
        self.batch |= {name: np.zeros((len(rows), leaves), dtype=np.int64) for name in _LEAVES}
        self.batch["leaf_span"] += 1
        self.batch["tokens"].fill(PAD)
        self.batch["tokens"].reshape(-1)[self.cells] = corpus.tokens[self.source]
        self.batch["segments"].reshape(-1)[self.cells] = self.segments[self.slots]
        self.batch["places"].reshape(-1)[self.cells] = places

    def hang(self, leaves: Leaves) -> None:
        """Shows the leaves in the columns after the text, at most as many in a row as fit."""
        facts = self.corpus.facts[leaves.facts].astype(np.int64)
        sizes = self.sizes[leaves.slots]
        cut = facts[:, ANCHOR] >= sizes  # the row is shorter than the passage
        anchors = np.where(cut, 0, facts[:, ANCHOR])
        spans = np.where(cut, 0, np.minimum(facts[:, SPAN], sizes - anchors))
        columns = ranks(leaves.rows)
        at = leaves.rows, columns
        self.batch["leaf_tail"][at] = np.where(leaves.states == HIDDEN, 0, leaves.tails)
        self.batch["leaf_head"][at] = facts[:, HEAD]
        self.batch["leaf_anchor"][at] = self.columns[leaves.slots] + anchors
        self.batch["leaf_span"][at] = spans
        self.batch["leaf_state"][at] = leaves.states
        at = leaves.rows, self.room + columns
        self.batch["segments"][at] = self.segments[leaves.slots]
        self.batch["places"][at] = anchors
        self.batch["relations"][at] = facts[:, RELATION] + 1


_COLUMNS = ("tokens", "segments", "places", "relations")
_LEAVES = ("leaf_tail", "leaf_head", "leaf_anchor", "leaf_span", "leaf_state")


class Reader:
    """Lays out passages on pages, and knows which facts they state."""

    def __init__(self, corpus: Corpus, leaves: int) -> None:
        self.corpus = corpus
        self.leaves = leaves
        self._first = np.searchsorted(corpus.facts[:, PASSAGE], np.arange(len(corpus.held_out) + 1))

    def page(self, rows: Sequence[Sequence[int]], length: int) -> Page:
        """Lays each row's passages side by side, in `length` columns including those of the leaves."""
        return Page(self.corpus, rows, length, self.leaves)

    def facts_of(self, passages: Ids) -> tuple[Ids, Ids]:
        """The numbers of all facts that the passages state, and the index of each fact's passage here."""
        counts = np.diff(self._first)[passages]
        return ranges(self._first[passages], counts), np.repeat(np.arange(len(passages)), counts)


def mask_words(page: Page, share: float, draws: np.random.Generator) -> None:
    """Hides whole words until `share` of each row's tokens are hidden.

    Names have twice the weight of other words, because the graph is about names. The order is by u^(1/weight)
    (Efraimidis and Spirakis 2006). Adds `word_places` and `word_targets` (rows, ⌈share · room⌉ + 8).
    """
    words = page.corpus.words[page.source]
    begins = np.ones(len(words), dtype=np.bool_)
    begins[1:] = (words[1:] != words[:-1]) | (page.slots[1:] != page.slots[:-1])
    firsts = np.flatnonzero(begins)
    sizes = np.diff(firsts, append=len(words))
    rows = page.rows[page.slots[firsts]]
    keys = draws.random(len(firsts))
    keys = np.where(page.corpus.identifiers[page.source[firsts]], np.sqrt(keys), keys)  # twice the weight
    order = np.argsort(rows + (1 - keys), kind="stable")
    firsts, sizes, rows = firsts[order], sizes[order], rows[order]
    count = len(page.batch["tokens"])
    slots = word_slots(page.room, share)
    budget = share * np.bincount(page.rows, weights=page.sizes, minlength=count)
    before = np.cumsum(sizes) - sizes
    before -= before[np.searchsorted(rows, np.arange(count))][rows]
    taken = (before < budget[rows]) & (before + sizes <= slots)

    cells = np.sort(page.cells[ranges(firsts[taken], sizes[taken])])
    rows, columns = np.divmod(cells, page.length)
    at = rows, ranks(rows)
    page.batch["word_places"] = np.zeros((count, slots), dtype=np.int64)
    page.batch["word_targets"] = np.full((count, slots), IGNORED, dtype=np.int64)
    page.batch["word_places"][at] = columns
    page.batch["word_targets"][at] = page.batch["tokens"].reshape(-1)[cells]
    page.batch["tokens"].reshape(-1)[cells] = MASK


def word_slots(room: int, share: float) -> int:
    """Columns of `word_places` for rows with this many columns of text."""
    return math.ceil(share * room) + _SPARE


def ranges(firsts: Ids, sizes: Ids) -> Ids:
    """For each in turn: first, first + 1, …, `size` numbers."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(firsts - ends + sizes, sizes)


def ranks(groups: NDArray[Any]) -> Ids:
    """The number of equal neighbours directly before each element: 0, 1, 2, … in every run."""
    places = np.arange(len(groups))
    begins = np.ones(len(groups), dtype=np.bool_)
    begins[1:] = groups[1:] != groups[:-1]
    return places - np.maximum.accumulate(np.where(begins, places, 0))
