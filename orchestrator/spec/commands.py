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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.core import notebook
from orchestrator.core.notebook import Notebook
from orchestrator.core.order import RESUME
from orchestrator.core.wording import suggested
from orchestrator.errors import InputError
from orchestrator.files import open_own
from orchestrator.spec import elsewhere
from orchestrator.spec.document import shown
from orchestrator.spec.mistakes import unknown
from orchestrator.spec.programs import not_in_a_session
from orchestrator.user import known_home

PLACEHOLDERS = ("steps", "micro_batch", "accumulate", "devices", "precision", "seed", "resume")
WORDS_MAX, TEXT_MAX = 1000, 100_000
NOTEBOOK_BYTES_MAX = 100_000_000  # the bundle has no more either
# As a word of its own, at the begin or end of one, or between two commands without spaces.
_OPERATOR = re.compile(r"^(?:[|;&]|\|&|[0-9]?>&?[0-9]?|[0-9]?>>|&>|<)$|&&|\|\||;$|^[0-9]?>>?(?=.)")
_BUILT_IN = frozenset({"cd", "export", "source", "set", "ulimit", "alias", "eval", "umask", "unset", "."})
_SHELLS = frozenset({"sh", "bash", "zsh", "dash", "ksh"})
_PROGRAMS = frozenset(
    {"python", "python3", "torchrun", "pip", "pip3", "nvidia-smi", "mkdir", "wget", "unzip"}
)
_EXPANDED = re.compile(r"\$(?:[A-Za-z_]|\{|\()|`")
_AT_HOME = re.compile(r"^~(?:/|$)|\$(?:HOME\b|\{HOME\})")
_TEMPLATE = re.compile(r"\{\{ +[A-Za-z_.]+ +\}\}")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE = frozenset({"-W", "-X", "--check-hash-based-pycs"})  # options of python itself
_LAUNCHERS = frozenset({"torchrun", "accelerate", "deepspeed"})
_LISTED_MAX = 10_000
_TOLD_MAX = 8
_WITH_SHELL = '`command: {shell: "…"}` with the same text'
_LINES = "`command: {shell: |}` with a line for each"
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
        case list() if value and len(value) <= WORDS_MAX:
            _raise(list(_list_mistakes(value)))
            return Given(tuple(value))
        case {"shell": str(script)} if len(value) == 1 and script.strip() and len(script) <= TEXT_MAX:
            return Given((script.strip(),), shell=True)
        case dict():
            raise ValueError(_mapping_mistake(value))
    raise AssertionError


def _list_mistakes(value: Sequence[object]) -> Iterator[str]:
    """What is wrong with a list of words."""
    for number, word in enumerate(value, start=1):
        if isinstance(word, str):
            yield from _placeholder_mistakes(word)
        else:
            yield f"word {number}: given {shown(word)}; write it in quotes"
    first = value[0]
    if first == "":
        yield "the first word is empty; write the program there"
    if len(words_of(first)) < 2 or _is_notebook(first):
        return
    if len(value) > 1 and all(len(words_of(word)) > 1 for word in value):
        yield f"a list is one command, word by word; for several commands write {_LINES}"
    else:
        yield (
            "no program has spaces in its name; give each word by itself, such as [python, train.py], or "
            "write text"
        )


def _is_notebook(word: object) -> bool:
    """Whether a word with spaces is the name of a notebook, and not a program with one."""
    if not isinstance(word, str) or not word.endswith(notebook.SUFFIX):
        return False
    return PurePosixPath(words_of(word)[0]).name not in _PROGRAMS


def _mapping_mistake(value: Mapping[object, object]) -> str:
    """What is wrong with a mapping that is not {shell: text}."""
    others = [str(key) for key in value if key != "shell"]
    if others:
        return unknown("key", others[0], ("shell",))
    if not value:
        return "given an empty mapping; write `command: {shell: …}`, or text"
    if isinstance(value["shell"], list):
        return f"shell: given a list; write one text, as {_LINES}"
    if isinstance(value["shell"], str) and len(value["shell"]) > TEXT_MAX:
        return f"shell: longer than {TEXT_MAX:,} characters; put the script into a file of the source"
    return f"shell: given {shown(value['shell'])}; valid: a script, such as `python a.py && python b.py`"


def _text(value: str) -> tuple[str, ...]:
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise ValueError(f"cannot be split as a shell would: {str(error).lower()}") from None
    mistakes = [mistake for word in words if "${" not in word for mistake in _placeholder_mistakes(word)]
    if not words:
        _raise(["empty; valid: the program and its arguments"])
    if _TEMPLATE.search(value):
        _raise(["{{ … }} is not filled; write a placeholder such as {steps}, without spaces"])
    if _is_shell(words):
        _raise(mistakes)
    elif told := not_in_a_session(words):
        mistakes.append(told)
    else:
        mistakes += _shell_mistakes(value, words)
    _raise(mistakes)
    return words


def _is_shell(words: Sequence[str]) -> bool:
    """Whether the user calls a shell with a script of their own."""
    return PurePosixPath(words[0]).name in _SHELLS and any(
        word.startswith("-") and word.endswith("c") for word in words
    )


def _shell_mistakes(text: str, words: Sequence[str]) -> Iterator[str]:
    """What needs a shell, of which there is none."""
    first = words[0]
    if _ASSIGNMENT.fullmatch(first):
        yield f"{first.split('=')[0][:60]}=… before the program needs a shell; put it under `env`"
    operators = dict.fromkeys(match[0] for word in words if (match := _OPERATOR.search(word)))
    if operators:
        yield _operators_told(tuple(operators), words)
        return
    if first in _BUILT_IN:
        yield f"{first} works only in a shell; write {_WITH_SHELL}"
    else:
        yield from _second_command(text, words)
    yield from _expanded(text, words)


def _operators_told(operators: Sequence[str], words: Sequence[str]) -> str:
    told = f"{' '.join(operators)} works only in a shell"
    if operators == ("&",) and words[-1].endswith("&"):
        return f"{told}, and would end the session at once; leave it out: a session runs in the background"
    if all(">" in each or each == "&" for each in operators):
        return f"{told}; leave it out, because `orchestrator logs` has the output, or write {_WITH_SHELL}"
    return f"{told}; write {_WITH_SHELL}"


def _expanded(text: str, words: Sequence[str]) -> Iterator[str]:
    """Words that a shell would replace by others."""
    at_home = [word for word in words if _AT_HOME.search(word)]
    if at_home:
        yield (
            f"{_some(at_home)} is not expanded, and sessions do not have your home folder; give data as "
            f"`inputs`, {_ANYWAY}"
        )
    expanded = [word for word in words if _EXPANDED.search(word) and word not in at_home]
    if expanded:
        yield (
            f"{_some(expanded)} is not expanded, because there is no shell; write {_WITH_SHELL}, {_ANYWAY}"
        )
    starred = [word for word in _unquoted(text) if "*" in word]
    if starred:
        yield (
            f"{_some(starred)} is not expanded, because there is no shell; write {_WITH_SHELL}, or put it in "
            "quotes if the program expands it"
        )


def _some(words: Sequence[str]) -> str:
    return ", ".join(shown(word) for word in words[:3])


def _unquoted(text: str) -> list[str]:
    """The words of a text in which nothing is quoted."""
    try:
        words = shlex.split(text, posix=False)
    except ValueError:
        return []
    return [word for word in words if not {"'", '"', "\\"} & set(word)]


def _second_command(text: str, words: Sequence[str]) -> Iterator[str]:
    """YAML joins the lines of a text that has no `|`; with one, each line is taken for a command of its own,
    unless it is indented, begins with an option, or follows a backslash."""
    lines = text.strip().splitlines()
    starts = [
        line for before, line in pairwise(lines) if line.strip() and not before.endswith("\\")
        and not line.startswith((" ", "-"))
    ]  # fmt: skip
    if starts:
        yield f"several lines are several commands; write {_LINES}, or end a line that goes on with \\"
        return
    if PurePosixPath(words[0]).name not in _PROGRAMS:
        return
    at = next((number for number, word in enumerate(words) if number > 1 and word in _PROGRAMS), None)
    if at is not None and not words[at - 1].startswith("-"):
        yield (
            f"a second command begins at word {at + 1}, {shown(words[at])}: several lines are one command; "
            f"write {_LINES}, {_ANYWAY}"
        )


def _placeholder_mistakes(word: str) -> list[str]:
    try:
        pieces = list(string.Formatter().parse(word))
    except ValueError:
        return ["a brace that belongs to no placeholder; write {{ or }} for a brace itself"]
    mistakes = []
    for _, name, form, conversion in pieces:
        if name is None:
            continue
        if name not in PLACEHOLDERS:
            mistakes.append(_unknown_placeholder(name))
        elif form or conversion:
            mistakes.append(f"the placeholder {name!r} takes no format; write {{{name}}}")
    if "{" + RESUME + "}" in word:
        mistakes.append("{{resume}} is not supported; only {resume}")
    return mistakes


def _unknown_placeholder(name: str) -> str:
    braces = "{{ and }} stand for braces"
    meant = elsewhere.PLACEHOLDERS.get(name.lower())
    if meant is not None:
        return f"unknown placeholder {shown(name)}; write {{{meant}}}; {braces}"
    return f"{unknown('placeholder', name, PLACEHOLDERS)}; {braces}"


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


def missing_script(value: object, source: Path, *, has_image: bool = False) -> str | None:
    """What is wrong with the script or notebook that a command names: it is not in the source, or it cannot
    be run. With `has_image`, an absolute path may be one in the job's own image."""
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
    if PurePosixPath(script).is_absolute():
        return None if has_image else _on_this_machine(script, source)
    if not _exists(source / script):
        return f"{script} is not in the source folder {source}{_similar(source, script)}"
    if script == words[0] and not os.access(source / script, os.X_OK):
        return f"{script} is not executable; begin with the program that runs it, or run `chmod +x {script}`"
    return None


def _on_this_machine(script: str, source: Path) -> str | None:
    """What is wrong with an absolute path to a script that only this machine has."""
    inside = os.path.relpath(script, source.absolute())
    if not inside.startswith(".."):
        return f"{script} is a path of this machine; write it relative to the source folder: {inside}"
    if script.startswith(("/home/", "/Users/", _home())):
        return (
            f"{script} is a path of this machine, and sessions get only the source folder {source}; move the "
            "script there and write its path in that folder"
        )
    return None


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
        with open_own(source / path) as stream:
            parameters = Notebook.parse(stream.read(NOTEBOOK_BYTES_MAX)).parameters
        if parameters is not None:
            notebook.given(words[1:], parameters)
    except InputError as error:
        return str(error)
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


def _home() -> str:
    return f"{known_home() or '/home'}/"


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
    if near := suggested(script, alike):
        return near
    return f"; there are {', '.join(sorted(alike)[:3])}" if alike else ""
