"""`refused.py`: what a save says of tensors that it cannot save, one line each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Shard

from orchestrator.training import Training


class Quantized(torch.Tensor):
    """Has no memory of its own, as torchao's tensors: asking for its address ends the process."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Quantized:
        made: Quantized = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        def opened(value: Any) -> Any:
            return value.held if isinstance(value, Quantized) else value

        found = func(*map(opened, args), **(kwargs or {}))
        return Quantized(found) if isinstance(found, torch.Tensor) else found


def say(training: Training, step: int, state: dict[str, object]) -> None:
    try:
        training.save(step, state)
    except TypeError as error:
        sys.stdout.write(f"{error}\n")


torch.distributed.init_process_group(
    "gloo", init_method=Path("meeting").absolute().as_uri(), rank=0, world_size=1
)
mesh = init_device_mesh("cpu", (1,))
training = Training(Path("c"))
model = torch.nn.Linear(2, 2)
model.weight = torch.nn.Parameter(Quantized(torch.ones(2, 2)), requires_grad=False)
optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], 0.1)
optimizer.state[optimizer.param_groups[0]["params"][0]]["moment"] = Quantized(torch.ones(2))
say(training, 1, {"model": model})
say(training, 2, {"optimizer": optimizer})
say(training, 3, {"sums": [DTensor.from_local(torch.ones(2), mesh, [Partial()])]})
say(training, 4, {"packed": DTensor.from_local(Quantized(torch.ones(2)), mesh, [Shard(0)], run_check=False)})
say(training, 5, {"old": FullyShardedDataParallel(torch.nn.Linear(2, 2), device_id=torch.device("cpu"))})
sharded = DTensor.from_local(torch.ones(2), mesh, [Shard(0)])
torch.distributed.destroy_process_group()
say(training, 6, {"late": sharded})
sys.stdout.write(f"{sorted(path.name for path in Path('c').iterdir())}\n")
