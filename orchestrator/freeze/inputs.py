"""Pins a job's inputs to their content at submit, and copies and verifies them before a session sees them.

Decides what an input's sha256 is. Must never know platforms. Reads paths of this machine, and the
cache of what was fetched; must never fetch anything.
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from orchestrator.core.job import ELSEWHERE, Input
from orchestrator.errors import InputError, Rejected
from orchestrator.fetching import cache
from orchestrator.fetching.sources import is_fetched
from orchestrator.files import (
    copy_file,
    copy_tree,
    draft_folder,
    frozen_mode,
    kernel_of,
    kernel_way,
    kind,
    make_folder,
    rename,
    set_aside,
    sync_folder,
)
from orchestrator.files.hashing import digest as digest
from orchestrator.files.hashing import walked
from orchestrator.shut import is_shut

# A retry cannot change these errors. A full disk or a network failure may pass.
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.ELOOP}


def pin(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs, each with the sha256 of its present content.

    Raises InputError that names every input that is missing, differs from the spec, or cannot be read here.
    """
    pinned, mistakes = [], []
    for each in inputs:
        try:
            pinned.append(_pinned(each))
        except InputError as error:
            mistakes.append(str(error))
    if mistakes:
        raise InputError("\n".join(mistakes))
    return tuple(pinned)


def _pinned(each: Input) -> Input:
    try:
        _check_files(each)
        found = digest(Path(each.origin))
    except OSError as error:
        raise InputError(f"input {each.name!r}: {each.origin}: {error.strerror}") from error
    if each.sha256 not in (None, found):
        raise InputError(f"input {each.name!r}: {each.origin} has the sha256 {found}, not {each.sha256}")
    return replace(each, sha256=found)


def _check_files(each: Input) -> None:
    origin = Path(each.origin)
    if way := kernel_way(origin):
        raise InputError(f"input {each.name!r}: {origin} leads into {way}, whose files the kernel makes up")
    devices: dict[int, str] = {}
    for file in walked(origin) if origin.is_dir() else (origin,):
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"input {each.name!r}: {file} is {kind(found.st_mode)}, not a file")
        if name := kernel_of(file, found.st_dev, devices):
            raise InputError(f"input {each.name!r}: {file} lies on {name}, whose files the kernel makes up")
        if is_shut(found):
            raise InputError(
                f"input {each.name!r}: {file} is this orchestrator's own ledger, which every run "
                "changes; name a folder without it"
            )


def key(inputs: tuple[Input, ...]) -> str:
    """The name of the folder that `stage` makes for these inputs."""
    return hashlib.sha256("".join(f"{each.name} {each.sha256}\n" for each in inputs).encode()).hexdigest()


def stage(
    inputs: tuple[Input, ...], into: Path, give: Callable[[Input, Path], bool] | None = None
) -> Path | None:
    """A folder below `into` that holds each input under its name; None if there are no inputs.

    It is made once for all sessions of a job, and verified for each. A copy that has changed is thrown away
    and made again. `give` may write an input to a path, if there is a verified copy elsewhere.
    Raises Rejected if an input has changed since the submit, or is gone.

    Reads every byte. Nothing cheaper is proof, because a writer can set times and sizes as it likes.
    """
    if not inputs:
        return None
    target = into / key(inputs)
    if _is_whole(target, inputs):
        return target
    set_aside(target)
    make_folder(into, 0o700)
    with draft_folder(into, 0o700) as draft:
        for each in inputs:
            if give is None or not give(each, draft / each.name):
                _copy(each, draft / each.name)
        if not target.is_dir():
            rename(draft, target)
            sync_folder(into)
    return target


def _is_whole(folder: Path, inputs: tuple[Input, ...]) -> bool:
    """Whether it is a folder that holds exactly the pinned inputs, as plain files."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return False
        if {path.name for path in folder.iterdir()} != {each.name for each in inputs}:
            return False
        modes = [path.lstat().st_mode for path in folder.rglob("*")]
        if not all(stat.S_ISREG(mode) or stat.S_ISDIR(mode) for mode in modes):
            return False
        return all(digest(folder / each.name) == each.sha256 for each in inputs)
    except OSError:  # it or a file in it is gone or unreadable
        return False


def located(each: Input) -> Path:
    """Where an input's content is on this machine: its path or, if it was fetched, its place in the cache."""
    if is_fetched(each.origin.removeprefix(ELSEWHERE)):
        return cache.blob(each.sha256 or "")
    return Path(each.origin)


def _copy(each: Input, target: Path) -> None:
    there = each.origin.removeprefix(ELSEWHERE)
    if is_fetched(there):
        if not located(each).exists():
            raise Rejected(
                f"input {each.name!r}: what was fetched from {there} is no longer "
                "in this home nor in the cache: submit the job again, which fetches it again"
            )
    elif each.origin.startswith(ELSEWHERE):
        raise Rejected(
            f"input {each.name!r}: its run came out of a store that has no copy of it, and {there} was its "
            f"path on another machine: give its path here with `orchestrator adopt STORE RUN --input "
            f"{each.name}=PATH`"
        )
    source = located(each)
    try:
        if source.is_dir():
            copy_tree(source, target, follow=True, read_only=False)
        else:
            copy_file(source, target, frozen_mode(source), follow=True)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        what = f"{error.strerror} ({error.filename or each.origin})"
        raise Rejected(f"input {each.name!r}: {each.origin} can no longer be read: {what}") from error
    if digest(target) != each.sha256:
        raise Rejected(f"input {each.name!r}: {each.origin} has changed since the job was submitted")
