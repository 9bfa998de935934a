"""Notes what each optimizer step of a training starts from: weights, optimizer, data, random and other state.

A rehearsal puts this file on PYTHONPATH as `sitecustomize.py`, so Python imports it before the script. It
hooks into torch once the script imports that, and changes nothing. Stands alone: the sessions' Python knows
nothing of us. Writes one JSON line per optimizer step, with a checksum of each; 0 means unknown.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.abc
import importlib.util
import json
import os
import random
import sys
import warnings
import weakref
import zlib
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

torch: Any = None  # once the script has imported it
TRACE = "REHEARSAL_TRACE"
RESUME = "ORCHESTRATOR_RESUME_FROM"
_TENSORS_MAX, _ELEMENTS_MAX, _STEPS_MAX = 256, 4096, 100_000
_LOOKS = (0, 1)  # the steps at which it looks for what else has a state
_FRAMES_MAX = 50
# They count calls and say nothing about what comes next.
_UNIMPORTANT = frozenset({"_step_count", "_get_lr_called_within_step", "_is_initial", "verbose"})


def write(path: Path, line: dict[str, Any]) -> None:
    """Appends a line in one piece, because several processes may do so."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)


class Witness:
    """Gets torch's calls. What it sees between two optimizer steps belongs to the second."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._process = os.getpid()
        self._steps = self._depth = 0
        self._batches = self._inputs = 0
        self._optimizers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._length = 0
        self._others = Others()
        self._states: dict[str, list[int]] | None = None  # before a forward pass, which may change buffers

    def began(self, loader: Any) -> None:
        """A data loader starts another pass over its data."""
        self._passes[loader] = self._passes.get(loader, 0) + 1
        try:
            self._length = max(self._length, len(loader))
        except Exception:  # noqa: BLE001 - a stream has no length
            return

    def batch(self, batch: Any) -> None:
        if torch.is_grad_enabled():
            self._batches = known(batch, self._batches)

    def before_forward(self, *_: Any) -> None:
        if _compiles():
            return
        self._depth += 1
        if self._depth == 1 and self._states is None and torch.is_grad_enabled():
            self._see_states()

    def _see_states(self) -> None:
        try:
            if self._steps in _LOOKS:
                self._others.look()
            self._states = self._others.states()
        except Exception:  # noqa: BLE001 - a witness must never end the training
            self._states = {}

    def after_forward(self, _module: Any, inputs: Any, named: Any, _output: Any) -> None:
        if _compiles():
            return
        self._depth -= 1
        if self._depth == 0 and torch.is_grad_enabled():
            self._inputs = known([inputs, named], self._inputs)

    def before_step(self, optimizer: Any, *_: Any) -> None:
        if _compiles() or os.getpid() != self._process or self._steps >= _STEPS_MAX:
            return
        try:
            line = self._line(optimizer)
        except Exception as error:  # noqa: BLE001 - a witness must never end the training
            line = {"step": self._steps, "error": f"{type(error).__name__}: {error}"[:1000]}
        self._steps += 1
        write(self._path, line)

    def after_step(self, *_: Any) -> None:
        """Also after what the optimizer itself called, such as the closure of LBFGS."""
        if _compiles():
            return
        self._batches = self._inputs = 0
        self._states = None

    def _line(self, optimizer: Any) -> dict[str, Any]:
        groups = optimizer.param_groups
        params = [each for group in groups for each in group["params"]][:_TENSORS_MAX]
        state = [optimizer.state.get(each, {}) for each in params]
        state += [{key: value for key, value in group.items() if key != "params"} for group in groups]
        if self._states is None:
            self._see_states()
        return {
            "step": self._steps,
            "weights": checksum(params),
            "optimizer": known([sorted(each.items(), key=lambda item: str(item[0])) for each in state]),
            "data": self._inputs or self._batches,
            "random": random_states() | self._others.random(),
            "states": self._states,
            "who": self._optimizers.setdefault(optimizer, len(self._optimizers)),
            "rank": _rank(),
            "passes": max(self._passes.values(), default=0),
            "batches": self._length,
        }


class Others:
    """What has a state and is neither the optimizer nor a global random generator: schedulers, scalers,
    models with buffers, averages of the weights, and the script's own random generators."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[str, Any]] = {}  # by id: its name, and a weak reference to it
        self._holders: dict[int, tuple[str, Any]] = {}  # likewise, of what may have a random generator

    def look(self) -> None:
        kinds = (torch.nn.Module, torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler)
        holders = (torch.utils.data.DataLoader, torch.utils.data.Sampler, torch.utils.data.Dataset)
        is_kind: dict[type, bool] = {}  # it is much faster to ask once a type
        found, within = [], set()
        for each in gc.get_objects():
            kind = type(each)
            if kind not in is_kind:
                is_kind[kind] = issubclass(kind, kinds + holders)
            if not is_kind[kind]:
                continue
            if issubclass(kind, holders):
                self._holders[id(each)] = f"{kind.__name__}.", weakref.ref(each)
                continue
            found.append(each)
            within |= {id(inner) for inner in getattr(each, "_modules", {}).values()}
        for each in found:
            if id(each) not in within:
                self._found[id(each)] = type(each).__name__, weakref.ref(each)

    def random(self) -> dict[str, int]:
        """A checksum of each generator, by the name of its variable. They are looked for each time, because a
        script may make a new one at each step."""
        states: dict[str, int] = {}
        seen: set[int] = set()
        there = [(prefix, each()) for prefix, each in self._holders.values()]
        places = [("", variables) for variables in _variables()]
        for prefix, variables in (
            *places,
            *((prefix, vars(each)) for prefix, each in there if each is not None),
        ):
            for name, value in list(variables.items()):
                state = None if id(value) in seen else _generator_state(value)
                if state is not None:
                    seen.add(id(value))
                    states.setdefault(f"{prefix}{name}"[:100], zlib.crc32(state))
        return states

    def states(self) -> dict[str, list[int]]:
        """A checksum of each, by the name of its type."""
        states: dict[str, list[int]] = {}
        for name, reference in self._found.values():
            each = reference()
            state = None if each is None else known(_state(each))
            if state:
                states.setdefault(name, []).append(state)
        return {name: sorted(found) for name, found in states.items()}


def _state(each: Any) -> Any:
    """Of a module, its parameters and what else it would save."""
    if not hasattr(each, "_modules"):
        found = each.state_dict()
        return sorted((key, value) for key, value in found.items() if key not in _UNIMPORTANT)
    tensors = list(each.parameters())
    for inner in each.modules():
        unsaved = inner._non_persistent_buffers_set
        tensors += [value for name, value in inner._buffers.items() if name not in unsaved]
    return tensors[:: 1 + len(tensors) // _TENSORS_MAX]


def _variables() -> Iterator[dict[str, Any]]:
    """The variables of the script and of its functions that run right now."""
    script = sys.modules.get("__main__")
    if script is not None:
        yield vars(script)
    frame: Any = sys._getframe()
    for _ in range(_FRAMES_MAX):
        if frame is None:
            return
        file = frame.f_code.co_filename
        if file != __file__ and "site-packages" not in file and not file.startswith("<"):
            yield frame.f_locals
        frame = frame.f_back


def _generator_state(value: Any) -> bytes | None:
    """The state of a random generator; None for anything else."""
    kind = type(value)
    if kind is random.Random:
        return repr(value.getstate()).encode()
    if kind.__module__.startswith("torch") and kind.__name__ == "Generator":
        return _bytes(value.get_state(), None)
    if kind.__module__.startswith("numpy.random"):
        if kind.__name__ == "Generator":
            return repr(value.bit_generator.state).encode()
        if kind.__name__ == "RandomState":
            return _of_numpy(value)
    return None


def _of_numpy(state: Any) -> bytes:
    found = state.get_state()
    return repr(found).encode() if isinstance(found, dict) else found[1].tobytes() + str(found[2]).encode()


def _compiles() -> bool:
    """Whether torch.compile reads our hooks. Then they must be nothing."""
    return bool(torch.compiler.is_compiling())


def _rank() -> int:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() else 0


def known(value: Any, before: int = 0) -> int:
    """The checksum; `before` if there is none."""
    try:
        return checksum(value, before)
    except Exception:  # noqa: BLE001 - such as a tensor without a memory of its own
        return before


def checksum(value: Any, before: int = 0) -> int:
    """Of tensors and numbers in any nesting; of a large tensor, elements all over it count. Not of what was
    computed from weights."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad and not value.is_leaf:
            return before
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
    return before


def _bytes(tensor: Any, elements_max: int | None = _ELEMENTS_MAX) -> bytes:
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):  # sharded
        tensor = tensor.to_local()
    if str(tensor.layout) != "torch.strided":
        tensor = tensor.to_dense()
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if elements_max is not None and flat.numel() > elements_max:
        flat = flat[:: flat.numel() // elements_max]
    flat = flat.cpu().contiguous()
    if flat.numel() == 0 or flat.data_ptr() == 0:
        return b""
    return ctypes.string_at(flat.data_ptr(), flat.numel() * flat.element_size())


def random_states() -> dict[str, int]:
    """A checksum of each global random generator of this process."""
    numpy = sys.modules.get("numpy")
    found = {
        "python": zlib.crc32(repr(random.getstate()).encode()),
        "torch": zlib.crc32(_bytes(torch.get_rng_state(), None)),
    }
    if numpy is not None and hasattr(numpy, "random"):
        found["numpy"] = zlib.crc32(_of_numpy(numpy.random))
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device, state in enumerate(torch.cuda.get_rng_state_all()):
            found[f"cuda:{device}"] = zlib.crc32(_bytes(state, None))
    return found


def watch(path: Path) -> None:
    """Hooks into torch, which has just been imported. Any exception is told, and nothing is watched."""
    global torch
    try:
        import torch
        from torch.nn.modules import module
        from torch.optim import optimizer
        from torch.utils.data import dataloader

        warnings.filterwarnings("ignore", message="Using `torch.compile")  # it is about our hooks
        witness = Witness(path)
        # raises AttributeError on a torch that lacks one of them
        torch.compiler.is_compiling(), torch.amp.GradScaler, torch.optim.lr_scheduler.LRScheduler
        optimizer.register_optimizer_step_pre_hook(witness.before_step)
        optimizer.register_optimizer_step_post_hook(witness.after_step)
        module.register_module_forward_pre_hook(witness.before_forward)
        module.register_module_forward_hook(witness.after_forward, with_kwargs=True, always_call=True)
        following: Any = dataloader._BaseDataLoaderIter.__next__
        beginning: Any = dataloader.DataLoader.__iter__

        def fetched(self: Any) -> Any:
            batch = following(self)
            witness.batch(batch)
            return batch

        def begun(self: Any) -> Any:
            witness.began(self)
            return beginning(self)

        dataloader._BaseDataLoaderIter.__next__ = fetched  # type: ignore[method-assign]
        dataloader.DataLoader.__iter__ = begun  # type: ignore[method-assign]
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


def note_opening(path: Path, resumed: str) -> None:
    """Notes once that this process opens what it is to resume."""
    place, noted = os.path.realpath(resumed), False
    last = Path(place).name

    def hear(event: str, given: tuple[Any, ...]) -> None:
        nonlocal noted
        if event != "open" or noted or not isinstance(given[0], str | bytes):
            return
        try:
            name = os.fsdecode(given[0])
            if last not in name:
                return
            name = os.path.realpath(name)
            if name == place or name.startswith(place + os.sep):
                noted = True
                write(path, {"opened": True})
        except (OSError, ValueError):
            return

    sys.addaudithook(hear)


def import_the_other() -> None:
    """Imports the `sitecustomize` that this one hides, if there is one."""
    here = Path(__file__).resolve().parent
    paths = [path for path in sys.path if Path(path or ".").resolve() != here]
    spec = PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize" and os.environ.get(TRACE):
    trace = Path(os.environ[TRACE]).absolute()
    sys.meta_path.insert(0, Finder("torch", lambda: watch(trace)))
    if os.environ.get(RESUME):
        note_opening(trace, os.environ[RESUME])
if __name__ == "sitecustomize":
    import_the_other()
