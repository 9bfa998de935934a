"""Converts our frozen dataclasses to JSON and back, by type hints: one codec for orders, results and events.

Strict: a value of the wrong type raises ValueError with its path. Unknown keys are ignored, so that an older
version can read what a newer one wrote. Knows no class by name. Ships inside the agent.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints, overload

from orchestrator.core import bounds

T = TypeVar("T")


class NotFinite(float):
    """A number that is not finite, where a document may have one: for `parse_constant` of `json.loads`."""


_Reader = Callable[[object], Any]


def encode(value: object) -> bytes:
    """The value as compact ASCII JSON. Raises ValueError for a number that is not finite."""
    return json.dumps(to_json(value), separators=(",", ":"), allow_nan=False).encode()


def to_json(value: object) -> Any:
    """The value as dictionaries, lists, text, numbers, booleans and None; sets are sorted."""
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, str | int | float):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_json(getattr(value, name)) for name in _names(type(value))}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(to_json(key)): to_json(item) for key, item in value.items()}
    if isinstance(value, frozenset | set):
        return sorted(to_json(item) for item in value)
    raise TypeError(f"{type(value).__name__} cannot be encoded")


@cache
def _names(cls: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(cls))


@overload
def decode(cls: type[T], data: object) -> T: ...


@overload
def decode(cls: types.UnionType, data: object) -> Any: ...


def decode(cls: Any, data: object) -> Any:
    """The value in `data`, which is JSON bytes or the result of `json.loads`.

    `cls` may be a dataclass, or a union of dataclasses that differ in a `Literal` field. For any wrong bytes
    it raises ValueError, with the path of the first value that is missing or has the wrong type.
    """
    name = getattr(cls, "__name__", "value")
    try:
        if isinstance(data, bytes | bytearray):
            data = json.loads(data, parse_constant=_not_finite)
        return _reader(cls)(data)
    except _WrongError as wrong:
        path = "".join(reversed(wrong.path))
        raise ValueError(f"{name}{path}: {wrong.message}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{name}: not JSON ({error})") from error
    except ValueError as error:  # more digits than Python converts to a number
        raise ValueError(f"{name}: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{name}: nested too deeply") from error


class _WrongError(Exception):
    """Raised at the wrong value; each level above adds its part of the path."""

    def __init__(self, message: str) -> None:
        self.message = message
        self.path: list[str] = []


def _wrong(expected: str, found: object) -> NoReturn:
    shown = repr(found)
    raise _WrongError(f"expected {expected}, found {shown if len(shown) <= 60 else shown[:60] + '…'}")


def _at(step: str, read: _Reader, value: object) -> Any:
    try:
        return read(value)
    except _WrongError as wrong:
        wrong.path.append(step)
        raise


def _not_finite(constant: str) -> NoReturn:
    raise _WrongError(f"{constant} is not a finite number")


@cache
def _reader(hint: Any) -> _Reader:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in _SCALARS:
        return _SCALARS[hint]
    if origin in (Union, types.UnionType):
        return _union_reader(arguments)
    if origin is Literal:
        return _literal_reader(arguments)
    if origin is tuple:
        return _tuple_reader(arguments)
    if origin is frozenset:
        items = _tuple_reader((arguments[0], ...))
        return lambda value: frozenset(items(value))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(*arguments)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _literal_reader(tuple(hint))
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _dataclass_reader(hint)
    raise TypeError(f"{hint!r} cannot be decoded")


def _text(value: object) -> str:
    return value if isinstance(value, str) else _wrong("text", value)


def _truth(value: object) -> bool:
    return value if isinstance(value, bool) else _wrong("true or false", value)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        _wrong("a whole number", value)
    if abs(value) > bounds.WHOLE_MAX:
        raise _WrongError("expected a whole number of at most 128 bits, found a larger one")
    return value


def _number(value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) or isinstance(value, NotFinite):
            return number
    _wrong("a finite number", value)


def _nothing(value: object) -> None:
    if value is not None:
        _wrong("null", value)


_SCALARS: dict[Any, _Reader] = {
    str: _text,
    bool: _truth,
    int: _whole,
    float: _number,
    type(None): _nothing,
    Any: lambda value: value,
    object: lambda value: value,
}


def _union_reader(members: tuple[Any, ...]) -> _Reader:
    solid = tuple(m for m in members if m is not type(None))
    read = _reader(solid[0]) if len(solid) == 1 else _tagged_reader(solid)
    if len(solid) == len(members):
        return read
    return lambda value: None if value is None else read(value)


def _tagged_reader(members: tuple[type, ...]) -> _Reader:
    tags: dict[str, dict[object, type]] = {}
    for member in members:
        if not dataclasses.is_dataclass(member):
            raise TypeError(f"{member!r} in a union cannot be told apart")
        for name, hint in get_type_hints(member).items():
            if get_origin(hint) is Literal:
                for tag in get_args(hint):
                    assert tags.setdefault(name, {}).setdefault(to_json(tag), member) is member
    [(key, by_tag)] = (
        (name, table) for name, table in tags.items() if len(set(table.values())) == len(members)
    )

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            _wrong("an object", value)
        tag = value.get(key)
        member = by_tag.get(tag) if isinstance(tag, str | int) else None
        if member is None:
            _at(f".{key}", lambda found: _wrong(f"one of {', '.join(map(str, by_tag))}", found), tag)
        return _reader(member)(value)

    return read


def _literal_reader(choices: tuple[Any, ...]) -> _Reader:
    by_json = {(type(to_json(c)), to_json(c)): c for c in choices}
    valid = ", ".join(repr(to_json(c)) for c in choices)

    def read(value: object) -> Any:
        if isinstance(value, str | int | float) and (type(value), value) in by_json:
            return by_json[type(value), value]
        _wrong(f"one of {valid}", value)

    return read


def _tuple_reader(arguments: tuple[Any, ...]) -> _Reader:
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        item = _reader(arguments[0])

        def read_many(value: object) -> tuple[Any, ...]:
            if not isinstance(value, list | tuple):
                _wrong("a list", value)
            return tuple(_at(f"[{i}]", item, v) for i, v in enumerate(value))

        return read_many
    items = [_reader(a) for a in arguments]

    def read_fixed(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple) or len(value) != len(items):
            _wrong(f"a list of {len(items)}", value)
        return tuple(_at(f"[{i}]", item, v) for i, (item, v) in enumerate(zip(items, value, strict=True)))

    return read_fixed


def _mapping_reader(key_hint: Any, item_hint: Any) -> _Reader:
    key, item = _reader(key_hint), _reader(item_hint)

    def read(value: object) -> dict[Any, Any]:
        if not isinstance(value, dict):
            _wrong("an object", value)
        return {_at(f".{k}", key, k): _at(f".{k}", item, v) for k, v in value.items()}

    return read


def _dataclass_reader(cls: type) -> _Reader:
    hints = get_type_hints(cls)
    fields = [f for f in dataclasses.fields(cls) if f.init]
    required = [f.name for f in fields
                if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING]  # fmt: skip
    readers = [(f.name, f".{f.name}", hints[f.name]) for f in fields]

    def read(value: object) -> Any:
        if not isinstance(value, dict):
            _wrong("an object", value)
        missing = [name for name in required if name not in value]
        if missing:
            raise _WrongError(f"{', '.join(missing)} missing")
        return cls(**{name: _at(step, _reader(hint), value[name])
                      for name, step, hint in readers if name in value})  # fmt: skip

    return read
