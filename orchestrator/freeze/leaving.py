"""Lists what leaves this machine with a job, and refuses what looks like a credential.

Checks a job's inputs and requirements; `bundle` and `images` check its source and images. Must never know
platforms, nor repeat the content of a file.
"""

from __future__ import annotations

import fnmatch
import os
import stat
import tarfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core import credentials
from orchestrator.core.job import Input
from orchestrator.errors import InputError
from orchestrator.fetching.sources import is_fetched
from orchestrator.files import kernel_of, kernel_way
from orchestrator.freeze import requirement_file
from orchestrator.freeze.left_out import LeftOut

ENTRIES_MAX = 1_000_000
LARGEST = 3
_NAMED = 5
_KERNEL = "whose files the kernel makes up"
_OWN_FOLDER = ".orchestrator/"  # in the bundle: files from outside the source


@dataclass(frozen=True)
class Part:
    """One kind of thing that leaves: the number of files, their bytes, and the largest ones."""

    kind: str  # source, requirements, image or input
    name: str
    files: int
    size: int
    largest: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, kind: str, name: str, sizes: Collection[tuple[str, int]]) -> Part:
        largest = sorted(sizes, key=lambda each: (-each[1], each[0]))[:LARGEST]
        return cls(kind, name, len(sizes), sum(size for _, size in sizes), tuple(largest))


@dataclass(frozen=True)
class Contents:
    """What the source's archive holds: its files with their bytes, the largest first, and its links with
    their targets. `left_out`: what of the source stays here, by which rule."""

    files: tuple[tuple[str, int], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    left_out: tuple[LeftOut, ...] = ()


# --- Archives: exactly their contents leave --------------------------------------------------------------


def bundled(archive: Path, source: str, requirements: Collection[str]) -> Iterator[Part]:
    """The parts of a frozen bundle. `requirements` are the paths of the job's requirements in it."""
    found = _archived(archive)
    own = [each for each in found if each[0] in requirements or each[0].startswith(_OWN_FOLDER)]
    code = [each for each in found if each not in own]
    if code:
        yield Part.of("source", source, code)
    if own:
        names = [path.removeprefix(_OWN_FOLDER) for path in dict.fromkeys(requirements)]
        yield Part.of("requirements", ", ".join(names), own)


def contents(archive: Path, left_out: tuple[LeftOut, ...]) -> Contents:
    """What a frozen bundle holds, and what was left out of it."""
    with tarfile.open(archive) as found:
        members = list(found)
    files = [(each.name, each.size) for each in members if each.isreg()]
    links = tuple((each.name, each.linkname) for each in members if each.issym())
    return Contents(tuple(sorted(files, key=lambda each: (-each[1], each[0]))), links, left_out)


def imaged(archive: Path, image: str) -> Part:
    """The build contexts of a frozen image, including those of the images it builds on."""
    found = ((name.partition("/")[2], size) for name, size in _archived(archive))
    return Part.of("image", image, [each for each in found if each[0]])


def names_in(archive: Path) -> tuple[str, ...]:
    """The paths of everything in an archive."""
    return tuple(name for name, _ in _archived(archive))


def _archived(archive: Path) -> list[tuple[str, int]]:
    with tarfile.open(archive) as files:
        return [(member.name, member.size) for member in files]


# --- Requirements ----------------------------------------------------------------------------------------


def check_requirements(path: Path) -> None:
    """Raises InputError for every line that looks like a credential in a requirements file or in those that
    it includes. They leave with the job, so that a session's pip can read them."""
    told: list[str] = []
    for file, text in requirement_file.read(path).texts.items():
        if credentials.in_name(file.as_posix()):
            told.append(f"{file}: its name is that of credentials")
        mark = credentials.in_content(text.encode())
        marks = [*credentials.logins(text), *([mark] if mark is not None else [])]
        told += [f"{file}:{mark.line}: {mark.kind}" for mark in marks]
    if told:
        more = [f"and {len(told) - _NAMED} more"] if len(told) > _NAMED else []
        hint = (
            "requirements leave this machine with the job: list a secret's name under `secrets` and write "
            "${NAME} here, or make PIP_INDEX_URL such a secret"
        )
        raise InputError("\n".join([*told[:_NAMED], *more, hint]))


# --- Inputs ----------------------------------------------------------------------------------------------


def check_inputs(inputs: Iterable[Input], allow: Iterable[Collection[str]]) -> tuple[Part, ...]:
    """The files of each input that is a path on this machine.

    `allow` has, for each input, the paths in it that are included although they look like credentials or are
    links out of it: exact, or as patterns (`certificates/*`). `.` allows everything. Raises InputError that
    names everything that must not leave.
    """
    walks = [
        _Walk(each, frozenset(allowed))
        for each, allowed in zip(inputs, allow, strict=True)
        if not is_fetched(each.origin)
    ]
    parts = [walk.part() for walk in walks]
    mistakes = [line for walk in walks for line in walk.mistakes()]
    if mistakes:
        raise InputError("\n".join(mistakes))
    return tuple(parts)


@dataclass
class _Walk:
    """Checks one input. Follows links, as the copying does."""

    given: Input
    allow: frozenset[str]
    credentials: list[tuple[str, str]] = field(default_factory=list)  # path, and its text in the error
    links: list[tuple[str, str]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    devices: dict[int, str] = field(default_factory=dict)

    def part(self) -> Part:
        origin = Path(self.given.origin)
        sizes: list[tuple[str, int]] = []
        try:
            if way := kernel_way(origin):
                self.others.append(f"{origin}: leads into {way}, {_KERNEL}")
            elif origin.is_dir():
                sizes += self._folder(origin.resolve())
            else:
                sizes += self._file(origin.name, origin)
        except OSError as error:
            place = error.filename or origin
            self.others.append(f"{place}: {error.strerror or error}")
        return Part.of("input", self.given.name, sizes)

    def _folder(self, root: Path) -> Iterator[tuple[str, int]]:
        seen = 0
        stack: list[tuple[str, Path, tuple[Path, ...]]] = [("", root, (root,))]
        while stack:
            prefix, folder, above = stack.pop()
            with os.scandir(folder) as found:
                entries = list(found)
            for entry in entries:
                seen += 1
                if seen > ENTRIES_MAX:
                    self.others.append(f"{root}: more than {ENTRIES_MAX:,} files; pack them into an archive")
                    return
                name, path = prefix + entry.name, Path(entry.path)
                if entry.is_symlink() and not self._may_follow(name, path, root):
                    continue
                if not entry.is_dir():
                    yield from self._file(name, path)
                elif self._is_kernels(path, path.stat()):
                    continue
                elif (real := path.resolve()) in above:
                    self.others.append(f"{path}: a link to a folder above it; remove it")
                else:
                    stack.append((name + "/", path, (*above, real)))

    def _may_follow(self, name: str, path: Path, root: Path) -> bool:
        try:
            target = path.resolve(strict=True)
        except (OSError, RuntimeError):  # a loop raises either, by version
            self.others.append(f"{path}: a broken link; remove it")
            return False
        if way := kernel_way(path):
            self.others.append(f"{path}: a link into {way}, {_KERNEL}; remove it")
            return False
        if target.is_relative_to(root) or self._followed(name):
            return True
        self.links.append((name, f"{name} → {target}"))
        return False

    def _file(self, name: str, path: Path) -> Iterator[tuple[str, int]]:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            self.others.append(f"{path}: a socket, pipe or device; leave it out")
            return
        if self._is_kernels(path, found):
            return
        if not self._allowed(name):
            self._judge(name, path)
        yield name, found.st_size

    def _is_kernels(self, path: Path, found: os.stat_result) -> bool:
        if name := kernel_of(path, found.st_dev, self.devices):
            self.others.append(f"{path}: lies on {name}, {_KERNEL}; leave it out")
        return bool(name)

    def _judge(self, name: str, path: Path) -> None:
        if credentials.in_name(path.as_posix()) or credentials.in_name(path.resolve().as_posix()):
            self.credentials.append((name, name))
            return
        with path.open("rb") as stream:
            mark = credentials.in_content(stream.read(credentials.CONTENT_BYTES_MAX))
        if mark is not None:
            self.credentials.append((name, mark.at(name)))

    def _allowed(self, name: str) -> bool:
        return "." in self.allow or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.allow)

    def _followed(self, name: str) -> bool:
        """Whether `allow` lists this link, or a link above it: then all links below it are followed, too."""
        parts = name.split("/")
        return any(self._allowed("/".join(parts[:n])) for n in range(1, len(parts) + 1))

    def mistakes(self) -> Iterator[str]:
        what = f"input {self.given.name!r}"
        yield from (f"{what}: {line}" for line in self.others[:_NAMED])
        for found, looks, cure in (
            (self.credentials, "looks like credentials", "remove them, or, if they are none, list them"),
            (self.links, "links that lead out of it", "copy their targets, or, to follow them, list them"),
        ):
            if found:
                told = ", ".join(_plain(text) for _, text in sorted(found)[:_NAMED])
                more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
                first = ", ".join(_plain(name) for name, _ in sorted(found)[:2])
                yield (
                    f"{what}: {looks}: {told}{more} in {self.given.origin}; {cure} under this input in the "
                    f"spec, such as `allow: [{first}]`"
                )


def _plain(name: str) -> str:
    return name if name.isprintable() else ascii(name)
