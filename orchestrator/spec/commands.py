"""The three ways to write a job's command, and the mistakes that people make in each.

    command: python train.py --steps {steps}              text: split as a shell would, run without one
    command: [python, train.py, "$literal"]                a list: taken word by word
    command: {shell: "python prepare.py && python train.py | tee log.txt"}

Checks text strictly, because nobody writes `$HOME` or `&&` there and means it literally. Must never run
anything. Which scripts exist, and whether a notebook can be run, is for `missing_script`, which looks into
the source folder.
"""

from __future__ import annotations

import os
import re
import shlex
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.core import notebook
from orchestrator.core.notebook import Notebook
from orchestrator.core.order import RESUME
from orchestrator.core.wording import did_you_mean
from orchestrator.spec.document import shown
from orchestrator.spec.mistakes import unknown

PLACEHOLDERS = ("steps", "micro_batch", "accumulate", "devices", "precision", "seed", "resume")
WORDS_MAX, TEXT_MAX = 1000, 100_000
NOTEBOOK_BYTES_MAX = 100_000_000  # the bundle has no more either
# As a word of its own, at the begin or end of one, or between two commands without spaces.
_OPERATOR = re.compile(r"^(?:[|;&]|\|&|[0-9]?>&?[0-9]?|[0-9]?>>|&>|<)$|&&|\|\||;$|^[0-9]?>>?(?=.)")
_BUILT_IN = frozenset({"cd", "export", "source", "set", "ulimit", "alias", "eval", "umask", "unset", "."})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})
_PROGRAMS = frozenset({"python", "python3", "torchrun", "pip", "pip3"})
_EXPANDED = re.compile(r"\$(?:[A-Za-z_]|\{|\()|`|^~(?:/|$)")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of python itself
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LISTED_MAX = 10_000
_TOLD_MAX = 8
_WITH_SHELL = "`command: {shell: …}`"
_ANYWAY = "or, to pass it as it is, write the command as a list of words"


@dataclass(frozen=True)
class Given:
    """A command as it was written. `words` of a shell's script is the script alone."""

    words: tuple[str, ...]
    shell: bool = False


def read(value: Any) -> Given:
    """Raises ValueError with every mistake, and AssertionError for a value of the wrong kind."""
    match value:
        case str():
            return Given(_text(value))
        case list() if value and len(value) <= WORDS_MAX and all(isinstance(word, str) for word in value):
            mistakes = [mistake for word in value for mistake in _placeholder_mistakes(word)]
            _raise([*(["a word is empty; remove it"] if not value[0] else []), *mistakes])
            return Given(tuple(value))
        case {"shell": str(script)} if len(value) == 1 and script.strip() and len(script) <= TEXT_MAX:
            return Given((script.strip(),), shell=True)
    raise AssertionError


def _text(value: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"cannot be split as a shell would: {str(error).lower()}") from None
    mistakes = [mistake for word in words if "${" not in word for mistake in _placeholder_mistakes(word)]
    if not words:
        _raise(["empty; valid: the program and its arguments"])
    if not _is_shell(words):
        mistakes += _shell_mistakes(words)
    _raise(mistakes)
    return words


def _is_shell(words: Sequence[str]) -> bool:
    """Whether the user calls a shell with a script of their own."""
    return PurePosixPath(words[0]).name in _SHELLS and any(
        word.startswith("-") and word.endswith("c") for word in words
    )


def _shell_mistakes(words: Sequence[str]) -> Iterator[str]:
    """What needs a shell, of which there is none."""
    first = words[0]
    if _ASSIGNMENT.fullmatch(first):
        yield f"{first.split('=')[0][:60]}=… before the program needs a shell; put it under `env`"
    operators = dict.fromkeys(match[0] for word in words if (match := _OPERATOR.search(word)))
    if operators:
        yield f"{' '.join(operators)} works only in a shell; write {_WITH_SHELL}"
        return
    if first in _BUILT_IN:
        yield f"{first} works only in a shell; write {_WITH_SHELL}"
    else:
        yield from _second_command(words)
    expanded = [word for word in words if _EXPANDED.search(word)]
    if expanded:
        told = ", ".join(shown(word) for word in expanded[:3])
        yield f"{told} is not expanded, because there is no shell; write {_WITH_SHELL}, {_ANYWAY}"


def _second_command(words: Sequence[str]) -> Iterator[str]:
    """YAML joins the lines of a text that has no `|`."""
    if PurePosixPath(words[0]).name not in _PROGRAMS:
        return
    at = next((number for number, word in enumerate(words) if number > 1 and word in _PROGRAMS), None)
    if at is not None and not words[at - 1].startswith("-"):
        yield (
            f"a second command begins at word {at + 1}, {shown(words[at])}: several lines are one command; "
            f"write {_WITH_SHELL}, after `shell: |` with a line for each, {_ANYWAY}"
        )


def _placeholder_mistakes(word: str) -> list[str]:
    try:
        pieces = list(string.Formatter().parse(word))
    except ValueError as error:
        return [f"{str(error).lower()}; write {{{{ or }}}} for a brace itself"]
    mistakes = []
    for _, name, form, conversion in pieces:
        if name is None:
            continue
        if name not in PLACEHOLDERS:
            mistakes.append(f"{unknown('placeholder', name, PLACEHOLDERS)}; {{{{ and }}}} stand for braces")
        elif form or conversion:
            mistakes.append(f"the placeholder {name!r} takes no format; write {{{name}}}")
    if "{" + RESUME + "}" in word:
        mistakes.append("{{resume}} is not supported; only {resume}")
    return mistakes


def _raise(mistakes: Sequence[str]) -> None:
    told = list(dict.fromkeys(mistakes))
    more = [f"and {len(told) - _TOLD_MAX} more"] if len(told) > _TOLD_MAX else []
    if told:
        raise ValueError("; ".join(told[:_TOLD_MAX] + more))


def words_of(value: object) -> tuple[str, ...]:
    """The words of a command that may be wrong, for other checks; empty if there are none."""
    try:
        match value:
            case str():
                return tuple(shlex.split(value))
            case list():
                return tuple(word for word in value if isinstance(word, str))
            case {"shell": str(script)}:
                return tuple(script.split())
    except ValueError:
        return ()
    return ()


# --- Scripts that are not there -------------------------------------------------------------------------


def missing_script(value: object, source: Path) -> str | None:
    """What is wrong with the script or notebook that a command names: it is not in the source, or it cannot
    be run."""
    words = words_of(value)
    if isinstance(value, dict):
        return _notebook_in_shell(words)
    if not words or _is_shell(words):
        return None
    script = _script(words)
    if script is None or "{" in script:
        return None
    if script.endswith(notebook.SUFFIX):
        return _notebook_mistake(words, script, source)
    if PurePosixPath(script).is_absolute() or _exists(source / script):
        return None
    return f"{script} is not in the source folder {source}{_similar(source, script)}"


def _notebook_mistake(words: Sequence[str], path: str, source: Path) -> str | None:
    """Why this notebook cannot be run."""
    if words[0] != path:
        rest = "".join(f" {word}" for word in words[words.index(path) + 1 :])
        return f"{words[0]} cannot run a notebook; write `command: {path}{rest}`, and it is executed as it is"
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        return f"{path} must lie in the source folder: its executed copy is written beside it"
    if not _exists(source / path):
        return f"{path} is not in the source folder {source}{_similar(source, path)}"
    try:
        with (source / path).open("rb") as stream:
            parameters = Notebook.parse(stream.read(NOTEBOOK_BYTES_MAX)).parameters
        if parameters is not None:
            notebook.given(words[1:], parameters)
    except OSError as error:
        return f"{path} cannot be read ({error.strerror})"
    except ValueError as error:
        return f"{path}: {error}"
    return None


def _notebook_in_shell(words: Sequence[str]) -> str | None:
    """A shell cannot run a notebook."""
    for number, word in enumerate(words):
        first = number == 0 or words[number - 1] in ("&&", "||", ";", "|", "then", "do")
        if word.endswith(notebook.SUFFIX) and (first or PurePosixPath(words[number - 1]).name in _PROGRAMS):
            return f"a shell cannot run the notebook {word}; write `python -m {notebook.RUNNER} {word}` there"
    return None


def _script(words: Sequence[str]) -> str | None:
    """The file that is run: by python, by a launcher, or by itself."""
    program, *rest = words
    name = PurePosixPath(program).name
    if name.startswith("python"):
        for number, word in enumerate(rest):
            if word in ("-m", "-c", "-"):
                return None
            if not word.startswith("-") and (number == 0 or rest[number - 1] not in _WITH_VALUE):
                return word
        return None
    if name in _LAUNCHERS:
        found = (word for word in rest if word.endswith((".py", notebook.SUFFIX)))
        return next((word for word in found if not word.startswith("-")), None)
    if name in _SHELLS:
        return next((word for word in rest if not word.startswith("-")), None)
    return program if "/" in program or program.endswith(notebook.SUFFIX) else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return True  # a name that cannot be looked up is not this check's concern


def _similar(source: Path, script: str) -> str:
    """The scripts in the source that could be meant, as the end of a sentence."""
    found: list[str] = []
    for here, folders, names in os.walk(source):
        folders[:] = [each for each in folders if not each.startswith(".")]
        found += [Path(here, name).relative_to(source).as_posix() for name in names]
        if len(found) > _LISTED_MAX:
            break
    wanted = PurePosixPath(script)
    alike = [each for each in found if PurePosixPath(each).suffix == wanted.suffix]
    same = sorted(each for each in alike if PurePosixPath(each).name == wanted.name)
    if same:
        return f"; did you mean {' or '.join(same[:3])}?"
    if near := did_you_mean(script, alike):
        return f"; {near.strip()}"
    return f"; there are {', '.join(sorted(alike)[:3])}" if alike else ""
