"""Fills in a Dockerfile's build arguments (`$NAME`, `${NAME:-other}`, `${NAME:+other}`), with size limits.

Arguments that name each other can double with every line: thirty lines make a gigabyte. Must never know a
file, an engine or where a value came from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

VALUE_CHARS_MAX = 64 * 1024
REFERENCE_CHARS_MAX = 4096  # an image's name: registries allow 255 characters, a tag 128
_DEPTH_MAX = 50
_HALVES_MAX = 3  # the first round turns `${NAME:-${OTHER}}` into `${OTHER}`
_REFERENCE = re.compile(r"\$(?:\{(\w+)(?::([-+])([^}]{0,4096}))?\}|(\w+))")


class TooLong(ValueError):
    """The filled-in text would be longer than allowed."""


def filled(text: str, values: Mapping[str, str], chars_max: int = VALUE_CHARS_MAX) -> str:
    """The text with each reference replaced once; a name without a value becomes empty. Raises TooLong."""
    parts: list[str] = []
    size = end = 0
    for match in _REFERENCE.finditer(text):
        found = (text[end : match.start()], _value(match, values))
        parts += found
        size += sum(map(len, found))
        end = match.end()
        if size > chars_max:
            raise TooLong(f"longer than {chars_max:,} characters with its arguments filled in")
    parts.append(text[end:])
    if size + len(parts[-1]) > chars_max:
        raise TooLong(f"longer than {chars_max:,} characters with its arguments filled in")
    return "".join(parts)


def _value(match: re.Match[str], values: Mapping[str, str]) -> str:
    name, sign, other = match.group(1) or match.group(4), match.group(2), match.group(3) or ""
    if sign == "+":
        return other if values.get(name) else ""
    return values.get(name) or (other if sign == "-" else "")


def reference(written: str, values: Mapping[str, str]) -> str:
    """An image's name with its arguments filled in, also if a value names another argument.

    An argument that names itself becomes empty. Raises TooLong.
    """
    known: dict[str, str] = {}
    for _ in range(_HALVES_MAX):
        written = _resolved(written, values, known, ())
        if _REFERENCE.search(written) is None:
            break
    return written


def _resolved(text: str, values: Mapping[str, str], known: dict[str, str], above: tuple[str, ...]) -> str:
    """`known` gathers the values without references in them, so that each is filled in once."""
    if len(above) > _DEPTH_MAX:
        raise TooLong(f"more than {_DEPTH_MAX} levels of arguments that name each other")
    for match in _REFERENCE.finditer(text):
        name = match.group(1) or match.group(4)
        if name in values and name not in known and name not in above:
            known[name] = _resolved(values[name], values, known, (*above, name))
    return filled(text, known, REFERENCE_CHARS_MAX)
