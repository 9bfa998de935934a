"""Loads what torch.save and pickle wrote without running anything of it.

A pickle may name any function of any module. Here only the few that build tensors, arrays and containers
are real. Everything else becomes an `Opaque`, which keeps what it would be built from, so that two can be
compared. So a job's own classes need not be importable, and a job in a container cannot reach out of it.
"""

from __future__ import annotations

import importlib
import io
import pickle
import types
from functools import cache
from typing import Any

_REAL = {
    "builtins": {"set", "frozenset", "bytearray", "complex", "slice", "range", "list", "dict", "tuple", "int",
                 "float", "bool", "str", "bytes"},
    "collections": {"OrderedDict", "defaultdict", "Counter", "deque"},
    "_codecs": {"encode"},
    "torch": {"Size", "device", "dtype", "Tensor", "BFloat16Storage", "BoolStorage", "ByteStorage",
              "CharStorage", "ComplexDoubleStorage", "ComplexFloatStorage", "DoubleStorage", "FloatStorage",
              "HalfStorage", "IntStorage", "LongStorage", "ShortStorage"},
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter"},
    "torch.storage": {"TypedStorage", "UntypedStorage"},
    "torch.serialization": {"_get_layout"},
    "torch.nn.parameter": {"Parameter"},
    "numpy": {"ndarray", "dtype"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
}  # fmt: skip


class Opaque:
    """Something that is not built. `name`: the class or function that would build it."""

    name = ""
    given: tuple[Any, ...]
    named: dict[str, Any]
    state: Any
    items: list[Any]

    def __new__(cls, *given: Any, **named: Any) -> Opaque:
        self = super().__new__(cls)
        self.given, self.named, self.state, self.items = given, named, None, []
        return self

    def __init__(self, *_: Any, **__: Any) -> None:
        return

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.parts() == other.parts()

    def __hash__(self) -> int:
        return hash(self.name)

    def parts(self) -> Any:
        """All that was kept, in plain containers. Of most objects that is a table of their attributes."""
        if isinstance(self.state, dict) and not (self.given or self.named or self.items):
            return self.state
        return [list(self.given), self.named, self.state, self.items]


@cache
def _opaque(name: str) -> type[Opaque]:
    return type("Opaque", (Opaque,), {"name": name})


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _REAL.get(module, ()):
            return getattr(importlib.import_module(module), name)
        return _opaque(f"{module}.{name}")


def unpickled(data: bytes) -> Any:
    """Raises any exception for what is not one pickle and nothing else."""
    stream = io.BytesIO(data)
    found = _Unpickler(stream).load()
    if stream.read(1):
        raise ValueError("there is more after the pickle")
    return found


def of_torch(data: bytes) -> Any:
    """What torch.save wrote. Raises any exception, ImportError too."""
    import torch

    ours: Any = types.ModuleType("inert")
    ours.Unpickler = _Unpickler
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False, pickle_module=ours)
