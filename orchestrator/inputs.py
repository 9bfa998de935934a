"""A job's inputs: pinned to their content at submit, copied and verified before a session sees them.

Decides what an input's sha256 is. Must never know platforms. Only paths of this machine are read here; what
lies elsewhere comes with the platform or store that can reach it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from orchestrator.core.job import Input
from orchestrator.errors import InputError, Rejected
from orchestrator.stores.atomic import digest_file, draft_folder, sync_folder


def pin(inputs: tuple[Input, ...]) -> tuple[Input, ...]:
    """The inputs with the sha256 of what they hold now.

    Raises InputError naming every one that is missing, is not what the spec says, or cannot be read here.
    """
    pinned, faults = [], []
    for each in inputs:
        try:
            pinned.append(_pinned(each))
        except InputError as error:
            faults.append(str(error))
    if faults:
        raise InputError("\n".join(faults))
    return tuple(pinned)


def _pinned(each: Input) -> Input:
    if ":" in each.origin.partition("/")[0]:
        raise InputError(
            f"input {each.name!r}: {each.origin} is not supported yet; give a path of this machine"
        )
    try:
        found = digest(Path(each.origin))
    except OSError as error:
        raise InputError(f"input {each.name!r}: {each.origin}: {error.strerror}") from error
    if each.sha256 not in (None, found):
        raise InputError(f"input {each.name!r}: {each.origin} has the sha256 {found}, not {each.sha256}")
    return replace(each, sha256=found)


def digest(path: Path) -> str:
    """The sha256 of a file's bytes; of a folder, that of its sorted lines `<sha256>  <path>`."""
    if not path.is_dir():
        return digest_file(path)
    lines = [f"{digest_file(file)}  {file.relative_to(path).as_posix()}\n" for file in _files(path)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    found = [Path(here) / name for here, _, names in os.walk(folder, followlinks=True) for name in names]
    yield from sorted(found, key=lambda file: file.relative_to(folder).as_posix())


def key(inputs: tuple[Input, ...]) -> str:
    """The name of the folder that `stage` makes for these inputs."""
    return hashlib.sha256("".join(f"{each.name} {each.sha256}\n" for each in inputs).encode()).hexdigest()


def stage(inputs: tuple[Input, ...], into: Path) -> Path | None:
    """A folder below `into` that holds each input under its name, verified; made once for all sessions of a
    job. None for no inputs. Raises Rejected where an input is no longer what was submitted, or is gone."""
    if not inputs:
        return None
    target = into / key(inputs)
    if target.is_dir():
        return target
    into.mkdir(parents=True, exist_ok=True)
    with draft_folder(into) as draft:
        for each in inputs:
            _copy(each, draft / each.name)
        if not target.is_dir():
            draft.rename(target)
            sync_folder(into)
    return target


def _copy(each: Input, target: Path) -> None:
    source = Path(each.origin)
    try:
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copyfile(source, target)
    except (FileNotFoundError, shutil.Error) as error:
        raise Rejected(f"input {each.name!r}: {each.origin} cannot be read any more: {error}") from error
    if digest(target) != each.sha256:
        raise Rejected(f"input {each.name!r}: {each.origin} has changed since the job was submitted")
