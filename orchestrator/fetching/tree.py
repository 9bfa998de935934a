"""Several files of one data set, put together as one folder, each checked against what the list says of it.

Decides which names and how many files are taken. What has arrived is kept, so a next try takes only the rest.
"""

from __future__ import annotations

import errno
import hashlib
import lzma
import os
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.core.checkpoint import safe_path
from orchestrator.core.wording import size_text
from orchestrator.errors import InputError, Transient
from orchestrator.fetching.transfer import Transfers, Wanted
from orchestrator.files.hashing import digest_file

FILES_MAX = 20_000
_BAD_ZIP = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError,
            NotImplementedError, RuntimeError)  # fmt: skip
PATH_MAX, NAME_BYTES_MAX = 1024, 255


@dataclass(frozen=True)
class Entry:
    """A file as its data set lists it: bytes (None: not said), and its sha256 or git's hash if known."""

    path: str
    size: int | None
    sha256: str = ""
    git: str = ""
    folder: bool = False


def check(label: str, entries: Sequence[Entry], bytes_max: int) -> int:
    """The bytes of all of them. Raises InputError for names that lead elsewhere, and for too much."""
    if not entries:
        raise InputError(f"{label}: there is no file in it")
    if len(entries) > FILES_MAX:
        raise InputError(f"{label}: more than {FILES_MAX:,} files; name one folder or file of it")
    paths = {each.path for each in entries}
    for each in entries:
        if problem := _name_problem(each.path, paths):
            raise InputError(f"{label}: a file in it has the name {each.path!a}, which {problem}")
    total = sum(each.size or 0 for each in entries)
    if total > bytes_max:
        raise InputError(
            f"{label}: {size_text(total)} is more than the limit of {size_text(bytes_max)}; name a part "
            "of it, or raise `max_gb` at this input, or in the config: inputs: {max_gb: …}"
        )
    return total


def _name_problem(path: str, paths: Set[str]) -> str:
    """Why a file of this name cannot be made here beside the others; empty if it can."""
    if not safe_path(path):
        return "leads elsewhere"
    if any(unicodedata.category(each) in ("Cc", "Cs") for each in path):
        return "has control characters"
    above = path.split("/")
    if len(path) > PATH_MAX or any(len(os.fsencode(part)) > NAME_BYTES_MAX for part in above):
        return "is too long"
    if any("/".join(above[:n]) in paths for n in range(1, len(above))):
        return "lies in a folder, and that is a file in it, too"
    return ""


def bring(
    transfers: Transfers,
    wanted: Wanted,
    entries: Sequence[Entry],
    url: Callable[[str], str],
    tree: Path,
    part: Callable[[str], Path],
) -> None:
    """Puts every entry into `tree`, which may have some already. `wanted` says how; `url` where each is;
    `part` gives a name to what has arrived of one, which must be its own: another's would be taken for it."""
    left = wanted.bytes_max
    for entry in entries:
        target = tree / entry.path
        if not _is_done(target, entry):
            arriving = part(entry.path)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            name = wanted.name if len(entries) == 1 else f"{wanted.name}/{entry.path}"
            where = lambda path=entry.path: url(path)  # noqa: E731
            one = replace(
                wanted, url=where, name=name, bytes_max=left, page=True, sized=entry.size is not None
            )
            transfers.bring(one, arriving)
            _unzip(arriving, entry)
            if problem := _differs(arriving, entry):
                arriving.unlink()
                raise Transient(f"{name}: {problem}, so it is not taken", operation="fetch", retried=True)
            arriving.rename(target)
            arriving.with_name(f"{arriving.name}.json").unlink(missing_ok=True)
        left -= target.stat().st_size


def _is_done(target: Path, entry: Entry) -> bool:
    """It came here only after it was checked."""
    return target.is_file() and entry.size in (None, target.stat().st_size)


def _differs(path: Path, entry: Entry) -> str:
    size = path.stat().st_size
    if entry.size is not None and size != entry.size:
        return f"it has {size:,} bytes, and the list says {entry.size:,}"
    if entry.sha256 and digest_file(path) != entry.sha256:
        return "its sha256 is not the one that the list says"
    if entry.git and len(entry.git) == 40 and _git(path, size) != entry.git:
        return "its content is not what the list says"
    return ""


def _git(path: Path, size: int) -> str:
    found = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as stream:
        while piece := stream.read(1 << 20):
            found.update(piece)
    return found.hexdigest()


def _unzip(part: Path, entry: Entry) -> None:
    """Kaggle may send one file as a zip of it. It is taken out if it is what the list says."""
    if entry.size is None or part.stat().st_size == entry.size or not zipfile.is_zipfile(part):
        return
    out = part.with_name(f"{part.name}.out")
    try:
        with zipfile.ZipFile(part) as archive:
            inside = archive.infolist()
            if len(inside) != 1 or inside[0].file_size != entry.size:
                return
            left = entry.size
            with archive.open(inside[0]) as packed, out.open("wb") as file:
                while left > 0 and (piece := packed.read(min(left, 1 << 20))):
                    left -= file.write(piece)
    except _BAD_ZIP as error:
        out.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise
        return
    part.with_name(f"{part.name}.json").unlink(missing_ok=True)  # it is of the zip
    out.replace(part)
