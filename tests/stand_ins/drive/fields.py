"""Google's `fields` parameter: an answer has only what was asked for (docs/references/drive.md#fields)."""

from __future__ import annotations

from typing import Any


def filtered(value: Any, fields: str) -> Any:
    """The parts of a JSON value that a selector such as `id,labels/trashed,items(id,title)` names."""
    if not fields:
        return value
    if isinstance(value, list):
        return [filtered(each, fields) for each in value]
    kept: dict[str, Any] = {}
    for name, rest in _split(fields):
        if name in value:
            kept[name] = filtered(value[name], rest)
    return kept


def _split(fields: str) -> list[tuple[str, str]]:
    """The top level of a selector: each name, with the selector below it."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(f"{fields},"):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            found.append(fields[start:place])
            start = place + 1
    return [_one(each) for each in found]


def _one(selector: str) -> tuple[str, str]:
    slash, bracket = selector.find("/"), selector.find("(")
    if bracket >= 0 and (slash < 0 or bracket < slash):
        return selector[:bracket], selector[bracket + 1 : -1]
    name, _, rest = selector.partition("/")
    return name, rest
