"""Safe local names for files that a session named: no control characters, no leading dash, not too long.

Decides the name of a checkpoint's file when it is pulled; inside sessions it keeps its own name. Pure: reads
no folder. Must never give two files the same name.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable

PIECE_BYTES_MAX = 255
_MARK_DIGITS = 8


def local_names(paths: Iterable[str]) -> dict[str, str]:
    """Path → local path, piece by piece.

    Unsafe characters of a piece are percent-encoded. A piece that is too long or already taken gets a hash at
    its end. All paths belong to one checkpoint, so none is the folder of another.
    """
    pieces = {path: path.split("/") for path in sorted(paths)}
    found: dict[str, list[str]] = {path: [] for path in pieces}
    folders = (
        [list(pieces)] if pieces else []
    )  # each by the paths in it, whose folders have their local names already
    while folders:
        inside = folders.pop()
        depth = len(found[inside[0]])
        below: defaultdict[str, list[str]] = defaultdict(list)
        for path in inside:
            below[pieces[path][depth]].append(path)
        names = _fitted(set(below))
        for piece, there in below.items():
            for path in there:
                found[path].append(names[piece])
            if deeper := [path for path in there if len(pieces[path]) > depth + 1]:
                folders.append(deeper)
    return {path: "/".join(local) for path, local in found.items()}


def _fitted(pieces: set[str]) -> dict[str, str]:
    """The pieces of one folder, each with its local name. Safe pieces keep their names."""
    given = {piece: piece for piece in pieces if _encoded(piece) == piece and _fits(piece)}
    taken = set(given)
    for piece in sorted(pieces - taken):
        name, digits = _encoded(piece), _MARK_DIGITS
        while name in taken or not _fits(name):
            mark = f"~{hashlib.sha256(_bytes(piece)).hexdigest()[:digits]}"
            kept = _bytes(_encoded(piece))[: PIECE_BYTES_MAX - len(mark)]
            name, digits = kept.decode(errors="ignore") + mark, digits + 1
        given[piece] = name
        taken.add(name)
    return given


def _encoded(piece: str) -> str:
    """Percent-encodes characters that control a terminal, are invisible, look like an option's dash, or are
    spaces at the end."""
    last = len(piece.rstrip(" "))
    return "".join(
        character if character.isprintable() and at < last and not (at == 0 and character == "-")
        else "".join(f"%{byte:02x}" for byte in _bytes(character))
        for at, character in enumerate(piece)
    )  # fmt: skip


def _fits(name: str) -> bool:
    return len(_bytes(name)) <= PIECE_BYTES_MAX


def _bytes(text: str) -> bytes:
    """The bytes of the file's name in the session (PEP 383)."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
