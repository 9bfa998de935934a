"""Which files of a source stay here, and by which rule.

Three rules, the first that says anything decides: `.orchestratorignore` (its `!` brings back), what everybody
leaves out (environments, caches), `.gitignore`. Must never know what becomes of the files.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from pathspec import GitIgnoreSpec

from orchestrator.errors import InputError
from orchestrator.files import open_own
from orchestrator.freeze.backtracking import without
from orchestrator.freeze.left_out import ALWAYS, OWN, LeftOut

GIT = ".gitignore"
PATHS_MAX = 1000  # of one rule
BYTES_MAX = 1_000_000  # of one file of patterns
_ENVIRONMENT, _CACHE = "a Python environment", "a cache"
PULLED = "what `orchestrator pull` wrote"
DEFAULTS = {
    ".venv": _ENVIRONMENT, "venv": _ENVIRONMENT, ".tox": _ENVIRONMENT, ".nox": _ENVIRONMENT,
    "node_modules": "packages of Node.js", "wandb": "what Weights & Biases writes",
    "__pycache__": "compiled Python", ".mypy_cache": _CACHE, ".pytest_cache": _CACHE, ".ruff_cache": _CACHE,
    ".hypothesis": _CACHE, ".ipynb_checkpoints": "copies that Jupyter makes",
    ".hg": "a repository's history", ".svn": "a repository's history",
}  # fmt: skip
_PACKAGES = ("venv", "wandb")  # with `__init__.py` they are the user's code
# With more wildcards, a hostile file name could take hours to match (Python's expressions backtrack), where
# `backtracking.without` does not know the expression.
_WILD_MAX, _WILD_SEGMENT_MAX = 6, 4
_WILD = re.compile(r"\*+")
_FOLDER = "ps_d"  # the group with which pathspec's expressions mark the slash after a folder


@dataclass(frozen=True)
class _File:
    """One file of patterns, and the path from its folder down to the source (`above`), or from the source
    down to its folder (`below`). At least one of the two is empty. `label` names it in a rule."""

    spec: GitIgnoreSpec
    lines: tuple[str, ...]
    label: str
    above: str = ""
    below: str = ""

    def judge(self, name: str) -> tuple[bool | None, str]:
        """True: left out; False: included by an exception; None: the file says nothing. And the rule."""
        found = _last_match(self.spec, self.above + name[len(self.below) :])
        return (None, "") if found is None else (found[0], f"{self.label}: {self.lines[found[1]]}")

    def leads_into(self, folder: str) -> bool:
        """Whether an exception with a path names something below this folder, which is left out."""
        parts = (self.above + folder[len(self.below) :]).strip("/").split("/")
        return any(_leads(line[1:], parts) for line in self.lines if line.startswith("!"))


def _last_match(spec: GitIgnoreSpec, path: str) -> tuple[bool, int] | None:
    """What the last pattern says that matches the path itself, else the last that matches a folder above it;
    and its index. (`check_file` takes `build/` for a folder above also where the path is that folder, so an
    earlier `!src/**` would send `src/build/`, which git ignores.)"""
    above = None
    for index in reversed(range(len(spec.patterns))):
        each = spec.patterns[index]
        found = each.regex.search(path) if each.include is not None and each.regex is not None else None
        if each.include is None or found is None:
            continue
        below = path.endswith("/") and str(each.pattern).rstrip().endswith("**/")  # any folder in one
        if found.groupdict().get(_FOLDER) is None or found.end() == len(path) or below:
            return each.include, index
        above = above or (each.include, index)
    return above


def _leads(pattern: str, folder: list[str]) -> bool:
    parts = pattern.strip().removeprefix("/").removesuffix("/").split("/")
    if len(parts) <= len(folder) or parts[0] == "**":
        return False
    return all(part == "**" or fnmatchcase(name, part) for part, name in zip(parts, folder, strict=False))


@dataclass(frozen=True)
class Rules:
    """The rules that hold in one folder of a source. The files nearest to a path come last. `pulled`: path →
    inode of folders that were pulled from a run."""

    git: tuple[_File, ...] = ()
    own: tuple[_File, ...] = ()
    pulled: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def above(cls, root: Path, pulled: Mapping[str, int] | None = None) -> Rules:
        """The rules of the folders above, up to the repository. One that leaves out the source itself does
        not count, because the user named the source explicitly."""
        folders = (root, *root.parents)
        repository = next((n for n, folder in enumerate(folders) if (folder / ALWAYS).exists()), 0)
        found: dict[str, list[_File]] = {GIT: [], OWN: []}
        for up in range(repository, 0, -1):
            above_source = root.relative_to(folders[up]).as_posix() + "/"
            for name, files in found.items():
                read = _read(folders[up], name, "../" * up, above=above_source)
                files += [each for each in read if each.judge("")[0] is not True]
        return cls(tuple(found[GIT]), tuple(found[OWN]), pulled or {})

    def inside(self, folder: Path, below: str) -> Rules:
        """The rules in this folder, whose path from the source is `below`."""
        git, own = (_read(folder, name, below, below=below) for name in (GIT, OWN))
        return replace(self, git=(*self.git, *git), own=(*self.own, *own)) if git or own else self

    def judge(self, name: str, found: os.DirEntry[str], *, is_folder: bool) -> tuple[str, bool]:
        """The rule that leaves it out, empty if it is included; and whether that is a default one."""
        if found.name == ALWAYS:
            return "always: the history of git", True
        path = name + "/" * is_folder
        out, rule = _nearest(self.own, path)
        if out is not None:
            return (rule if out else ""), False
        if default := _default(found, is_folder=is_folder):
            return f"by default: {default}", True
        if is_folder and found.path in self.pulled and found.inode() == self.pulled[found.path]:
            return f"by default: {PULLED}", True
        out, rule = _nearest(self.git, path)
        return (rule if out else ""), False

    def brings_back(self, name: str, *, is_folder: bool) -> bool:
        """Whether `.orchestratorignore` includes this path of a folder that is left out."""
        return _nearest(self.own, name + "/" * is_folder)[0] is False

    def leads_into(self, folder: str) -> bool:
        """Whether something below this folder may be brought back."""
        return any(file.leads_into(folder) for file in self.own)


def _nearest(files: tuple[_File, ...], path: str) -> tuple[bool | None, str]:
    """Like git: of the files that say anything, the one nearest to the path decides."""
    answers = (file.judge(path) for file in reversed(files))
    return next((answer for answer in answers if answer[0] is not None), (None, ""))


def _default(found: os.DirEntry[str], *, is_folder: bool) -> str:
    if not is_folder and not found.is_symlink():
        return ""
    package = found.name in _PACKAGES and is_folder and (Path(found.path) / "__init__.py").is_file()
    if found.name in DEFAULTS and not package:
        return DEFAULTS[found.name]
    if is_folder:
        if (Path(found.path) / "pyvenv.cfg").is_file():
            return f"{_ENVIRONMENT} (it has pyvenv.cfg)"
        if (Path(found.path) / "conda-meta").is_dir():
            return "a conda environment (it has conda-meta)"
    return ""


def _read(folder: Path, name: str, place: str, *, above: str = "", below: str = "") -> tuple[_File, ...]:
    path = folder / name
    try:
        if not path.is_file():
            return ()
        with open_own(path) as stream:
            content = stream.read(BYTES_MAX + 1)
        if len(content) > BYTES_MAX:
            raise InputError(f"{path}: larger than {BYTES_MAX // 1000} kB; is it a file of patterns?")
        # As git reads it: without a mark at its start, and no end of a line but \n and \r\n.
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogateescape")
        given = [line.removesuffix("\r") for line in text.split("\n")]
        check_patterns(path, given)
        lines = [line for line in given if line]
        return (_File(_spec(lines), tuple(lines), place + name, above, below),)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InputError(f"{path}: {error}") from error


def _spec(lines: list[str]) -> GitIgnoreSpec:
    spec = GitIgnoreSpec.from_lines(lines)
    has_exceptions = any(line.startswith("!") for line in lines)
    for each in spec.patterns:
        if isinstance(each.regex, re.Pattern):
            each.regex = regex = without(each.regex)
            if has_exceptions and each.include and regex.pattern.endswith("/"):
                # `data/**` is about what is in the folder. Like git, we enter it to find an exception there.
                each.regex = re.compile(f"{regex.pattern}.", regex.flags)
    return spec


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


@dataclass
class Tally:
    """Counts what is left out while a source is walked."""

    _found: dict[str, tuple[list[str], bool]] = field(default_factory=dict)
    _counts: dict[str, int] = field(default_factory=dict)

    def add(self, path: str, rule: str, *, default: bool) -> None:
        paths, _ = self._found.setdefault(rule, ([], default))
        self._counts[rule] = self._counts.get(rule, 0) + 1
        if len(paths) < PATHS_MAX:
            paths.append(path)

    def left_out(self) -> tuple[LeftOut, ...]:
        """By rule; what nobody wrote down first."""
        found = (
            LeftOut(rule, tuple(sorted(paths)), self._counts[rule], default)
            for rule, (paths, default) in self._found.items()
        )
        return tuple(sorted(found, key=lambda each: (not each.default, each.rule)))
