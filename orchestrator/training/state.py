"""Training state as files and back: tensors in safetensors, the rest in JSON.

The same state gives the same bytes, so that equal checkpoints have equal hashes. Decides nothing about
when to save, and must never know the orchestrator's environment. One folder holds `state.json` (step, plain
values, random generators) and `<component>.safetensors` for each component that has tensors.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import torch

FORMAT = 1
STATE_FILE = "state.json"
_COMPONENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_TAGS = ("$tensor", "$tuple", "$dict")


@runtime_checkable
class Stateful(Protocol):
    """A model, optimizer, scheduler, scaler: whatever gives its state and takes it back."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any, /) -> Any: ...


class Frozen:
    """A component that never changes: its tensors are written once, and hard-linked by later saves."""

    def __init__(self, component: Stateful) -> None:
        self.component = component

    def state_dict(self) -> Any:
        return self.component.state_dict()

    def load_state_dict(self, state: Any, /) -> Any:
        return self.component.load_state_dict(state)


def write(folder: Path, step: int, state: Mapping[str, object]) -> None:
    """Writes every component and the random generators into an existing, empty folder, and fsyncs it.

    Raises TypeError, naming the place, for a value that is neither a tensor, a number, text, None nor a
    list, tuple or dict of such; OSError when the bytes cannot be written.
    """
    values: dict[str, object] = {}
    for name, component in state.items():
        if not _COMPONENT.fullmatch(name):
            raise ValueError(f"component name {name!r}: use letters, digits, '_' and '-'")
        plain = component.state_dict() if isinstance(component, Stateful) else component
        tensors: dict[str, torch.Tensor] = {}
        values[name] = _freeze(plain, name, tensors, {})
        if tensors:
            _write_tensors(folder / f"{name}.safetensors", tensors)
    document = {
        "format": FORMAT,
        "step": step,
        "state": values,
        "random": _freeze(_random_state(), "", {}, {}),
    }
    write_json(folder / STATE_FILE, document)
    sync_folder(folder)


def step_of(folder: Path) -> int:
    """The step a saved state stands at. Raises ValueError for a folder this module did not write."""
    return int(_document(folder)["step"])


def component(folder: Path, name: str) -> Any:
    """The values of one component. Raises ValueError as `restore` does."""
    saved = _document(folder)["state"]
    if name not in saved:
        raise ValueError(f"{folder} holds {', '.join(sorted(saved))}; it has no {name}")
    return _component(folder, name, saved[name])


def restore(folder: Path, state: Mapping[str, object]) -> dict[str, Any]:
    """Loads each stateful component, in the order given, then the generators; returns other saved values.

    Raises ValueError for a folder this module did not write, or a component that it does not hold.
    """
    document = _document(folder)
    saved: dict[str, object] = document["state"]
    components = {name: part for name, part in state.items() if isinstance(part, Stateful)}
    missing = sorted(components.keys() - saved.keys())
    if missing:
        raise ValueError(f"{folder} holds {', '.join(sorted(saved))}; it has no {', '.join(missing)}")
    for name, part in components.items():
        part.load_state_dict(_component(folder, name, saved[name]))
    rest = {n: _component(folder, n, value) for n, value in saved.items() if n not in components}
    _set_random_state(_thaw(document["random"], {}))
    return rest


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Writes a new file of canonical JSON and makes its bytes durable."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(document, sort_keys=True, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _document(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / STATE_FILE).read_bytes())
        if document["format"] != FORMAT:
            raise ValueError(f"format {document['format']!r}, this version reads {FORMAT}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} is no checkpoint of orchestrator.training: {error}") from error
    return dict(document)


def _freeze(value: object, place: str, tensors: dict[str, torch.Tensor], seen: dict[object, str]) -> object:
    """The value as JSON; tensors go to `tensors` under their place, each storage view once."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [_freeze(item, f"{place}.{i}", tensors, seen) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {"$tuple": [_freeze(item, f"{place}.{i}", tensors, seen) for i, item in enumerate(value)]}
    if isinstance(value, Mapping):
        items = [(key, _freeze(item, f"{place}.{key}", tensors, seen)) for key, item in value.items()]
        if all(isinstance(key, str) and key not in _TAGS for key, _ in items):
            return dict(items)
        return {"$dict": [[_freeze(key, place, tensors, seen), item] for key, item in items]}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        view = (value.data_ptr(), value.shape, value.stride(), value.dtype, value.device)
        name = seen.setdefault(view, place) if value.numel() else place  # tied weights are stored once
        tensors[name] = value
        return {"$tensor": name}
    raise TypeError(
        f"{place}: cannot save a {type(value).__name__}; save tensors, numbers, text, lists, dicts"
    )


def _thaw(value: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_thaw(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == {"$tensor"}:
        return tensors[value["$tensor"]]
    if value.keys() == {"$tuple"}:
        return tuple(_thaw(item, tensors) for item in value["$tuple"])
    if value.keys() == {"$dict"}:
        return {_thaw(key, tensors): _thaw(item, tensors) for key, item in value["$dict"]}
    return {key: _thaw(item, tensors) for key, item in value.items()}


def _write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    pointers = [tensor.untyped_storage().data_ptr() for tensor in plain.values()]
    if len(set(pointers)) != len(pointers):  # views that overlap: safetensors refuses them
        plain = {name: tensor.clone() for name, tensor in plain.items()}
    try:
        save_file(plain, path)
    except SafetensorError as error:
        raise OSError(f"{path.name}: {error}") from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _component(folder: Path, name: str, value: object) -> Any:
    path = folder / f"{name}.safetensors"
    if not path.exists():
        return _thaw(value, {})
    from safetensors.torch import load_file

    # load_file maps the file: a component that keeps a tensor would lean on those pages, unaligned, for good
    return _thaw(value, {at: tensor.clone() for at, tensor in load_file(path).items()})


def _random_state() -> dict[str, object]:
    """Every generator the process has; numpy's and torch's only where they were imported."""
    found: dict[str, object] = {"python": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        kind, keys, *rest = numpy.random.get_state()
        found["numpy"] = (kind, keys.tolist(), *rest)
    if torch is not None:
        found["torch"] = bytes(torch.get_rng_state().tolist()).hex()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            found["cuda"] = [bytes(state.tolist()).hex() for state in torch.cuda.get_rng_state_all()]
    return found


def _set_random_state(found: Mapping[str, Any]) -> None:
    random.setstate(found["python"])
    if "numpy" in found and "numpy" in sys.modules:
        import numpy

        kind, keys, *rest = found["numpy"]
        numpy.random.set_state((kind, numpy.asarray(keys, dtype=numpy.uint32), *rest))
    if "torch" in found:
        import torch

        as_tensor: Callable[[str], torch.Tensor] = lambda text: torch.tensor(  # noqa: E731
            list(bytes.fromhex(text)), dtype=torch.uint8
        )
        torch.set_rng_state(as_tensor(found["torch"]))
        if torch.cuda.is_available():  # elsewhere, or with other devices, the resume is state-exact
            for device, text in enumerate(found.get("cuda", [])[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(as_tensor(text), device)
