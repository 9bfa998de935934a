"""What of a source stays at home, and what a person is told when the training misses it.

Decides nothing about which files these are: `ignoring` does. What one submit left out is noted beside its
archive, for the messages of later failures. It never leaves this machine.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.order import GIT_COMMIT
from orchestrator.files import remove_file, write_whole

OWN = ".orchestratorignore"
ALWAYS = ".git"  # the history, and often a login in its config: nothing brings it back
_INPUTS = "declare it under `inputs`, which the command finds in ORCHESTRATOR_INPUTS"
_WORDS = re.compile(r"[\s=;|&<>()'\"`,]+")
_MISSING = re.compile(
    r"""FileNotFound | NotADirectory | No[ ]such[ ]file | Errno[ ]2\b
    | not[ ](?:be[ ])?found | (?:doesn't|does[ ]not)[ ]exist | error[ ]opening | open[ ]file[ ]failed
    | (?:cannot|can't|couldn't|could[ ]not|unable[ ]to|failed[ ]to)[ ](?:find|open|load|read|locate|stat)
    | not[ ]a[ ](?:local[ ]folder|file|directory|valid[ ]file)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_NO_FILE = re.compile(r"FileNotFound|NotADirectory|No such file|Errno 2\b")  # what it names is a path
_QUOTED = re.compile(r"""(?<!\w)(?:'([^']+)'|"([^"]+)"|`([^`]+)`)(?!\w)""")
_MODULE = re.compile(r"No module named '?([\w.]+)")
_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")
_WORK = "work"  # docs/session-folder.md
_IN_SESSION = re.compile(rf".*/{_WORK}/source/")


@dataclass(frozen=True)
class LeftOut:
    """What one rule left out. `paths`: the first of them, folders with `/` at the end; `count`: how many
    there are. `default`: it is a rule that nobody wrote down."""

    rule: str
    paths: tuple[str, ...]
    count: int
    default: bool = False


def write(archive: Path, left_out: Collection[LeftOut]) -> None:
    """Notes it beside the archive. Without the note, messages say less."""
    if not left_out:
        with suppress(FileNotFoundError):
            remove_file(_note(archive))  # of a submit before
        return
    noted = [[each.rule, list(each.paths)] for each in left_out]
    with suppress(OSError):
        write_whole(_note(archive), json.dumps(noted).encode("utf-8", "replace"), sync=False)


def read(archive: Path) -> tuple[LeftOut, ...]:
    """What was noted; empty if there is no note, or an unreadable one."""
    try:
        with _note(archive).open("rb") as stream:
            noted = json.loads(stream.read(bounds.MANIFEST_BYTES_MAX))
        return tuple(LeftOut(str(rule), tuple(map(str, paths)), len(paths)) for rule, paths in noted)
    except (OSError, ValueError, TypeError, RecursionError):
        return ()


def _note(archive: Path) -> Path:
    return archive.with_name(archive.name.replace(".tar.gz", ".left-out.json"))


def missed(message: str, left_out: Iterable[LeftOut]) -> str:
    """Why a session did not have what this failure names, and what to do; empty if it is not known to be
    one of these or outside the source."""
    known = tuple(left_out)
    for name in _missing(message):
        if name == ".." or name.startswith("../"):
            return (
                f"{name} lies outside `source`, so it stayed at home: give a folder that holds both as "
                f"`source`, or {_INPUTS}"
            )
        for each in known:
            path = next((path for path in each.paths if _is_of(name, path)), None)
            if path is not None and path.rstrip("/").rpartition("/")[2] == ALWAYS:
                return f"{path} stays at home; {GIT_COMMIT} in the environment is the commit of the source"
            if path is not None:
                return (
                    f"{path} stayed at home ({each.rule}): to send it, write the line `!{path}` into {OWN} "
                    f"in the source's folder, or {_INPUTS}"
                )
    return ""


def _missing(message: str) -> Iterator[str]:
    """The paths that the failure may have missed, as the source names them."""
    if (imported := _NAME.search(message)) is not None:
        yield f"{imported[2].replace('.', '/')}/{imported[1]}.py"
    if (module := _MODULE.search(message)) is not None:
        parts = module[1].split(".")
        yield from (f"{'/'.join(parts[:n])}.py" for n in range(len(parts), 0, -1))
        yield "/".join(parts)
    if _MISSING.search(message) is None:
        return
    quoted = [next(filter(None, found)) for found in _QUOTED.findall(message)]
    words = [word.lstrip("[{").rstrip(".:!?]}") for word in _WORDS.split(_QUOTED.sub(" ", message))]
    is_certain = _NO_FILE.search(message) is not None
    names = [name for name in quoted if is_certain or _is_path(name)]
    for given in (*names, *filter(_is_path, words)):
        path = _IN_SESSION.sub("", given) if given.startswith("/") else given
        if path and not path.startswith("/") and "://" not in path:
            yield posixpath.normpath(path)


def _is_path(word: str) -> bool:
    return "/" in word or "." in word[1:]


def _is_of(name: str, path: str) -> bool:
    """Whether what was missed is this path, in it, or a folder that held it."""
    if (
        name == path.rstrip("/")
        or path.startswith(f"{name}/")
        or (path.endswith("/") and name.startswith(path))
    ):
        return True
    return any(mark in name for mark in "*?[") and fnmatchcase(path, name)


def named(command: Iterable[str], left_out: Iterable[LeftOut]) -> Iterator[str]:
    """For each left-out path that the command's words plainly name: what to do, in a sentence."""
    words = {w.removeprefix("./") for text in command for w in _WORDS.split(text) if w}
    told: set[str] = set()
    for each in left_out:
        for path in each.paths:
            word = next((w for w in sorted(words) if _names(w, path, default=each.default)), None)
            if word is None or path in told:
                continue
            told.add(path)
            python = " (sessions have a Python of their own: write `python`)" if "/bin/" in word else ""
            yield (
                f"the command names {word}, but {path} is not sent ({each.rule}){python}: to send it, write "
                f"the line `!{path}` into {OWN} in the source's folder"
            )


def _names(word: str, path: str, *, default: bool) -> bool:
    if path.endswith("/"):
        return (word.startswith(path) and word != path) or (not default and word.rstrip("/") == path[:-1])
    return word == path
