"""Values that are neither tensors nor plain JSON: numpy arrays and scalars, sets, bytes, random generators.

Each becomes a mapping with one key, its tag. The bytes of a large array go where tensors go. Must never know
when anything is saved. Imports numpy and torch only if the script did.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

BYTES, SET, FROZENSET, ARRAY, SCALAR, GENERATOR = (
    "$bytes", "$set", "$frozenset", "$array", "$scalar", "$generator",
)  # fmt: skip
TAGS = (BYTES, SET, FROZENSET, ARRAY, SCALAR, GENERATOR)
_INLINE_BYTES_MAX = 1024
_KEPT_KINDS = "biufcSUmM"  # numpy's kinds without Python objects inside

Put = Callable[[str, "torch.Tensor"], "str | list[str]"]


def freeze(value: object, place: str, put: Put) -> dict[str, Any] | None:
    """The value as JSON; None if it is of no kind that this module knows. `put` takes tensors of bytes.

    Raises TypeError for an array that holds Python objects.
    """
    if isinstance(value, bytes | bytearray):
        return {BYTES: bytes(value).hex()}
    if isinstance(value, set | frozenset):
        tag = SET if isinstance(value, set) else FROZENSET
        return {tag: sorted((_member(each, place) for each in value), key=repr)}
    if (state := generator_state(value)) is not None:
        return {GENERATOR: state}
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    if isinstance(value, numpy.generic) and value.dtype.kind in _KEPT_KINDS:
        return {SCALAR: [value.dtype.str, value.tobytes().hex()]}
    if isinstance(value, numpy.ndarray):
        return {ARRAY: _array(value, place, put)}
    return None


def thaw(tag: str, value: Any, bytes_of: Callable[[Any], bytes]) -> Any:
    """The value of a tag. `bytes_of` gives back what `put` had taken."""
    if tag == BYTES:
        return bytes.fromhex(value)
    if tag in (SET, FROZENSET):
        members = (tuple(each) if isinstance(each, list) else each for each in value)
        return set(members) if tag == SET else frozenset(members)
    if tag == GENERATOR:
        return _new_generator(value)
    import numpy

    if tag == SCALAR:
        kind, data = value
        return numpy.frombuffer(bytes.fromhex(data), dtype=numpy.dtype(kind))[0]
    kind, shape, data = value
    raw = bytes.fromhex(data) if isinstance(data, str) else bytes_of(data)
    return numpy.frombuffer(bytearray(raw), dtype=numpy.dtype(kind)).reshape(shape)


def _member(value: object, place: str) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple):
        return [_member(each, place) for each in value]
    raise TypeError(f"{place}: cannot save a set with a {type(value).__name__} in it")


def _array(array: Any, place: str, put: Put) -> list[Any]:
    if array.dtype.kind not in _KEPT_KINDS:
        raise TypeError(f"{place}: cannot save a numpy array of {array.dtype}; save numbers or text")
    data = array.tobytes()
    torch = sys.modules.get("torch")
    if torch is None or len(data) <= _INLINE_BYTES_MAX:
        return [array.dtype.str, list(array.shape), data.hex()]
    tensor = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return [array.dtype.str, list(array.shape), {"$tensor": put(place, tensor)}]


# --- Random generators ----------------------------------------------------------------------------------


def generator_state(value: object) -> list[Any] | None:
    """The state of a random generator that a script made, as JSON; None for anything else."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Generator):
        return ["torch", str(value.device), bytes(value.get_state().tolist()).hex()]
    if numpy is not None and isinstance(value, numpy.random.Generator):
        return ["numpy", type(value.bit_generator).__name__, _plain(value.bit_generator.state)]
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        return ["numpy-legacy", "", _plain(value.get_state(legacy=False))]
    if isinstance(value, random.Random):
        version, numbers, gauss = value.getstate()
        return ["python", "", [version, list(numbers), gauss]]
    return None


def set_generator(generator: Any, state: list[Any]) -> None:
    """Restores a generator in place. Raises ValueError for the state of another kind of generator."""
    kind, detail, saved = state
    now = generator_state(generator)
    if now is None or now[0] != kind or (kind == "numpy" and now[1] != detail):
        raise ValueError(f"the checkpoint has the state of another random generator ({kind} {detail})")
    if kind == "torch":
        import torch

        generator.set_state(torch.tensor(list(bytes.fromhex(saved)), dtype=torch.uint8))
    elif kind == "numpy":
        generator.bit_generator.state = _with_arrays(saved)
    elif kind == "numpy-legacy":
        generator.set_state(_with_arrays(saved))
    else:
        version, numbers, gauss = saved
        generator.setstate((version, tuple(numbers), gauss))


def _new_generator(state: list[Any]) -> Any:
    kind, detail, _ = state
    made: Any
    if kind == "torch":
        import torch

        made = torch.Generator(detail)
    elif kind in ("numpy", "numpy-legacy"):
        import numpy

        made = (
            numpy.random.Generator(getattr(numpy.random, detail)())
            if kind == "numpy"
            else numpy.random.RandomState()
        )
    else:
        made = random.Random()
    set_generator(made, state)
    return made


def _plain(value: Any) -> Any:
    """numpy's state with its arrays as lists."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        return {"array": [value.dtype.str, value.tolist()]} if getattr(value, "ndim", 0) else value.tolist()
    return value


def _with_arrays(value: Any) -> Any:
    import numpy

    if not isinstance(value, dict):
        return value
    if value.keys() == {"array"}:
        kind, numbers = value["array"]
        return numpy.array(numbers, dtype=numpy.dtype(kind))
    return {key: _with_arrays(each) for key, each in value.items()}
