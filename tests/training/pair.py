"""Two processes of `devices.spread` that meet once; then the leader fails while the other waits for it."""

from __future__ import annotations

import torch

from orchestrator.training.devices import spread


def lead() -> None:
    torch.distributed.barrier()
    raise RuntimeError("the planted fault")


def follow(_rank: int) -> None:
    torch.distributed.barrier()
    torch.distributed.barrier()


if __name__ == "__main__":
    spread(lead, follow, 2, "cpu")
