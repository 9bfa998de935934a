"""Packs passages into rows, and rows into buckets of one length, and decides which rows a step takes.

The order of rows through all epochs and phases is a function of (seed, step). Must never know more of a row
than its lengths, or masks or models.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from graphmer.corpus import Corpus

BUCKET = 64  # row lengths are rounded up to multiples of this
_ORDER, _TURNS = 1, 2  # streams of random numbers; plan has the others

Phases = Sequence[tuple[int, int]]  # (finished steps, length) in order, from (0, …)


def random(seed: int, stream: int, index: int, part: int = 0) -> np.random.Generator:
    """A generator for this position only, without history (docs/references/training.md#exact-resume)."""
    return np.random.Generator(np.random.Philox(key=[seed, stream], counter=[0, 0, part, index]))


class Rows:
    """The passages of one side packed into rows of at most `length` − `leaves` tokens.

    Best fit, longest first. It is deterministic, and each passage is in exactly one row. A passage longer
    than a row is cut.
    """

    def __init__(
        self, corpus: Corpus, length: int, leaves: int, *, packed: bool = True, held_out: bool = False
    ) -> None:
        """Raises ValueError if this side has no passage, or if a row has no room for a token."""
        self.length = length
        self.room = length - leaves
        if self.room < 1:
            raise ValueError(f"length: {length} has no room for text besides {leaves} leaves")
        passages = np.flatnonzero(corpus.held_out == held_out)
        if not len(passages):
            raise ValueError(f"no passage is {'held out' if held_out else 'left to train on'}")
        sizes = np.minimum(np.diff(corpus.starts)[passages], self.room)
        rows = best_fit(sizes, self.room) if packed else [[i] for i in range(len(passages))]
        self.starts = np.cumsum([0, *map(len, rows)])
        members = np.concatenate([np.array(row) for row in rows])
        self.passages = passages[members]
        self.filled = np.add.reduceat(sizes[members], self.starts[:-1])

    def __len__(self) -> int:
        return len(self.filled)

    def passages_of(self, row: int) -> tuple[int, ...]:
        """The numbers of the row's passages, in their order."""
        return tuple(self.passages[self.starts[row] : self.starts[row + 1]].tolist())

    def buckets(self, least: int) -> dict[int, NDArray[np.int64]]:
        """Rows by the length that they are padded to, shortest first. No bucket has fewer than `least` rows.

        A bucket with fewer rows is merged into the next longer one. If the longest has too few, shorter ones
        are merged into it.
        """
        lengths = np.minimum(-(-(self.filled + self.length - self.room) // BUCKET) * BUCKET, self.length)
        buckets: dict[int, list[int]] = {}
        waiting: list[int] = []
        for length in np.unique(lengths).tolist():
            waiting += np.flatnonzero(lengths == length).tolist()
            if len(waiting) >= least:
                buckets[length], waiting = waiting, []
        while waiting and buckets and len(waiting) < least:
            waiting += buckets.pop(max(buckets))
        if waiting:
            buckets[int(lengths.max())] = waiting
        return {length: np.array(sorted(rows)) for length, rows in sorted(buckets.items())}


def best_fit(sizes: NDArray[np.int64], room: int) -> list[list[int]]:
    """Packs indices into bins of at most `room`: longest first, each into the fullest bin
    with enough room."""
    bins: list[list[int]] = []
    by_room: list[list[int]] = [[] for _ in range(room + 1)]
    open_rooms = 0  # bit i: a bin with room for exactly i
    for index in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[index])
        fitting = open_rooms >> size
        if fitting:
            left = size + (fitting & -fitting).bit_length() - 1
            number = by_room[left].pop()
            if not by_room[left]:
                open_rooms &= ~(1 << left)
        else:
            left, number = room, len(bins)
            bins.append([])
        bins[number].append(index)
        if left > size:
            by_room[left - size].append(number)
            open_rooms |= 1 << (left - size)
    return bins


class Timetable:
    """Decides which rows a step takes, all of one padded length.

    Within a phase, buckets take turns in proportion to their rows. Within a bucket, rows are numbered through
    all epochs, each in another order, so a batch may end one epoch and begin the next.
    """

    def __init__(self, rows: Sequence[Rows], phases: Phases, seed: int, global_batch: int) -> None:
        """`rows` has one entry per phase."""
        self.phases = tuple(phases)
        self.seed = seed
        self.global_batch = global_batch
        self._buckets = [each.buckets(global_batch) for each in rows]
        self._turns = [
            np.repeat(
                np.arange(len(buckets)), [max(1, round(len(b) / global_batch)) for b in buckets.values()]
            )
            for buckets in self._buckets
        ]

    def rows(self, step: int) -> tuple[int, int, NDArray[np.int64]]:
        """The phase, the padded length and the row numbers (global_batch,) of a step, counted from 1."""
        if step < 1:
            raise IndexError(f"steps count from 1, not {step}")
        phase = max(number for number, (done, _) in enumerate(self.phases) if done < step)
        cycle, place = divmod(step - 1 - self.phases[phase][0], len(self._turns[phase]))
        turns = random(self.seed, _TURNS, cycle, phase).permutation(self._turns[phase])
        bucket = int(turns[place])
        batch = cycle * np.count_nonzero(turns == bucket) + np.count_nonzero(turns[:place] == bucket)
        length, rows = list(self._buckets[phase].items())[bucket]
        numbers = np.arange(batch * self.global_batch, (batch + 1) * self.global_batch)
        epochs, places = np.divmod(numbers, len(rows))
        chosen = np.empty_like(numbers)
        for epoch in np.unique(epochs):
            order = random(self.seed, _ORDER, int(epoch), phase << 32 | bucket).permutation(rows)
            chosen[epochs == epoch] = order[places[epochs == epoch]]
        return phase, length, chosen
