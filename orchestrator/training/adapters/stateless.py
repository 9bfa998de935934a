"""Makes data order and random numbers functions of (seed, epoch, batch, rank), for any loader.

The frameworks' own resume is not exact. Lightning repeats an interrupted epoch from its start (#17543) and
saves no random states. The Trainer restores them only after it has fetched the next batches
(docs/references/training.md#exact-resume). When every number follows from the position, nothing has to be
saved. Must never know a framework.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, cycle, islice
from typing import Any

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, Sampler

from orchestrator.training.ranks import count, rank

Position = tuple[int, int, Sequence[Any]]  # epoch, batch inside it, indices of its items


def seed_all(*key: int) -> None:
    """Seeds every generator of this process, on all devices, from the key."""
    number = _number(key)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.manual_seed(number)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Random numbers inside are a function of the key. The CPU's generators are restored afterwards."""
    before = random.getstate(), numpy.random.get_state(), torch.get_rng_state()
    number = _number(key)
    random.seed(number)
    numpy.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    try:
        yield
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])
        torch.set_rng_state(before[2])


class Order(Sampler[list[Position]]):
    """A batch sampler whose order is a function of (seed, epoch), and which can begin inside an epoch.

    Wraps any batch sampler, and draws its shuffle from the epoch's own random numbers.
    """

    def __init__(self, batches: Any, seed: int) -> None:
        self.batches, self.seed = batches, seed
        self.epoch, self.start = 0, (0, 0)
        self.batch_size = getattr(batches, "batch_size", None)  # for Accelerate
        self.drop_last = getattr(batches, "drop_last", False)

    @property
    def sampler(self) -> Order:
        """Lightning and Accelerate look here for a `set_epoch`."""
        return self

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    @property
    def first(self) -> int:
        """The batch this epoch begins with."""
        return self.start[1] if self.start[0] == self.epoch else 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[Position]]:
        for inner in _chain(self.batches):
            if hasattr(inner, "set_epoch"):
                inner.set_epoch(self.epoch)
        with seeded(self.seed, self.epoch):
            batches = list(self.batches)
        for number in range(self.first, len(batches)):
            yield [(self.epoch, number, batches[number])]


class Shares:
    """A batch sampler with every n-th batch of another one for each of n ranks. All have the same number:
    those that lack one get one of the first again.

    With `filled`, the first items of the epoch also fill up a last batch that is smaller. Without, all ranks
    leave out the rest if the batches are of full size only. A sampler that already knows its ranks, such as a
    DistributedSampler, is left alone. `share` is (number, of how many); None: this rank of all.
    """

    def __init__(self, batches: Any, share: tuple[int, int] | None, *, filled: bool = False) -> None:
        self.batches, self._share, self._filled = batches, share, filled
        self.sampler = getattr(batches, "sampler", None)
        self.batch_size = getattr(batches, "batch_size", None)
        self.drop_last = bool(getattr(batches, "drop_last", False))

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return self._share[1] if self._share else count()

    @property
    def number(self) -> int:
        """Which of them this is."""
        return self._share[0] if self._share else rank()

    def set_epoch(self, epoch: int) -> None:
        if hasattr(self.batches, "set_epoch"):
            self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        whole, ranks = len(self.batches), self._divided
        return whole // ranks if self.drop_last and not self._filled else math.ceil(whole / ranks)

    def __iter__(self) -> Iterator[Any]:
        ranks, batches = self._divided, list(self.batches)
        if self._filled and batches and type(self.batches) is BatchSampler:
            more = islice(cycle(chain.from_iterable(batches)), self.batches.batch_size - len(batches[-1]))
            batches[-1] = [*batches[-1], *more]
        yield from islice(cycle(batches), self.number if ranks > 1 else 0, len(self) * ranks, ranks)

    @property
    def _divided(self) -> int:
        """By how many the batches are still to be divided."""
        knows = any(hasattr(each, "num_replicas") for each in (self.batches, self.sampler))
        return 1 if knows else self.ranks


class Batches(Dataset[Any]):
    """Collated batches by position, which alone decides random choices such as masking and augmentation: with
    the rank, because each rank's own batches have the same positions."""

    def __init__(self, items: Any, collate: Callable[[list[Any]], Any], seed: int, rank: int = 0) -> None:
        self.items, self.collate, self.seed, self.rank = items, collate, seed, rank

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: Position) -> Any:
        epoch, number, indices = position
        with seeded(self.seed, epoch, number, self.rank):
            many = getattr(self.items, "__getitems__", None)
            return self.collate(many(indices) if many else [self.items[index] for index in indices])


class Loader(DataLoader[Any]):
    """A loader that knows its position, which is the next batch: {"epoch", "batch"}.

    Lightning saves and loads it, because it asks every loader for a `state_dict`.
    """

    batch_sampler: Order

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        order = self.batch_sampler
        self._next = order.first
        for batch in super().__iter__():
            self._next += 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """The position; at the end of an epoch, the beginning of the next one."""
        epoch, batch = self.batch_sampler.epoch, getattr(self, "_next", self.batch_sampler.first)
        over = batch >= len(self)
        return {"epoch": epoch + over, "batch": 0 if over else batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Continues at this position."""
        self.batch_sampler.set_epoch(state["epoch"])
        self.batch_sampler.start = state["epoch"], state["batch"]


def stateless(loader: DataLoader[Any], seed: int, rank: int = 0, ranks: int = 1) -> Loader:
    """The same loader, with batches that are a function of (seed, epoch, batch, rank), for any number of
    workers.

    It shuffles, masks and augments as before, but with other random numbers. With `ranks`, it has one rank's
    filled share of the batches; without, the loader has that already. Raises ValueError for a loader without
    batches, and for one over an iterable data set, which has no positions.
    """
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise ValueError("exact resume needs a map-style data set with batches; this loader has no positions")
    batches: Any = loader.batch_sampler
    if ranks > 1:
        batches = Shares(batches, (rank, ranks), filled=True)
    return Loader(
        Batches(loader.dataset, loader.collate_fn, seed, rank),
        batch_sampler=Order(batches, seed),
        collate_fn=_only,
        num_workers=loader.num_workers,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=torch.Generator().manual_seed(seed),  # else each epoch uses the training's generator
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )


def _chain(sampler: Any) -> list[Any]:
    """A sampler, the one that it wraps, and so on."""
    found: list[Any] = []
    while sampler is not None and all(sampler is not each for each in found):
        found.append(sampler)
        inner = getattr(sampler, "batch_sampler", None)
        sampler = getattr(sampler, "sampler", None) if inner is None else inner
    return found


def _number(key: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(key).encode(), digest_size=8).digest(), "little")


def _only(batches: list[Any]) -> Any:
    (batch,) = batches
    return batch
