"""One answer for all ranks of a distributed training: that of rank 0.

Alone where torch.distributed is not initialised. Must never know what is asked.
"""

from __future__ import annotations

import os
import sys
from typing import Any

_TAG = 0x6F726368  # a script's own messages, between the same ranks, are not taken for ours


def rank() -> int:
    """This process's rank; before torch.distributed is ready, what its launcher says (torchrun's RANK)."""
    distributed = _distributed()
    return distributed.get_rank() if distributed is not None else int(os.environ.get("RANK") or 0)


class Agreement:
    """All ranks must ask the same questions in the same order."""

    def __init__(self) -> None:
        self._group: Any = None

    def of_first(self, answer: bool) -> bool:
        """Rank 0's answer, in every rank; all must ask. May be the last thing a process does."""
        distributed = _distributed()
        if distributed is None or distributed.get_world_size() == 1:
            return answer
        import torch

        if self._group is None and distributed.get_backend() != "gloo":
            self._group = distributed.new_group(backend="gloo")  # asking does not wait for the accelerator
        said = torch.tensor(int(answer))
        # Not a broadcast: gloo does that in a thread of its own, which lets go of the tensor after the answer
        # is here. If Python ends in between, the thread cannot get its lock any more and aborts the process.
        if distributed.get_rank() == 0:
            ranks = range(1, distributed.get_world_size())
            sent = [distributed.isend(said, dst=rank, group=self._group, tag=_TAG) for rank in ranks]
            for work in sent:
                work.wait()
        else:
            distributed.recv(said, src=0, group=self._group, tag=_TAG)
        return bool(said.item())


def _distributed() -> Any:
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return None
    return torch.distributed
