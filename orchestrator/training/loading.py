"""A data loader that knows its place: the epoch and the batch in it, for any number of workers.

Wraps `orchestrator.training.adapters.stateless`, which makes the order of an epoch a function of (seed,
epoch) and the random choices of a batch one of (seed, epoch, batch, rank). So the place is all there is to
save. Each rank gets its share of the batches. Also finds loaders of the script that do not know their place.
Imports torch only when it is used.
"""

from __future__ import annotations

import gc
import signal
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

_wrapped: weakref.WeakSet[Any] = weakref.WeakSet()  # loaders that a Place reads instead
_OWN_ORDER = frozenset({"sampler", "batch_sampler"})  # options that exclude `shuffle`


class Place:
    """Batches, epoch after epoch. It is a component of the state: it saves and loads its place.

    `next(loader)` goes on into the next epoch by itself; `for batch in loader` gives the rest of the present
    epoch; `for epoch in loader.epochs(n)` gives the numbers of the epochs that are left.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader  # an adapters.stateless.Loader
        self.epoch = 0
        self.batch = 0  # of the epoch, the next one
        self._batches: Iterator[Any] | None = None

    def __len__(self) -> int:
        """The number of batches of an epoch, in this rank."""
        return len(self._loader)

    @property
    def dataset(self) -> Any:
        return self._loader.dataset.items

    @property
    def batch_size(self) -> int | None:
        """Of this rank; None if a batch sampler decides."""
        size: int | None = self._loader.batch_sampler.batch_size
        return size

    def __next__(self) -> Any:
        while True:
            if self._batches is None:
                self._begin()
            assert self._batches is not None
            try:
                batch = next(self._batches)
            except StopIteration:
                self._end()
                continue
            self.batch += 1
            return batch

    def __iter__(self) -> Iterator[Any]:
        """The rest of this epoch."""
        if len(self) == 0:
            raise ValueError("the loader has no batches")
        if self.batch >= len(self):
            self._end()
        epoch = self.epoch
        while self.epoch == epoch and self.batch < len(self):
            yield next(self)
        if self.epoch == epoch:
            self._end()

    def epochs(self, count: int) -> Iterator[int]:
        """The numbers of the epochs up to `count`, from the present one on."""
        while self.epoch < count:
            epoch = self.epoch
            yield epoch
            if self.epoch == epoch:  # its batches were not taken to the end
                self._end()

    def state_dict(self) -> dict[str, int | None]:
        over = self.batch >= len(self) > 0
        batch = 0 if over else self.batch
        return {"epoch": self.epoch + over, "batch": batch, "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at this place. With another batch size or number of ranks, it is that of the samples."""
        self.epoch, self.batch = state["epoch"], state["batch"]
        then, now = state.get("samples"), self._samples
        if then and now:
            self.batch = self.batch * then // now
        self._batches = None

    @property
    def _samples(self) -> int | None:
        """How many samples all ranks together take with a batch each."""
        shares = self._loader.batch_sampler.batches
        return None if self.batch_size is None else self.batch_size * shares.ranks

    def _begin(self) -> None:
        order = self._loader.batch_sampler
        order.set_epoch(self.epoch)
        order.start = self.epoch, self.batch
        self._loader.dataset.rank = order.batches.number  # else all ranks draw the same numbers
        self._batches = iter(self._loader)
        if len(self) == 0:
            raise ValueError("the loader has no batches")

    def _end(self) -> None:
        self.epoch, self.batch, self._batches = self.epoch + 1, 0, None


def placed(given: Any, seed: int, share: tuple[int, int] | None = None, **options: Any) -> Place:
    """A loader or a data set as a `Place`. `options` are those of a DataLoader, for a data set, which is
    shuffled unless they say otherwise. Raises ValueError for what has no positions, such as an iterable data
    set, and TypeError for options beside a loader."""
    from torch.utils.data import DataLoader, IterableDataset

    from orchestrator.training.adapters.stateless import Shares, stateless

    if not isinstance(given, DataLoader):
        if not _OWN_ORDER.isdisjoint(options) or isinstance(given, IterableDataset):
            given = DataLoader(given, **options)
        else:
            given = DataLoader(given, **{"shuffle": True, **options})
    elif options:
        raise TypeError(f"a loader has its options already: {', '.join(sorted(options))}")
    _wrapped.add(given)
    loader = stateless(given, seed)
    loader.batch_sampler.batches = Shares(loader.batch_sampler.batches, share)
    try:
        len(loader)
    except TypeError as error:
        raise ValueError(f"exact resume needs a sampler with a length: {error}") from error
    loader.worker_init_fn = partial(_begin_worker, loader.worker_init_fn)
    return Place(loader)


def _begin_worker(then: Callable[[int], None] | None, number: int) -> None:
    """Ctrl-C on a terminal is for the training, which still needs its workers for the step under way."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if then is not None:
        then(number)


def forgetful() -> bool:
    """Whether the script has a loader that shuffles and does not know its place."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    from torch.utils.data import DataLoader, DistributedSampler, RandomSampler

    return any(
        type(each) is DataLoader
        and each not in _wrapped
        and (isinstance(each.sampler, RandomSampler)
             or (isinstance(each.sampler, DistributedSampler) and each.sampler.shuffle))
        for each in gc.get_objects()
    )  # fmt: skip
