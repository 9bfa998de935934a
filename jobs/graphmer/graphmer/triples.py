"""A knowledge graph from JSONL with one fact per line, and from the code that the facts are about.

Decides which text a fact is read with. Reports every error with its line. Must never know how facts are
encoded or used for training.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from graphmer.graph import Graph, Passage, Triple, cut, order_of

WINDOW = 64  # lines of a file that form a passage
_TOLD = 20  # reported errors
_WITHOUT = -1  # the window of a fact without a file
_KEYS = ("head", "relation", "tail", "qualifiers")


@dataclass(frozen=True)
class _Place:
    """The window of a file that a fact is read with; for a fact without a file, its head and _WITHOUT."""

    module: str
    window: int


def read(path: Path, code: Path, limit: int | None = None) -> Graph:
    """Reads at most `limit` facts `{"head", "relation", "tail", "qualifiers"}`, with text from `code`.

    `qualifiers` is optional and may name the file (`file` or `path`, below `code`) and the `line`, from 1.
    The fact belongs to the passage of WINDOW lines around that line, and a split keeps each file together. A
    fact without a file belongs to a passage whose text is the head's name. A repeated fact is read once. As
    in `graph.build`, files come in the order of their hashes, so that a cut is a fair sample. Raises
    ValueError with up to 20 errors and their lines, or if there is no fact.
    """
    files = _Files(code)
    facts: dict[_Place, dict[Triple, None]] = {}
    faults = []
    seen = set()
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        try:
            triple, place = _fact(line, files)
        except (ValueError, RecursionError) as error:
            faults.append(f"{path}:{number}: {error}")
            continue
        if triple not in seen:
            seen.add(triple)
            facts.setdefault(place, {})[triple] = None
    if faults:
        more = [f"and {len(faults) - _TOLD} more"] if len(faults) > _TOLD else []
        raise ValueError("\n".join(faults[:_TOLD] + more))
    if not facts:
        raise ValueError(f"{path}: no fact")
    places = sorted(facts, key=lambda place: (order_of(place.module), place.window))
    return Graph(tuple(cut((_passage(place, tuple(facts[place]), files) for place in places), limit)))


class _Files:
    """The code's files by name, each read once. Raises ValueError for a file outside the
    folder or without text."""

    def __init__(self, code: Path) -> None:
        self._code = code.resolve()
        self._known: dict[str, tuple[str, list[str]]] = {}

    def read(self, name: str) -> tuple[str, list[str]]:
        """The canonical name of the file, however it was written, and its lines."""
        if name not in self._known:
            path = (self._code / name).resolve()
            if not path.is_relative_to(self._code):
                raise ValueError(f"file {name!r} is outside {self._code.name}")
            try:
                lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
                raise ValueError(f"file {name!r} cannot be read: {reason}") from error
            self._known[name] = path.relative_to(self._code).as_posix(), lines
        return self._known[name]


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: it is not UTF-8: {error}") from error


def _fact(line: str, files: _Files) -> tuple[Triple, _Place]:
    given = json.loads(line)
    if not isinstance(given, dict):
        raise ValueError("expected an object")
    if unknown := sorted(given.keys() - set(_KEYS)):
        raise ValueError(f"unknown {', '.join(unknown)}; known are {', '.join(_KEYS)}")
    head, relation, tail = (_name(given, key) for key in _KEYS[:3])
    qualifiers = {} if given.get("qualifiers") is None else given["qualifiers"]
    if not isinstance(qualifiers, dict):
        raise ValueError(f"qualifiers: expected an object, not {qualifiers!r}")
    return Triple(head, relation, tail), _place(head, qualifiers, files)


def _name(given: Mapping[str, Any], key: str) -> str:
    name = given.get(key)
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"{key}: expected a name, not {name!r}")
    if "\0" in name or any("\ud800" <= mark <= "\udfff" for mark in name):
        raise ValueError(f"{key}: {name!r} is not valid text")
    return name


def _place(head: str, qualifiers: Mapping[str, Any], files: _Files) -> _Place:
    file, line = qualifiers.get("file", qualifiers.get("path")), qualifiers.get("line")
    if line is not None and (not isinstance(line, int) or isinstance(line, bool) or line < 1):
        raise ValueError(f"line: expected a number from 1, not {line!r}")
    if file is None:
        return _Place(head, _WITHOUT)
    if not isinstance(file, str) or not file or "\0" in file:
        raise ValueError(f"file: expected a path, not {file!r}")
    module, lines = files.read(file)
    if line is not None and line > len(lines):
        raise ValueError(f"line: {file} has {len(lines)} lines, not {line}")
    return _Place(module, ((line or 1) - 1) // WINDOW)


def _passage(place: _Place, facts: tuple[Triple, ...], files: _Files) -> Passage:
    if place.window == _WITHOUT:
        return Passage(place.module, place.module, place.module, facts)
    first = place.window * WINDOW
    text = "\n".join(files.read(place.module)[1][first : first + WINDOW])
    return Passage(place.module, f"{place.module}:{first + 1}", text or facts[0].head, facts)
