"""One answer for all ranks of a distributed training: the answer of rank 0.

Without an initialised torch.distributed, a process answers for itself. Must never know what is asked.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_TAG = 0x6F726368  # keeps our messages apart from the script's own between the same ranks


def rank() -> int:
    """This process's rank. Before torch.distributed is ready, the launcher's variable (torchrun's RANK; the
    processes that Lightning starts have only LOCAL_RANK)."""
    distributed = _distributed()
    if distributed is not None:
        return int(distributed.get_rank())
    return int(os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or 0)


class Agreement:
    """All ranks must ask the same questions in the same order."""

    def __init__(self) -> None:
        self._group: Any = None

    def of_first(self, answer: bool) -> bool:
        """Returns rank 0's answer in every rank, so every rank must call this. A process may end right after
        it."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return answer
        import torch

        group = self._gloo(distributed)
        said = torch.tensor(int(answer))
        # Not a broadcast: gloo runs it in its own thread, which releases the tensor after the answer has
        # arrived. If Python ends in between, that thread can no longer get Python's lock and aborts the
        # process.
        if distributed.get_rank() == 0:
            ranks = range(1, distributed.get_world_size())
            sent = [distributed.isend(said, dst=rank, group=group, tag=_TAG) for rank in ranks]
            for work in sent:
                work.wait()
        else:
            distributed.recv(said, src=0, group=group, tag=_TAG)
        return bool(said.item())

    def gathered(self, value: object) -> list[Any]:
        """Every rank's value in rank 0, in order of the ranks; only its own in the others. Every rank must
        call this."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return [value]
        found = [None] * distributed.get_world_size() if distributed.get_rank() == 0 else None
        distributed.gather_object(value, found, dst=0, group=self._gloo(distributed))
        return [value] if found is None else found

    def _gloo(self, distributed: Any) -> Any:
        """A group that does not wait for the accelerator; None: the default one is."""
        if self._group is None and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo")
        return self._group


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
