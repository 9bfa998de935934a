"""Finds planted secrets wherever they may have got to: in files, archives, databases, processes and stores.

    leaks = Leaks({"key": "AKIA…", "refresh token": "1//…"})
    assert leaks.in_folder(home) == []
    assert leaks.in_processes(home) == []

Each method returns what it found and where. It finds a secret as it is, or as JSON, a URL, base64, hex or
UTF-16 writes it, also inside zip, tar, gzip, bz2, xz and SQLite, and in base64 of these. A test should also
expect a secret where one belongs, which proves that the scanner looks there. Shares no code with
`core/mask.py`, because it should show the gaps there. Must never know who may have a secret, nor change what
it looks at.
"""

from __future__ import annotations

import base64
import binascii
import bz2
import io
import json
import lzma
import os
import re
import sqlite3
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, quote_plus

from orchestrator.stores.store import Store

_CHARACTERS_MIN = 8  # a shorter secret would be found by chance
_PUBLIC = ("-----", "#")  # lines of a key file that say what it is, or the public key
_DEPTH_MAX = 8  # archives in archives
_UNPACKED_BYTES_MAX = 1 << 30
_SQLITE = b"SQLite format 3\0"
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{44,}={0,2}")
_LINE_ENDS = re.compile(rb"\\[rn]|\s+")


class Leak(NamedTuple):
    """A secret's name, and where it was: a path, `!` before what is inside an archive or database."""

    secret: str
    where: str


class Leaks:
    """Looks for these secrets, name → value. A value of several lines is also found by each of its lines."""

    def __init__(self, secrets: Mapping[str, str]) -> None:
        assert secrets, "nothing to look for"
        assert all(len(value) >= _CHARACTERS_MIN for value in secrets.values()), "too short to look for"
        self._forms = {name: frozenset(_forms(value)) for name, value in secrets.items()}

    def in_text(self, where: str, text: str) -> list[Leak]:
        """For a log, a message, or what a command printed."""
        return self.in_data(where, text.encode())

    def in_data(self, where: str, data: bytes) -> list[Leak]:
        return _sorted(self._found(where, data))

    def in_folder(self, folder: Path) -> list[Leak]:
        """In every file below, its name and where it links to. Places are relative to the folder. A database
        that is in use is read with what its log has. Files may come and go meanwhile."""
        return _sorted(
            leak
            for path in _below(folder)
            for leak in self._in_path(path, path.relative_to(folder).as_posix())
        )

    def in_processes(self, folder: Path) -> list[Leak]:
        """In the arguments, the environment and the open but deleted files of every running process that
        names the folder or works below it. Places begin with the kind: `environ of python train.py`. Of a
        process that hides from this user, such as an uplink, only root sees more than the arguments."""
        return _sorted(leak for pid in _pids_of(folder) for leak in self._in_process(pid))

    def in_store(self, store: Store) -> list[Leak]:
        """In every object and register, and in their keys."""
        return _sorted(
            leak
            for key, data in (*_objects(store), *_registers(store))
            for leak in (*self._found(key, data), *self._found(key, key.encode()))
        )

    # --- How ------------------------------------------------------------------------------------------------

    def _found(self, where: str, data: bytes, depth: int = 0) -> Iterator[Leak]:
        for name, forms in self._forms.items():
            if any(form in data for form in forms):
                yield Leak(name, where)
        if depth < _DEPTH_MAX:
            for inside, content in _unpacked(data):
                yield from self._found(f"{where}!{inside}", content, depth + 1)

    def _in_path(self, path: Path, where: str) -> Iterator[Leak]:
        yield from self._found(where, path.name.encode())
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                yield from self._found(where, os.fsencode(os.readlink(path)))  # noqa: PTH115 - as it is written
            elif stat.S_ISREG(mode):
                data = path.read_bytes()
                yield from self._found(where, data)
                if data.startswith(_SQLITE):
                    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as database:
                        yield from self._in_cells(where, database)

    def _in_cells(self, where: str, database: sqlite3.Connection) -> Iterator[Leak]:
        for table, cell in _cells(database):
            yield from self._found(f"{where}!{table}", cell)

    def _in_process(self, pid: int) -> Iterator[Leak]:
        place = Path("/proc", str(pid))
        arguments = _told(place / "cmdline")
        said = arguments.replace(b"\0", b" ").decode(errors="replace").strip()
        yield from self._found(f"cmdline of {said}", arguments)
        yield from self._found(f"environ of {said}", _told(place / "environ"))
        with suppress(OSError):  # it has ended
            for open_file in (place / "fd").iterdir():
                with suppress(OSError):
                    if " (deleted)" in str(open_file.readlink()) and open_file.is_file():
                        yield from self._found(f"open file of {said}", open_file.read_bytes())


def _below(folder: Path) -> Iterator[Path]:
    """Everything below a folder; what vanishes meanwhile is left out."""

    def met(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            raise error

    for here, folders, files in os.walk(folder, onerror=met):
        yield from (Path(here, name) for name in (*folders, *files))


def _sorted(found: Iterable[Leak]) -> list[Leak]:
    return sorted(set(found))


# --- What a secret looks like -----------------------------------------------------------------------------


def _forms(value: str) -> Iterator[bytes]:
    lines = {line.strip() for line in value.splitlines()}
    telling = {line for line in lines if len(line) >= 2 * _CHARACTERS_MIN and not line.startswith(_PUBLIC)}
    for part in {value, *telling}:
        yield from (text.encode() for text in _written(part))
        for raw in (part.encode(), part.encode("utf-16-le")):
            yield from (raw, raw.hex().encode(), raw.hex().upper().encode())
            yield from _in_base64(raw)


def _written(part: str) -> Iterator[str]:
    """As JSON, JSON in JSON, Python and URLs write it."""
    for as_json in (json.dumps(part)[1:-1], json.dumps(part, ensure_ascii=False)[1:-1]):
        yield from (as_json, as_json.replace("/", "\\/"), json.dumps(as_json)[1:-1])
    yield repr(part)[1:-1]
    for quoted in (quote(part, safe=""), quote(part), quote_plus(part)):
        yield from (quoted, re.sub("%..", lambda found: found[0].lower(), quoted))


def _in_base64(raw: bytes) -> Iterator[bytes]:
    """The characters that depend on these bytes alone, whatever comes before and after them."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + raw)
        inner = encoded[-(-before * 8 // 6) : (before + len(raw)) * 8 // 6]
        yield from (inner, inner.replace(b"+", b"-").replace(b"/", b"_"))


# --- What is inside data ----------------------------------------------------------------------------------


def _unpacked(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What an archive, a compressed file, a database or base64 holds. Nothing if it is none, or damaged."""
    for start, unpack in _PACKED.items():
        if data.startswith(start):
            with suppress(OSError, EOFError, ValueError, zlib.error, lzma.LZMAError):
                yield "unpacked", _bounded(unpack(data))
    yield from _in_zip(data)
    if data[257:262] == b"ustar":
        yield from _in_tar(data)
    if data.startswith(_SQLITE):
        yield from _database(data)
    yield from _decoded(data)


_PACKED: Mapping[bytes, Callable[[bytes], bytes]] = {
    b"\x1f\x8b": lambda data: zlib.decompressobj(31).decompress(data),  # also the beginning of a file
    b"BZh": bz2.decompress,
    b"\xfd7zXZ": lzma.decompress,
    b"\x78\x01": zlib.decompress,
    b"\x78\x9c": zlib.decompress,
    b"\x78\xda": zlib.decompress,
}


def _in_zip(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Also behind a program, as in agent.pyz."""
    damaged = (zipfile.BadZipFile, EOFError, zlib.error, NotImplementedError)
    with suppress(*damaged), zipfile.ZipFile(io.BytesIO(data)) as archive:
        for member in archive.infolist():
            with suppress(*damaged):
                yield member.filename, _bounded(archive.read(member))


def _in_tar(data: bytes) -> Iterator[tuple[str, bytes]]:
    with suppress(tarfile.TarError), tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            file = archive.extractfile(member) if member.isreg() else None
            if file is not None:
                yield member.name, _bounded(file.read())


def _bounded(data: bytes) -> bytes:
    assert len(data) < _UNPACKED_BYTES_MAX, "too large to look through"
    return data


def _database(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A copy of a database. Its header says that there is no write-ahead log, as there is none in memory."""
    with suppress(sqlite3.DatabaseError), closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(data[:18] + b"\1\1" + data[20:])
        yield from _cells(database)


def _cells(database: sqlite3.Connection) -> Iterator[tuple[str, bytes]]:
    tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        for row in database.execute(f'SELECT * FROM "{table}"'):
            for cell in row:
                if isinstance(cell, str | bytes):
                    yield table, cell.encode() if isinstance(cell, str) else cell


def _decoded(data: bytes) -> Iterator[tuple[str, bytes]]:
    """What long runs of base64 stand for, also where their lines are broken."""
    joined = _LINE_ENDS.sub(b"", data)
    for run in {found for text in (data, joined) for found in _BASE64.findall(text)}:
        text = run.rstrip(b"=").replace(b"-", b"+").replace(b"_", b"/")
        with suppress(binascii.Error):
            yield "base64", base64.b64decode(text[: len(text) - (len(text) % 4 == 1)] + b"===")


# --- Processes and stores ---------------------------------------------------------------------------------


def _pids_of(folder: Path) -> Iterator[int]:
    named = os.fsencode(folder)
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != os.getpid():
            told = _told(place / "cmdline") + _told(place / "environ")
            with suppress(OSError):
                if named in told or os.fsencode((place / "cwd").readlink()).startswith(named):
                    yield int(place.name)


def _told(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError:  # it has ended, or hides from us
        return b""


def _objects(store: Store) -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as folder:
        for each in store.list(""):
            store.get(each.key, Path(folder, "object"))
            yield each.key, Path(folder, "object").read_bytes()


def _registers(store: Store) -> Iterator[tuple[str, bytes]]:
    registers = store.registers
    for key in registers.list("") if registers is not None else ():
        held = registers.read(key) if registers is not None else None
        if held is not None:
            yield key, held.value
