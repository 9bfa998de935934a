"""Freezes a job's source into one archive, named by its content. The same files give the same bytes.

Decides what is included: the files that git would include, at most 100 MB, nothing that looks like a
credential, nothing from outside the folder. Must never know specs, runs or where the archive goes from here.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import os
import re
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from orchestrator.core import credentials
from orchestrator.core.checkpoint import safe_path
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError
from orchestrator.files import PLAIN, draft_file

BYTES_MAX = 100 * 1000 * 1000
ENTRIES_MAX = 100_000
_ALWAYS_OUT = frozenset({".git", "__pycache__"})
_NAMED = 10
_READ_ATTEMPTS = 5
# With more wildcards, a hostile file name could take hours to match (Python's expressions backtrack).
_WILD_MAX, _WILD_SEGMENT_MAX = 6, 4
_WILD = re.compile(r"\*+")


@dataclass(frozen=True)
class _Entry:
    """One entry of the archive: a file with its size when it was found, a file with given content, or a link
    with its target."""

    name: str
    path: Path
    size: int = 0
    link: str | None = None
    given: bytes | None = None


class _Mistakes:
    """Everything that must not be included, collected so that one error can name it all."""

    def __init__(self) -> None:
        self.credentials: list[str] = []
        self.others: list[str] = []

    def refuse(self, name: str, why: str) -> None:
        self.others.append(f"{_plain(name)}: {why}")

    def raise_any(self, place: Path) -> None:
        told = self.others[:_NAMED]
        if len(self.others) > _NAMED:
            told.append(f"and {len(self.others) - _NAMED} more that cannot be included")
        if self.credentials:
            told.append(
                f"looks like credentials: {_some(self.credentials)}; put them into .gitignore, or, if they "
                "are not credentials, list them under `source_allow` in the spec"
            )
        if told:
            raise InputError("\n".join(f"{place}: {line}" for line in told))


def freeze(
    source: Path | None,
    into: Path,
    *,
    allow: Collection[str] = (),
    also: Mapping[str, Path | bytes] | None = None,
) -> str:
    """Writes `<into>/<sha256>.tar.gz` and returns the sha256 of its bytes. The file is durable by then.

    `source` is included as far as the `.gitignore` files allow: its own, those below it, and those above it
    up to the repository. None includes no source. `allow` are paths in it that only look like credentials.
    `also` maps paths in the archive to further files, or to their content; these are included whatever
    `.gitignore` says. If the archive exists already, nothing changes. Raises InputError that names everything
    that must not or cannot be included.
    """
    mistakes = _Mistakes()
    entries = {} if source is None else {e.name: e for e in _walk(source, into, mistakes)}
    for name, path in (also or {}).items():
        entries[name] = _given(name, path)
    place = source or into
    _check_size(place, list(entries.values()))
    for name, entry in entries.items():
        if credentials.in_name(name) and name not in allow and name not in (also or {}):
            mistakes.credentials.append(name)
        elif not safe_path(name) or not _encodable(name):
            mistakes.refuse(name, "a name with backslashes or not in UTF-8 does not work on every platform")
        elif entry.link is not None and entry.link not in entries and not _is_parent(entry.link, entries):
            mistakes.refuse(name, f"a link to {_plain(entry.link)}, which is not included")
    mistakes.raise_any(place)
    return _publish(place, [entries[name] for name in sorted(entries)], into, frozenset(allow))


# --- What is included -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Ignore:
    """One .gitignore file: its patterns, and the path from its folder down to the source (`above`), or from
    the source down to its folder (`below`). At least one of the two is empty."""

    spec: GitIgnoreSpec
    above: str = ""
    below: str = ""

    def leaves_out(self, name: str) -> bool | None:
        """True: ignored; False: included by an exception; None: the file says nothing."""
        return self.spec.check_file(self.above + name[len(self.below) :]).include


def _walk(source: Path, into: Path, mistakes: _Mistakes) -> Iterator[_Entry]:
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; `source` must name the folder of the code")
    root = source.resolve()
    out = into.resolve()
    stack: list[tuple[str, Path, tuple[_Ignore, ...]]] = [("", root, _ignores_above(root))]
    seen = 0
    while stack:
        prefix, folder, ignores = stack.pop()
        ignores = (*ignores, *_ignores_of(folder, below=prefix))
        for found in _list(folder):
            seen += 1
            if seen > ENTRIES_MAX:
                raise InputError(
                    f"{source}: more than {ENTRIES_MAX} files; put what is not code into .gitignore"
                )
            name = prefix + found.name
            is_folder = found.is_dir(follow_symlinks=False)
            if found.name in _ALWAYS_OUT or _ignored(name + "/" * is_folder, ignores):
                continue
            path = folder / found.name
            if not is_folder:
                yield from _entry(name, path, root, mistakes)
            elif path != out:
                stack.append((name + "/", path, ignores))


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error


def _ignored(name: str, ignores: tuple[_Ignore, ...]) -> bool:
    """Like git: of the files that say anything, the one nearest to the path decides."""
    answers = (ignore.leaves_out(name) for ignore in reversed(ignores))
    return next((answer for answer in answers if answer is not None), False)


def _ignores_above(root: Path) -> tuple[_Ignore, ...]:
    """The .gitignore files of the folders above, up to the repository. One that ignores the source itself
    does not count, because the user named the source explicitly."""
    folders = (root, *root.parents)
    repository = next((n for n, folder in enumerate(folders) if (folder / ".git").exists()), 0)
    found: list[_Ignore] = []
    for folder in reversed(folders[1 : repository + 1]):
        above_source = root.relative_to(folder).as_posix() + "/"
        found += [i for i in _ignores_of(folder, above=above_source) if i.leaves_out("") is not True]
    return tuple(found)


def _ignores_of(folder: Path, *, above: str = "", below: str = "") -> tuple[_Ignore, ...]:
    path = folder / ".gitignore"
    try:
        if not path.is_file():
            return ()
        lines = path.read_text("utf-8", "surrogateescape").splitlines()
        check_patterns(path, lines)
        return (_Ignore(GitIgnoreSpec.from_lines(lines), above, below),)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def check_patterns(path: Path, lines: Iterable[str]) -> None:
    """Raises InputError for a pattern that could take hours to match one name."""
    for number, line in enumerate(lines, start=1):
        if line.startswith("#"):
            continue
        wild = [len(_WILD.findall(segment)) for segment in line.split("/")]
        if sum(wild) > _WILD_MAX or max(wild) > _WILD_SEGMENT_MAX:
            raise InputError(
                f"{path}:{number}: too many wildcards in one pattern; valid: {_WILD_SEGMENT_MAX} between two "
                f"slashes, {_WILD_MAX} in all; write several simpler patterns"
            )


def _entry(name: str, path: Path, root: Path, mistakes: _Mistakes) -> Iterator[_Entry]:
    try:
        found = path.lstat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if stat.S_ISREG(found.st_mode):
        yield _Entry(name, path, found.st_size)
    elif stat.S_ISLNK(found.st_mode):
        yield from _link(name, path, root, mistakes)
    else:
        mistakes.refuse(name, "a socket, pipe or device; put it into .gitignore")


def _link(name: str, path: Path, root: Path, mistakes: _Mistakes) -> Iterator[_Entry]:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop raises either, by version
        mistakes.refuse(name, "a broken link; remove it or put it into .gitignore")
        return
    if target == root or not target.is_relative_to(root):
        mistakes.refuse(name, f"a link out of the folder, to {target}; copy its target into the folder")
        return
    yield _Entry(name, path, link=target.relative_to(root).as_posix())


def _given(name: str, what: Path | bytes) -> _Entry:
    if isinstance(what, bytes):
        return _Entry(name, Path(name), len(what), given=what)
    return _Entry(name, what.resolve(), _size(what))


def _is_parent(folder: str, entries: Mapping[str, _Entry]) -> bool:
    return any(name.startswith(folder + "/") for name in entries)


def _size(path: Path) -> int:
    try:
        found = path.stat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path}: not a file")
    return found.st_size


def _check_size(place: Path, entries: list[_Entry]) -> None:
    total = sum(entry.size for entry in entries)
    if total <= BYTES_MAX:
        return
    sizes: dict[str, int] = {}
    for entry in entries:
        top = entry.name.split("/")[0] + ("/" if "/" in entry.name else "")
        sizes[top] = sizes.get(top, 0) + entry.size
        sizes[entry.name] = entry.size
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
    told = ", ".join(f"{_plain(name)} {size_text(sizes[name])}" for name in largest)
    raise InputError(
        f"{place}: {size_text(total)}, but the limit is {BYTES_MAX / 1e6:.0f} MB; put data into .gitignore "
        f"and declare it under `inputs`. The largest: {told}"
    )


def _encodable(name: str) -> bool:
    with contextlib.suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def _plain(name: str) -> str:
    return name if name.isprintable() and _encodable(name) else ascii(name)


def _some(names: Collection[str]) -> str:
    shown = ", ".join(_plain(name) for name in sorted(names)[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"


# --- The archive ----------------------------------------------------------------------------------------


def _publish(place: Path, entries: list[_Entry], into: Path, allow: frozenset[str]) -> str:
    into.mkdir(parents=True, exist_ok=True)
    with draft_file(into) as draft:
        with draft.stream() as stream:
            _write(place, entries, stream, allow)
            stream.seek(0)
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        draft.replace(into / f"{sha256}.tar.gz")
    return sha256


def _write(place: Path, entries: list[_Entry], stream: io.BufferedRandom, allow: frozenset[str]) -> None:
    """Writes the archive. Its bytes do not depend on this machine: no times, owners, file name, umask or
    order of folders."""
    mistakes = _Mistakes()
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=6, fileobj=stream, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            if entry.link is not None:
                info.type = tarfile.SYMTYPE
                info.linkname = os.path.relpath(entry.link, str(Path(entry.name).parent))
                archive.addfile(info)
                continue
            content, mode = _read(entry.path) if entry.given is None else (entry.given, 0o644)
            mark = None if entry.name in allow else credentials.in_content(content)
            if mark is not None:
                mistakes.credentials.append(mark.at(_plain(entry.name)))
            info.mode = 0o755 if mode & stat.S_IXUSR else 0o644
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    mistakes.raise_any(place)


def _read(path: Path) -> tuple[bytes, int]:
    """A file's bytes and mode at one moment. If it changed while it was read, it is read again.

    The file may have become a link or a pipe since it was found. This follows no link and waits for no pipe.
    """
    for _ in range(_READ_ATTEMPTS):
        try:
            with os.fdopen(os.open(path, os.O_RDONLY | PLAIN), "rb") as stream:
                before = os.fstat(stream.fileno())
                if not stat.S_ISREG(before.st_mode) or before.st_size > BYTES_MAX:
                    break
                content = stream.read(BYTES_MAX + 1)
                after = os.fstat(stream.fileno())
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from error
        if _moment(before) == _moment(after) and len(content) == after.st_size:
            return content, after.st_mode
    raise InputError(f"{path}: keeps changing; submit again when nothing writes to it")


def _moment(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ctime_ns
