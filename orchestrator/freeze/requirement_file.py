"""Reads a requirements file as pip reads it, with the files that it includes, and refuses what is none.

Decides which lines pip would take. Whoever names the wrong file by mistake, such as a list of accounts, must
lose nothing by it: no message repeats a refused line. Must never know jobs, or ask a package index.
"""

from __future__ import annotations

import codecs
import functools
import optparse
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from orchestrator import user
from orchestrator.errors import InputError
from orchestrator.files import kernel_way, read_own
from orchestrator.freeze.local_paths import ARCHIVES, REMEDY, LocalPath, local_path

FILES_MAX = 100
BYTES_MAX = 1_000_000
_NAMED = 5
_HINT = "give a file for pip with a package on each line, such as requirements.txt"
_LOOKS_LIKE_ONE = re.compile(
    r"requir|constrain|depend|\breqs?\b|\bdeps\b|\.(?:txt|in|lock|pip|reqs?)$", re.IGNORECASE
)

# As pip has it (pip/_internal/utils/encoding.py): the first that fits counts, so UTF-32 comes before UTF-16.
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_BE, "utf-32-be"), (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"), (codecs.BOM_UTF16_LE, "utf-16-le"),
)  # fmt: skip
_CODING = re.compile(rb"coding[:=]\s*([-\w.]+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_VALUES = ("", "1", "==1", "a", "https://a.example/1")  # that a variable may have, to see whether a line fits
_URL = re.compile(
    r"(?:https?|ftp|file|ssh|sftp|(?:git|hg|svn|bzr)(?:\+[a-z]+)?)://\S+|file:\S+", re.IGNORECASE
)
_ELSEWHERE = re.compile(r"(?:https?|file):|.*\$\{", re.IGNORECASE)  # an include that is not followed here
_PLAIN = re.compile(r"[\w./~+@,=\[\]-]+")

# pip/_internal/req/req_file.py, of all its versions since 20.
_WITH_VALUE = (
    ("-i", "--index-url", "--pypi-url"), ("--extra-index-url",), ("-c", "--constraint"),
    ("-r", "--requirement"), ("-e", "--editable"), ("-f", "--find-links"), ("--no-binary",),
    ("--only-binary",), ("--trusted-host",), ("--use-feature",), ("--hash",), ("--global-option",),
    ("--install-option",), ("-C", "--config-setting", "--config-settings"), ("--all-releases",),
    ("--only-final",),
)  # fmt: skip
_FLAGS = (("--no-index",), ("--prefer-binary",), ("--require-hashes",), ("--pre",), ("-Z", "--always-unzip"))


@dataclass(frozen=True)
class Line:
    """One logical line, without its comment. `constraint`: it limits versions and asks for nothing."""

    file: Path
    number: int
    text: str
    constraint: bool = False

    def __str__(self) -> str:
        return f"{self.file.name}:{self.number}"


@dataclass(frozen=True)
class Listing:
    """What a file and those that it includes say, in order; each file once. `texts`: the whole of each."""

    lines: list[Line] = field(default_factory=list)
    texts: dict[Path, str] = field(default_factory=dict)


def read(file: Path) -> Listing:
    """Raises InputError if one of the files is no text file, too large, or in an encoding that pip cannot
    read. A file that is included but missing stays a line."""
    found = Listing()
    _read(file, found, "", set(), constraint=False)
    return found


def _read(file: Path, into: Listing, by: str, seen: set[Path], *, constraint: bool) -> None:
    """`by`: the line that includes it, to begin a message with."""
    if way := kernel_way(file):
        raise InputError(f"{by}{file} leads into {way}, whose files the kernel makes up; {_HINT}")
    try:
        text = _decoded(read_own(file, BYTES_MAX))
    except InputError as error:
        raise InputError(f"{by}{error}; {_HINT}") from None
    except OSError as error:
        raise InputError(f"{by}{file} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{by}{file} {error}: save the file as UTF-8") from None
    real = file.resolve()
    if real in seen:
        return
    seen.add(real)
    if len(seen) > FILES_MAX:
        raise InputError(f"{by}{file}: more than {FILES_MAX} files include one another")
    into.texts[file] = text
    for number, each in _logical(text):
        line = Line(file, number, each, constraint)
        kind, name = _included(each)
        beside = file.parent / name
        if not name or _ELSEWHERE.match(name) or not _is_there(beside):
            into.lines.append(line)
        else:
            _read(beside, into, f"{file}:{number}: ", seen, constraint=constraint or kind == "-c")


def _decoded(data: bytes) -> str:
    """As pip decodes it where a session runs. Raises ValueError that says what it is."""
    mark, encoding = next((each for each in _BOMS if data.startswith(each[0])), (b"", ""))
    if not encoding:
        heads = (line for line in data.split(b"\n")[:2] if line.startswith(b"#"))
        said = next((match[1].decode("ascii") for line in heads if (match := _CODING.search(line))), None)
        encoding = said or "utf-8"
    try:
        text = data[len(mark) :].decode(encoding)
    except LookupError:  # the name is a word of the file, which nobody may see
        raise ValueError("names an encoding that does not exist in its first lines") from None
    except ValueError:
        raise ValueError(f"is not text in {encoding.upper()}") from None
    if "\0" in text:
        raise ValueError("holds NUL bytes, so it is no text, or UTF-16 without a mark at its start")
    return text


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """pip's lines: joined where one ends with a backslash, without comments; and the number of the first."""
    began, parts = 0, list[str]()
    for number, raw in enumerate(text.splitlines(), start=1):
        began = began if parts else number
        is_comment = _COMMENT.match(raw) is not None
        if raw.endswith("\\") and not is_comment:
            parts.append(raw.strip("\\"))
            continue
        joined, parts = "".join([*parts, f" {raw}" if is_comment else raw]), []
        if line := _COMMENT.sub("", joined).strip():
            yield began, line
    if parts and (line := _COMMENT.sub("", "".join(parts)).strip()):
        yield began, line


def _is_there(path: Path) -> bool:
    try:
        path.lstat()
    except (OSError, ValueError):
        return False
    return True


# --- What a line is ---------------------------------------------------------------------------------------


class _Parser(optparse.OptionParser):
    def error(self, msg: str) -> NoReturn:  # noqa: ARG002 it repeats the line
        raise ValueError


@functools.cache
def _parser() -> _Parser:
    parser = _Parser(add_help_option=False)
    for names in _WITH_VALUE:
        parser.add_option(*names, dest=names[0])
    for names in _FLAGS:
        parser.add_option(*names, dest=names[0], action="store_true")
    return parser


def _split(line: str) -> tuple[str, dict[str, str], list[str]]:
    """A line as pip divides it: the requirement, its options, and words that belong to neither. Raises
    ValueError if an option is not pip's."""
    words = line.split(" ")
    first = next((n for n, word in enumerate(words) if word.startswith("-")), len(words))
    options, rest = _parser().parse_args(shlex.split(" ".join(words[first:])))
    given = {name: value for name, value in vars(options).items() if value is not None}
    return " ".join(words[:first]).strip(), given, rest


def _included(line: str) -> tuple[str, str]:
    """`-r` or `-c` and the file that it includes; empty for any other line."""
    try:
        requirement, options, _ = _split(line)
    except ValueError:
        return "", ""
    kind = next((each for each in ("-r", "-c") if each in options), "")
    return ("", "") if requirement or not kind else (kind, options[kind])


def check(file: Path, folders: Sequence[Path], places: Sequence[Path] | None) -> None:
    """Raises InputError that names every line which pip would not take, and every file that is none by its
    name. It repeats no line.

    `folders`: the job's; a file outside of them must be named like a requirements file, because one word, as
    in /etc/hostname, is a requirement, too. `places`: where relative paths may begin; None: they cannot be
    looked up here.
    """
    found = read(file)
    told = [
        f"{each} lies outside the job's folder and is not named as a file of requirements; {_HINT}"
        for each in found.texts
        if not _LOOKS_LIKE_ONE.search(each.resolve().name) and _is_outside(each, folders)
    ]
    told += [
        f"{line.file}:{line.number} {wrong}"
        for line in found.lines
        if (wrong := _wrong(line, None if places is None else (*places, line.file.parent)))
    ]
    if told:
        more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
        raise InputError("\n".join([*told[:_NAMED], *more]))


def _is_outside(file: Path, folders: Iterable[Path]) -> bool:
    real = file.resolve()
    return not any(real.is_relative_to(folder.resolve()) for folder in folders)


def _wrong(line: Line, places: Sequence[Path] | None) -> str:
    values = _VALUES if _VARIABLE.search(line.text) else ("",)
    if any(_fits(_VARIABLE.sub(value, line.text), places) for value in values):
        return ""
    if places is not None and (name := _included(line.text)[1]) and not _ELSEWHERE.match(name):
        return "includes a file that does not exist"
    named = local_path(line.text)
    if named is not None and _PLAIN.fullmatch(named.path):
        return f"names a path that does not exist here: {REMEDY}"
    return "is neither a requirement nor an option of pip (the line is not shown): is it a file for pip?"


def _fits(text: str, places: Sequence[Path] | None) -> bool:
    try:
        requirement, options, rest = _split(text)
    except ValueError:
        return False
    if rest and not rest[0].startswith(";") and not all("://" in word for word in rest):
        return False  # pip ignores them, but who writes them means something else
    if requirement:
        return _is_requirement(requirement, places)
    if "-e" in options:
        return _is_url(options["-e"]) or _is_path(local_path(f"-e {shlex.quote(options['-e'])}"), places)
    name = _included(text)[1]
    return bool(options) and (not name or places is None or _ELSEWHERE.match(name) is not None)


def _is_requirement(text: str, places: Sequence[Path] | None) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement

    if _is_url(text):
        return True
    try:
        Requirement(text)
    except InvalidRequirement:
        return _is_path(local_path(text), places)
    return True


def _is_url(text: str) -> bool:
    from packaging.markers import InvalidMarker, Marker

    address, semicolon, marker = text.partition("; ")
    try:
        return _URL.fullmatch(address.strip()) is not None and (not semicolon or bool(Marker(marker)))
    except InvalidMarker:
        return False


def _is_path(named: LocalPath | None, places: Sequence[Path] | None) -> bool:
    """Whether pip finds something to install there. What is an archive by its name may lie in the sessions
    alone, such as below /kaggle/input."""
    if named is None:
        return False
    is_archive = named.path.lower().endswith(ARCHIVES)
    if (is_archive or places is None) and _PLAIN.fullmatch(named.path):
        return True
    try:
        found = [place / user.expanded(Path(named.path)) for place in places or ()]
        return any(each.is_dir() or (is_archive and each.is_file()) for each in found)
    except (OSError, RuntimeError, ValueError):
        return False
