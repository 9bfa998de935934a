"""Notes what each optimizer step of a training starts from: weights, optimizer state, data and random state.

A rehearsal puts this file on PYTHONPATH as `sitecustomize.py`, so Python imports it before the script. It
hooks into torch once the script imports that, and changes nothing. Stands alone: the sessions' Python knows
nothing of us. Writes one JSON line per optimizer step, with a checksum of each.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import random
import sys
import warnings
import zlib
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

TRACE = "REHEARSAL_TRACE"
_TENSORS_MAX, _ELEMENTS_MAX, _STEPS_MAX = 64, 4096, 100_000


class Witness:
    """Gets torch's calls. What it sees between two optimizer steps belongs to the second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._steps = self._depth = 0
        self._batches = self._inputs = 0

    def batch(self, batch: Any) -> None:
        self._batches = checksum(batch, self._batches)

    def before_forward(self, *_: Any) -> None:
        self._depth += 1

    def after_forward(self, _module: Any, inputs: Any, named: Any, _output: Any) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._inputs = checksum([inputs, named], self._inputs)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if os.getpid() != self._process or self._steps >= _STEPS_MAX:
            return
        try:
            line = self._line(optimizer)
        except Exception as error:  # noqa: BLE001 - a witness must never end the training
            line = {"step": self._steps, "error": f"{type(error).__name__}: {error}"}
        self._steps += 1
        self._batches = self._inputs = 0
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def _line(self, optimizer: Any) -> dict[str, Any]:
        groups = optimizer.param_groups
        params = [each for group in groups for each in group["params"]][:_TENSORS_MAX]
        state = [optimizer.state.get(each, {}) for each in params]
        state += [{key: value for key, value in group.items() if key != "params"} for group in groups]
        return {
            "step": self._steps,
            "weights": checksum(params),
            "optimizer": checksum([sorted(each.items(), key=lambda item: str(item[0])) for each in state]),
            "data": self._batches or self._inputs,
            "random": random_states(),
        }


def checksum(value: Any, before: int = 0) -> int:
    """Of tensors and numbers in any nesting; of a large tensor, its first elements count."""
    torch = sys.modules["torch"]
    if isinstance(value, torch.Tensor):
        return zlib.crc32(_bytes(value), zlib.crc32(str(tuple(value.shape)).encode(), before))
    if isinstance(value, dict):
        for key in value:
            before = checksum(value[key], zlib.crc32(str(key).encode(), before))
        return before
    if isinstance(value, list | tuple):
        for each in value:
            before = checksum(each, before)
        return before
    if isinstance(value, bool | int | float | str | bytes | None):
        return zlib.crc32(repr(value).encode(), before)
    if type(value).__module__ == "numpy":
        return zlib.crc32(value.tobytes(), before)
    return checksum(vars(value), before) if hasattr(value, "__dict__") else before


def _bytes(tensor: Any) -> bytes:
    torch = sys.modules["torch"]
    if hasattr(tensor, "to_local"):  # sharded
        tensor = tensor.to_local()
    flat = tensor.detach().reshape(-1)[:_ELEMENTS_MAX].contiguous()
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return bytes(flat.cpu().view(torch.uint8).tolist())


def random_states() -> dict[str, int]:
    """A checksum of each random generator of this process."""
    torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
    found = {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "torch": zlib.crc32(bytes(torch.get_rng_state().tolist())),
    }
    if numpy is not None and hasattr(numpy, "random"):
        _, keys, place, *_ = numpy.random.get_state()
        found["numpy"] = zlib.crc32(keys.tobytes() + str(place).encode())
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            found[f"cuda:{device}"] = zlib.crc32(bytes(state.tolist()))
    return found


def watch(path: Path) -> None:
    """Hooks into torch, which has just been imported. Any exception is told, and nothing is watched."""
    try:
        from torch.nn.modules import module
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        warnings.filterwarnings("ignore", message="Using `torch.compile")  # it is about our hooks
        witness = Witness(path)
        optimizer.register_optimizer_step_pre_hook(witness.before_step)
        module.register_module_forward_pre_hook(witness.before_forward)
        module.register_module_forward_hook(witness.after_forward, with_kwargs=True, always_call=True)
        following: Any = dataloader._BaseDataLoaderIter.__next__

        def fetched(self: Any) -> Any:
            batch = following(self)
            witness.batch(batch)
            return batch

        dataloader._BaseDataLoaderIter.__next__ = fetched  # type: ignore[method-assign]
    except Exception as error:  # noqa: BLE001 - another version of torch
        sys.stderr.write(f"rehearsal: the steps cannot be watched: {error}\n")


class Finder(importlib.abc.MetaPathFinder):
    """Calls `then` once the module `name` has been imported."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute, then = spec.loader.exec_module, self._then

            def exec_module(module: Any) -> None:
                execute(module)
                then()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def import_the_other() -> None:
    """Imports the `sitecustomize` that this one hides, if there is one."""
    here = Path(__file__).resolve().parent
    paths = [path for path in sys.path if Path(path or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    if os.environ.get(TRACE) and os.environ.get("RANK", "0") in ("", "0"):
        trace = Path(os.environ[TRACE]).absolute()
        sys.meta_path.insert(0, Finder("torch", lambda: watch(trace)))
    import_the_other()
