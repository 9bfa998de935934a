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
import subprocess
import tarfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import credentials
from orchestrator.core.checkpoint import safe_path
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError
from orchestrator.files import draft_file, kernel_of, kernel_way, make_folder, open_file
from orchestrator.freeze import ignoring, left_out
from orchestrator.freeze.left_out import LeftOut

BYTES_MAX = 100 * 1000 * 1000
ENTRIES_MAX = 100_000
_NAMED = 10
_READ_ATTEMPTS = 5
_LEAVE_OUT = "put it into .gitignore"
_COMMIT = re.compile(r"[0-9a-f]{40,64}(?:-dirty)?")
_GIT_SECONDS = 10.0  # a large repository on a slow disk
_KERNELS = "whose files the kernel makes up"


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
                f"looks like credentials: {_some(self.credentials)}; put them into .orchestratorignore or "
                ".gitignore, or, if they are not credentials, list them under `source_allow` in the spec"
            )
        if told:
            raise InputError("\n".join(f"{place}: {line}" for line in told))


@dataclass(frozen=True)
class Bundle:
    """An archive's sha256, and what of the source is not in it, by which rule."""

    sha256: str
    left_out: tuple[LeftOut, ...] = ()


def freeze(
    source: Path | None,
    into: Path,
    *,
    allow: Collection[str] = (),
    also: Mapping[str, Path | bytes] | None = None,
) -> str:
    """The sha256 of `frozen`."""
    return frozen(source, into, allow=allow, also=also).sha256


def frozen(
    source: Path | None,
    into: Path,
    *,
    allow: Collection[str] = (),
    also: Mapping[str, Path | bytes] | None = None,
    pulled: Mapping[str, int] | None = None,
) -> Bundle:
    """Writes `<into>/<sha256>.tar.gz`, named by the sha256 of its bytes. The file is durable by then.

    `source` is included as far as `ignoring.Rules` allow, by the files in it, below it, and above it up to
    the repository. None includes no source. `allow` are paths in it that only look like credentials.
    `also` maps paths in the archive to further files, or to their content; these are included whatever
    the rules say. `pulled` are folders, by their path and inode, that were pulled from a run. They are
    left out unless `.orchestratorignore` brings them back. If the archive exists already, it stays.
    What is left out is noted beside it. Raises InputError that names everything that must not or cannot be
    included.
    """
    mistakes, tally = _Mistakes(), ignoring.Tally()
    entries = (
        {} if source is None else {e.name: e for e in _walk(source, into, pulled or {}, mistakes, tally)}
    )
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
    sha256 = _publish(place, [entries[name] for name in sorted(entries)], into, frozenset(allow))
    stays = tally.left_out()
    left_out.write(into / f"{sha256}.tar.gz", stays)
    return Bundle(sha256, stays)


def commit(source: Path) -> str:
    """The commit that the source is at, with `-dirty` after it if a file of its repository has changed since;
    empty if it is in no repository, or git does not say."""
    root = source.resolve()
    if not any((folder / left_out.ALWAYS).exists() for folder in (root, *root.parents)):
        return ""
    asked = ["git", "-C", str(root), "describe", "--always", "--abbrev=64", "--dirty", "--exclude=*"]
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        said = subprocess.run(
            asked, env=variables | {"GIT_OPTIONAL_LOCKS": "0"}, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=_GIT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    found = said.stdout.decode(errors="replace").strip()
    return found if _COMMIT.fullmatch(found) else ""


# --- What is included -----------------------------------------------------------------------------------


def _walk(
    source: Path, into: Path, pulled: Mapping[str, int], mistakes: _Mistakes, tally: ignoring.Tally
) -> Iterator[_Entry]:
    if way := kernel_way(source):
        raise InputError(f"{source}: leads into {way}, {_KERNELS}")
    if not source.is_dir():
        raise InputError(f"{source}: no such folder; `source` must name the folder of the code")
    root = source.resolve()
    out = into.resolve()
    stack: list[tuple[str, Path, ignoring.Rules, bool]] = [
        ("", root, ignoring.Rules.above(root, pulled), False)
    ]
    seen: dict[str, int] = {}
    devices: dict[int, str] = {}
    while stack:
        prefix, folder, rules, is_out = stack.pop()
        rules = rules.inside(folder, prefix)
        found = _list(folder)
        _count(source, seen, prefix, len(found))
        for each in found:
            name, path = prefix + each.name, folder / each.name
            is_folder = each.is_dir(follow_symlinks=False)
            if is_out:
                included = each.name != left_out.ALWAYS and rules.brings_back(name, is_folder=is_folder)
            else:
                rule, default = rules.judge(name, each, is_folder=is_folder)
                included = not rule
                if rule and path != out:
                    tally.add(name + "/" * is_folder, rule, default=default)
            if included and not is_folder:
                yield from _entry(name, path, root, mistakes, devices)
            elif is_folder and path != out and (included or _reached(rules, name, each.name)):
                if kernels := kernel_of(path, _lstat(path).st_dev, devices):
                    mistakes.refuse(name, f"lies on {kernels}, {_KERNELS}; {_LEAVE_OUT}")
                    continue
                stack.append((name + "/", path, rules, not included))


def _reached(rules: ignoring.Rules, path: str, name: str) -> bool:
    """Whether something in a folder that is left out may be brought back."""
    return name != left_out.ALWAYS and rules.leads_into(path + "/")


def _count(source: Path, seen: dict[str, int], prefix: str, found: int) -> None:
    """Raises InputError, with the folders that hold the most, if there are too many files."""
    top = prefix.split("/")[0] + "/" if prefix else "its top"
    seen[top] = seen.get(top, 0) + found
    if sum(seen.values()) > ENTRIES_MAX:
        most = sorted(seen, key=lambda name: -seen[name])[:_NAMED]
        told = ", ".join(f"{_plain(name)} {seen[name]:,}" for name in most)
        raise InputError(
            f"{source}: more than {ENTRIES_MAX} files; put folders that are not code into {left_out.OWN} "
            f"(the syntax of .gitignore). Most are in: {told}"
        )


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except OSError as error:
        raise InputError(f"{folder}: cannot be read ({error.strerror})") from error


def _lstat(path: Path) -> os.stat_result:
    try:
        return path.lstat()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error


def _entry(
    name: str, path: Path, root: Path, mistakes: _Mistakes, devices: dict[int, str]
) -> Iterator[_Entry]:
    found = _lstat(path)
    if stat.S_ISREG(found.st_mode):
        if kernels := kernel_of(path, found.st_dev, devices):
            mistakes.refuse(name, f"lies on {kernels}, {_KERNELS}; {_LEAVE_OUT}")
            return
        yield _Entry(name, path, found.st_size)
    elif stat.S_ISLNK(found.st_mode):
        yield from _link(name, path, root, mistakes)
    else:
        mistakes.refuse(name, f"a socket, pipe or device; {_LEAVE_OUT}")


def _link(name: str, path: Path, root: Path, mistakes: _Mistakes) -> Iterator[_Entry]:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):  # a loop raises either, by version
        mistakes.refuse(name, "a broken link; remove it or put it into .gitignore")
        return
    if way := kernel_way(path):
        mistakes.refuse(name, f"a link into {way}, {_KERNELS}; {_LEAVE_OUT}")
        return
    if not (target.is_file() or target.is_dir()):  # nobody should copy /dev/zero
        mistakes.refuse(name, f"a link to a socket, pipe or device; {_LEAVE_OUT}")
        return
    if target == root or not target.is_relative_to(root):
        mistakes.refuse(name, f"a link out of the folder, to {target}; copy its target into the folder")
        return
    yield _Entry(name, path, link=target.relative_to(root).as_posix())


def _given(name: str, what: Path | bytes) -> _Entry:
    if isinstance(what, bytes):
        return _Entry(name, Path(name), len(what), given=what)
    if way := kernel_way(what):
        raise InputError(f"{what}: leads into {way}, {_KERNELS}")
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
        f"{place}: {size_text(total)}, but the limit is {BYTES_MAX / 1e6:.0f} MB. The largest: {told}. "
        f"Write what is not code as a line such as `/{_plain(largest[0])}` into {left_out.OWN} or .gitignore "
        "there; if the training reads it, declare it under `inputs`"
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
    make_folder(into)
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
            with os.fdopen(open_file(path, os.O_RDONLY), "rb") as stream:
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
