"""Turns training state into values and tensors, and back.

Tensors that the training changes are kept apart from those it does not ("frozen") and from those that are
spread over the ranks ("sharded"). The rest is JSON. A folder holds `state.json` (step, plain values, random
generators, names of shards) and the shards of each component.
Does not decide when to save, and must never know the orchestrator's environment.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from orchestrator.training import randomness, sharded, values
from orchestrator.training.layout import SHARD_BYTES, STATE_FILE, pieces
from orchestrator.training.ranks import is_distributed, rank

if TYPE_CHECKING:
    import torch

FORMAT = 2
FROZEN = "-frozen"
_COMPONENT = re.compile(rf"(?!.*{FROZEN}$)[A-Za-z0-9][A-Za-z0-9_-]*")
_PARTS = ("state", "shards", "random")
_SHARDED = "$sharded"
_TAGS = ("$tensor", "$tuple", "$dict", _SHARDED, *values.TAGS)
_COMPILED = "_orig_mod."
_RANKS = "ranks"  # the random states of the ranks after the first
_ADDRESSED = ("cpu", "cuda")  # devices whose tensors have an address, which shows shared ones


@runtime_checkable
class Stateful(Protocol):
    """A model, an optimizer, a scheduler, a scaler: anything that can save and load its state."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Frozen:
    """A component that never changes: its state is read once, and its tensors are written once.

    Later saves hard-link the files that the first one wrote.
    """

    def __init__(self, component: Stateful) -> None:
        self.component = component
        self._state: Any = None

    def state_dict(self) -> Any:
        if self._state is None:
            self._state = self.component.state_dict()
        return self._state

    def load_state_dict(self, state: Any, /) -> Any:
        self._state = None
        return self.component.load_state_dict(state)


@dataclass
class Captured:
    """The state at one moment. `values` are copies. The tensors, by component and name, are the training's
    own and not copies."""

    values: dict[str, object] = field(default_factory=dict)
    trained: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    frozen: dict[str, dict[str, torch.Tensor]] = field(default_factory=dict)
    sharded: dict[str, Any] = field(default_factory=dict)  # of all components, by place

    def document(
        self, step: int, shards: Mapping[str, list[str]], generators: Sequence[Mapping[str, object]]
    ) -> bytes:
        """The content of state.json. `shards` are the files of each component, `generators` the random states
        of each rank."""
        first, *others = (_freeze(each, "", _Tensors({}, {}, {})) for each in generators)
        assert isinstance(first, dict)
        random = {**first, _RANKS: others} if others else first
        whole = {"format": FORMAT, "step": step, "state": self.values, "shards": shards, "random": random}
        return as_json(whole)


def capture(state: Mapping[str, object], shard_bytes: int = SHARD_BYTES) -> Captured:
    """The state as it is now.

    A value must be a tensor, a number, text, bytes, None, a numpy array or scalar, a random generator, or a
    list, tuple, set or dict of these. Raises TypeError with the place of any other value, such as a tensor of
    a class of its own, and ValueError for a component name that cannot be a file name.
    """
    captured = Captured()
    for name, component in state.items():
        if not _COMPONENT.fullmatch(name):
            raise ValueError(
                f"component name {name!r}: use letters, digits, '_' and '-'; it must not end with '{FROZEN}'"
            )
        if _is_fully_sharded(component):
            raise TypeError(
                f"{name}: cannot save a FullyShardedDataParallel; use fully_shard (FSDP2) instead"
            )
        plain = _state_of(component)
        trained = captured.trained.setdefault(name, {})
        frozen = captured.frozen.setdefault(name, {})
        if isinstance(component, Frozen):
            trained = frozen
        tensors = _Tensors(trained, frozen, captured.sharded, _unchanging(name, component), shard_bytes)
        captured.values[name] = _freeze(plain, name, tensors)
    return captured


def is_sharded(state: Mapping[str, object]) -> bool:
    """Whether any tensor of the state is spread over the ranks. What cannot be read has none: `capture` says
    so where it matters."""
    found = False
    for component in state.values():
        with suppress(Exception):
            found |= any(sharded.is_sharded(each) for _, each in sharded.tensors_in(_state_of(component), ""))
    return found


def as_json(document: Mapping[str, object]) -> bytes:
    """Canonical JSON: the same document gives the same bytes."""
    return json.dumps(document, sort_keys=True).encode() + b"\n"


def step_of(folder: Path) -> int:
    """The step of a saved state. Raises ValueError for a folder that this module did not write."""
    step: int = _document(folder)["step"]
    return step


def component(folder: Path, name: str) -> Any:
    """The values of one component. Raises ValueError as `restore` does."""
    document = _document(folder)
    _demand(folder, document, {name})
    return _thawed(folder, document, name)


def restore(folder: Path, state: Mapping[str, object]) -> dict[str, Any]:
    """Loads each stateful component in the order given, then the generators. Returns all other saved values.

    Raises ValueError for a folder that this module did not write, or for a component that it does not hold.
    """
    document = _document(folder)
    components = {name: part for name, part in state.items() if _is_stateful(part)}
    _demand(folder, document, components.keys())
    for name, part in components.items():
        if isinstance(part, Stateful):
            _load(part, _thawed(folder, document, name, _targets(folder, name, part)))
        else:
            values.set_generator(part, document["state"][name][values.GENERATOR])
    rest = {n: _thawed(folder, document, n) for n in document["state"] if n not in components}
    first, own = dict(document["random"]), rank()
    others = first.pop(_RANKS, [])
    if own and own <= len(others):  # else more ranks than before: state-exact
        first = others[own - 1]
    randomness.restore(_thaw(first, {}))
    return rest


def _is_stateful(part: object) -> bool:
    """Whether its state is loaded in place."""
    return isinstance(part, Stateful) or values.generator_state(part) is not None


def _state_of(component: object) -> object:
    """What is saved of a component. A compiled module has the names of the module that it wraps, so that the
    one loads what the other saved."""
    if not isinstance(component, Stateful):
        return component
    state = component.state_dict()
    if isinstance(state, Mapping) and _is_module(component):
        return {key.replace(_COMPILED, ""): value for key, value in state.items()}
    return state


def _targets(folder: Path, name: str, part: Stateful) -> sharded.Targets:
    state = None
    if is_distributed() or (folder / sharded.FOLDER).exists():
        with suppress(Exception):  # an optimizer that has no state yet
            state = _state_of(part)
    return sharded.Targets(name, part, state)


def _load(part: Stateful, state: Any) -> None:
    if isinstance(state, dict) and _is_module(part):
        names = {key.replace(_COMPILED, ""): key for key in part.state_dict()}
        state = {names.get(key, key): value for key, value in state.items()}
    part.load_state_dict(state)


def _is_fully_sharded(component: Any) -> bool:
    """Whether it is of FSDP's first version, whose optimizer has this rank's numbers without saying so."""
    fsdp = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
    if fsdp is None or not _is_module(component):
        return False
    return any(isinstance(each, fsdp.FullyShardedDataParallel) for each in component.modules())


def _is_module(component: object) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(component, torch.nn.Module)


def _document(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / STATE_FILE).read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"it has format {document['format']!r}, and this version reads {FORMAT}")
        document = {"step": int(document["step"])} | {name: dict(document[name]) for name in _PARTS}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is not a checkpoint of orchestrator.training: {error}") from error
    return document


def _demand(folder: Path, document: Mapping[str, Any], names: Set[str]) -> None:
    saved = document["state"].keys()
    if missing := sorted(names - saved):
        raise ValueError(f"{folder} holds {', '.join(sorted(saved))}; it has no {', '.join(missing)}")


def _thawed(
    folder: Path, document: Mapping[str, Any], name: str, targets: sharded.Targets | None = None
) -> Any:
    tensors: dict[str, Any] = {}
    targets = targets or sharded.Targets(name)
    for file in document["shards"].get(name, ()):
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            # load_file maps the file: a component that keeps a tensor would depend on those pages forever
            tensors |= {at: tensor.clone() for at, tensor in load_file(folder / file).items()}
        except (OSError, SafetensorError) as error:
            raise ValueError(f"{folder / file} is missing or damaged: {error}") from error
    if places := list(_sharded_places(document["state"][name])):
        tensors |= sharded.read(folder, places, targets)
    try:
        state = _thaw(document["state"][name], tensors)
    except KeyError as error:
        raise ValueError(f"{folder} is damaged: its shards do not hold tensor {error}") from error
    return _fitted(state, name, targets) if targets.sharded else state


def _sharded_places(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value.keys() == {_SHARDED}:
        yield value[_SHARDED]
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _sharded_places(each)


def _fitted(value: Any, place: str, targets: sharded.Targets) -> Any:
    """The state with a part of each plain tensor that is sharded here."""
    if isinstance(value, dict):
        return {key: _fitted(each, f"{place}.{key}", targets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_fitted(each, f"{place}.{n}", targets) for n, each in enumerate(value))
    torch = sys.modules["torch"]
    return targets.fit(place, value) if isinstance(value, torch.Tensor) else value


@dataclass
class _Tensors:
    """Collects the tensors of one component, and each storage view only once."""

    trained: dict[str, torch.Tensor]
    frozen: dict[str, torch.Tensor]
    sharded: dict[str, Any]
    unchanging: frozenset[str] = frozenset()
    shard_bytes: int = SHARD_BYTES
    _seen: dict[object, str | list[str]] = field(default_factory=dict)

    def put(self, place: str, tensor: torch.Tensor) -> str | list[str]:
        """Adds the tensor and returns its name, or the names of its pieces. Tied weights share the name of
        the first one."""
        parts = pieces(place, tensor.detach(), self.shard_bytes)
        view = _view(tensor) or object()
        if view not in self._seen:
            kind = self.frozen if place in self.unchanging else self.trained
            names = [name for name, _ in parts]
            if not kind.keys().isdisjoint(names):  # {"a.b": …, "a": {"b": …}}: two tensors at one place
                return self.put(place + "'", tensor)
            kind.update(parts)
            self._seen[view] = names if len(names) > 1 else names[0]
        return self._seen[view]

    def put_sharded(self, place: str, tensor: Any) -> str:
        while place in self.sharded:
            place += "'"
        self.sharded[place] = tensor
        return place


def _is_plain(tensor: object) -> bool:
    """Whether it is a tensor without a class of its own, whose memory is not what it seems."""
    torch = sys.modules["torch"]
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)


def _view(tensor: torch.Tensor) -> object:
    """A key that is equal for tensors that are the same view; None where that is unknown."""
    if not _is_plain(tensor) or tensor.device.type not in _ADDRESSED or not tensor.numel():
        return None
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def _unchanging(name: str, component: object) -> frozenset[str]:
    """The places of a module's parameters that have no gradient and share no memory with one that has."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(component, torch.nn.Module):
        return frozenset()
    parameters = list(component.named_parameters(remove_duplicate=False))
    trained = {_view(p) for _, p in parameters if p.requires_grad} - {None}
    still = (at for at, p in parameters if not p.requires_grad and _view(p) not in trained)
    return frozenset(f"{name}.{at}" for at in still)


def _freeze(value: object, place: str, tensors: _Tensors) -> object:
    """The value as JSON. Its tensors go to `tensors`, under their place."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_freeze(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_freeze(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        items = [(key, _freeze(item, f"{place}.{key}", tensors)) for key, item in value.items()]
        if all(isinstance(key, str) and key not in _TAGS for key, _ in items):
            return dict(items)
        return {"$dict": [[_freeze(key, place, tensors), item] for key, item in items]}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if sharded.is_sharded(value):
            if not is_distributed():
                raise TypeError(
                    f"{place}: cannot save a DTensor after torch.distributed has ended; save before "
                    "destroy_process_group"
                )
            return {_SHARDED: tensors.put_sharded(place, value)}
        if not _is_plain(value):
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise TypeError(f"{place}: cannot save a {kind}, a kind of tensor of its own; save plain tensors")
        return {"$tensor": tensors.put(place, value)}
    if (found := values.freeze(value, place, tensors.put)) is not None:
        return found
    raise TypeError(
        f"{place}: cannot save a {type(value).__name__}; save tensors, arrays, numbers, text, lists or dicts"
    )


def _thaw(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_thaw(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$tensor"}:
        names = value["$tensor"]
        if isinstance(names, str):
            return tensors[names]
        import torch

        return torch.cat([tensors[name] for name in names])
    [tag] = value.keys() if len(value) == 1 else [""]
    if tag == _SHARDED:
        return tensors[value[_SHARDED]]
    if tag in values.TAGS:
        return values.thaw(tag, value[tag], lambda data: bytes(_thaw(data, tensors).tolist()))
    if value.keys() == {"$tuple"}:
        return tuple(_thaw(item, tensors) for item in value["$tuple"])
    if value.keys() == {"$dict"}:
        return {_thaw(key, tensors): _thaw(item, tensors) for key, item in value["$dict"]}
    return {key: _thaw(item, tensors) for key, item in value.items()}
