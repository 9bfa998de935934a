"""One answer for all ranks of a distributed training: the answer of rank 0.

Without an initialised torch.distributed, a process answers for itself. Must never know what is asked.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import sys
from collections.abc import Sequence
from typing import Any, TypeVar

_TAG = 0x6F726368  # keeps our messages apart from the script's own between the same ranks

_T = TypeVar("_T")


def rank() -> int:
    """This process's rank. Before torch.distributed is ready, the launcher's variable (torchrun's RANK; the
    processes that Lightning starts have only LOCAL_RANK)."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


def count() -> int:
    """The number of ranks, found out as `rank` does."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_world_size())
    return int(os.environ.get("WORLD_SIZE") or 1)


def is_distributed() -> bool:
    """Whether ranks can talk to each other, if only to themselves."""
    return _distributed() is not None


class Agreement:
    """All ranks must ask the same questions in the same order."""

    def __init__(self) -> None:
        self._group: Any = None
        self._background: Any = None

    def of_first(self, answer: _T) -> _T:
        """Returns rank 0's answer in every rank, so every rank must call this. A process may end right after
        it."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return answer
        if distributed.get_rank():
            first: _T = self._received(distributed, 0)
            return first
        for work in [w for rank in range(1, distributed.get_world_size())
                     for w in self._sent(distributed, answer, rank)]:  # fmt: skip
            work.wait()
        return answer

    def gathered(self, value: object) -> list[Any]:
        """Every rank's value in rank 0, in order of the ranks; only its own in the others. Every rank must
        call this."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return [value]
        if distributed.get_rank() == 0:
            others = range(1, distributed.get_world_size())
            return [value, *(self._received(distributed, rank) for rank in others)]
        for work in self._sent(distributed, value, 0):
            work.wait()
        return [value]

    def background(self) -> Any:
        """A process group for another thread to use. Every rank must call this at the same place."""
        if self._background is None:
            self._background = _distributed().new_group(backend="gloo")
        return self._background

    # Messages from one rank to another, and no collectives: gloo runs a collective in its own thread, which
    # releases the tensor after the answer has arrived. If Python ends in between, that thread can no longer
    # get Python's lock and aborts the process.

    def _sent(self, distributed: Any, value: object, to: int) -> list[Any]:
        import torch

        data = torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8)
        group = self._gloo(distributed)
        return [
            distributed.isend(each, dst=to, group=group, tag=_TAG) for each in (torch.tensor(len(data)), data)
        ]

    def _received(self, distributed: Any, source: int) -> Any:
        import torch

        group, size = self._gloo(distributed), torch.tensor(0)
        distributed.recv(size, src=source, group=group, tag=_TAG)
        data = torch.empty(int(size.item()), dtype=torch.uint8)
        distributed.recv(data, src=source, group=group, tag=_TAG)
        return pickle.loads(ctypes.string_at(data.data_ptr(), len(data)))

    def _gloo(self, distributed: Any) -> Any:
        """A group that does not wait for the accelerator; None: the default one is."""
        if self._group is None and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo")
        return self._group


def plain_fault(fault: Exception | None) -> Exception | None:
    """An exception of a kind that any process can read, with the same message."""
    if fault is None:
        return None
    kind = next((each for each in (OSError, TypeError, ValueError) if isinstance(fault, each)), RuntimeError)
    return kind(str(fault))


def first_fault(found: Sequence[tuple[Exception | None, object]]) -> Exception | None:
    """The first of the ranks' faults. It is one too if a rank has other sharded tensors than rank 0."""
    for number, (fault, _) in enumerate(found):
        if fault is not None:
            return type(fault)(f"rank {number}: {fault}") if number else fault
    for number, (_, has) in enumerate(found):
        if has != found[0][1]:
            return ValueError(f"rank {number} has other sharded tensors than rank 0; they must have the same")
    return None


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
