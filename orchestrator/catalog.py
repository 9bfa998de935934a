"""From a type and the user's options to an instance: what the catalogues of platforms and stores share.

Decides how options are checked and how their faults read. A type's code is imported when one of it is built.
Must never know which types there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

from pydantic import TypeAdapter, ValidationError

from orchestrator.core.wording import unknown
from orchestrator.errors import InputError


@dataclass(frozen=True)
class Entry:
    """A type: where the class of its options is, and what makes one from a name, checked options and what its
    catalogue adds. Each as `package.module:name`."""

    options: str
    make: str


def build(
    what: str, name: str, type: str, options: Mapping[str, object], types: Mapping[str, Entry], *more: object
) -> Any:
    """The platform or store (`what`) that a user configured as `name`. `more` goes to what makes it.

    Raises InputError with a line for every option at fault: what was given, what is valid, and the nearest.
    """
    if type not in types:
        raise InputError(f"{what} {name!r}: {unknown(f'type {type!r}', type, sorted(types))}")
    model: Any = resolve_name(types[type].options)
    known = sorted(each.name for each in fields(model)) if is_dataclass(model) else sorted(model.model_fields)
    faults = [unknown(f"option {key!r}", key, known) for key in options if key not in known]
    checked = None
    try:
        checked = TypeAdapter(model).validate_python({k: v for k, v in options.items() if k in known})
    except ValidationError as error:
        faults += _faults(error)
    if faults:
        raise InputError("\n".join(f"{what} {name!r} ({type}): {fault}" for fault in faults))
    return resolve_name(types[type].make)(name, checked, *more)


def _faults(error: ValidationError) -> Iterator[str]:
    for fault in error.errors():
        path = ".".join(map(str, fault["loc"]))
        if not path:  # of several options together
            yield fault["msg"].removeprefix("Value error, ")
            continue
        given = "" if fault["type"] == "missing" else f" (given: {fault['input']!r})"
        yield f"option {path!r}: {fault['msg']}{given}"
