"""Which types of store there are, and how the user's options become one.

A type is one line here and one module, imported when it is used, that has `Options` (a frozen dataclass)
and `configured`. Must never know what a store does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from orchestrator.errors import InputError

if TYPE_CHECKING:
    from orchestrator.stores.store import Store

TYPES: Mapping[str, str] = {
    "folder": "orchestrator.stores.folder",
}


class _StoreModule(Protocol):
    Options: type[Any]

    def configured(self, name: str, options: Any, home: Path) -> Store: ...


def build(name: str, type_: str, options: Mapping[str, object], home: Path) -> Store:
    """The store a user configured as `name`, bare: wrappers are the caller's.

    `home` is the orchestrator's own folder, which relative paths refer to. Touches nothing outside. Raises
    InputError naming every option at fault, what was given, and what is valid.
    """
    if type_ not in TYPES:
        raise InputError(f"store {name!r}: there is no type {type_!r}; {_choices(type_, TYPES)}")
    module = cast(_StoreModule, import_module(TYPES[type_]))
    validated = _validated(f"store {name!r} (type {type_})", module.Options, options)
    return module.configured(name, validated, home)


def _validated(owner: str, model: type[Any], options: Mapping[str, object]) -> Any:
    from pydantic import TypeAdapter, ValidationError

    valid = [field.name for field in dataclasses.fields(model)]
    faults = [f"there is no option {key!r}; {_choices(key, valid)}" for key in options if key not in valid]
    validated = None
    try:
        validated = TypeAdapter(model).validate_python(dict(options))
    except ValidationError as error:
        for fault in error.errors():
            given = "" if fault["type"] == "missing" else f" (given: {fault['input']!r})"
            faults.append(f"option {'.'.join(map(str, fault['loc']))!r}: {fault['msg']}{given}")
    if faults:
        raise InputError("\n".join(f"{owner}: {fault}" for fault in faults))
    return validated


def _choices(given: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    nearest = get_close_matches(given, names, n=1)
    hint = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{hint}valid: {', '.join(names) or 'none'}"
