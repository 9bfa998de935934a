"""Builds an instance from a type and the user's options. Shared by the catalogues of platforms and stores.

Decides how options are checked and how mistakes in them are reported. Imports a type's code only when one is
built. Must never know which types exist.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.user import NoHome, expanded


@dataclass(frozen=True)
class Entry:
    """A type: the class of its options, and the function that makes one from a name, checked options and what
    its catalogue adds. Each as `package.module:name`."""

    options: str
    make: str


def build(
    what: str,
    name: str,
    type: str,
    options: Mapping[str, object],
    types: Mapping[str, Entry],
    *more: object,
    also: tuple[str, ...] = (),
) -> Any:
    """The platform or store (`what`) that a user configured as `name`. `more` is passed to its maker.
    `also`: options that the caller has taken out, which a message lists as valid.

    Raises InputError as `checked` does.
    """
    found = checked(what, name, type, options, types, also=also)
    return resolve_name(types[type].make)(name, found, *more)


def checked(
    what: str,
    name: str,
    type: str,
    options: Mapping[str, object],
    types: Mapping[str, Entry],
    *,
    also: tuple[str, ...] = (),
) -> Any:
    """The checked options, defaults included, without what is built from them.

    Raises InputError with a line for every wrong option: what was given, what is valid, and the closest name.
    """
    if type not in types:
        raise InputError(f"{what} {name!r}: {unknown(f'type {type!r}', type, sorted(types))}")
    model: Any = resolve_name(types[type].options)
    known = sorted(each.name for each in fields(model)) if is_dataclass(model) else sorted(model.model_fields)
    valid = (*known, *also)
    mistakes = [unknown(f"option {key!r}", key, valid) for key in options if key not in known]
    found = None
    try:
        found = TypeAdapter(model).validate_python({k: v for k, v in options.items() if k in known})
    except ValidationError as error:
        mistakes += _mistakes(error)
    mistakes += _homeless(found)
    if mistakes:
        raise InputError("\n".join(f"{what} {name!r} ({type}): {mistake}" for mistake in mistakes))
    return found


def _homeless(options: object) -> Iterator[str]:
    """A line for every path whose home folder is not known."""
    for name, value in _values(options):
        if isinstance(value, Path):
            try:
                expanded(value)
            except NoHome as error:
                yield f"option {name!r}: {error} (given: {str(value)!r})"
        else:
            yield from _homeless(value)


def _values(options: object) -> Iterator[tuple[str, object]]:
    if isinstance(options, BaseModel):
        yield from options
    elif is_dataclass(options):
        yield from ((each.name, getattr(options, each.name)) for each in fields(options))


def _mistakes(error: ValidationError) -> Iterator[str]:
    for mistake in error.errors():
        path = ".".join(map(str, mistake["loc"]))
        text = mistake["msg"].removeprefix("Value error, ")  # raised by our own validators
        if not path:  # concerns several options together
            yield text
            continue
        given = "" if mistake["type"] == "missing" else f" (given: {mistake['input']!r})"
        yield f"option {path!r}: {text}{given}"
