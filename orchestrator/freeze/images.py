"""Freezes an image folder, and the folders it builds on, into one archive named by its content.

Decides the build contexts and their order, and refuses what cannot be built or must not leave this machine.
Must never know an engine, the values of build arguments, or where the archive goes from here.

The archive has a folder `0/`, `1/`, … with the build context of each image, and `chain.json`: {"images":
[{"name", "arguments": {ARG: default or null}, "from": […]}, …]} in the same order. `from` are the references
of images that are not built here, as written. Each image after the first builds on the one before it. Its
argument BASE takes that image's id.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import stat
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core import build_arguments, credentials
from orchestrator.errors import InputError
from orchestrator.files import kernel_way, open_own, read_own
from orchestrator.freeze import bundle, ignoring

CHAIN = "chain.json"
DOCKERFILE = "Dockerfile"
REQUIREMENTS = "requirements.txt"
BASE = "BASE"
_IGNORE = ".dockerignore"
# Neither belongs in an image, and both differ between checkouts of the same sources.
_ALWAYS_OUT = frozenset({".git", "__pycache__"})
_NAMED = 5
_DOCKERFILE_BYTES_MAX = 256 * 1024
_INSTRUCTION_CHARS_MAX = build_arguments.VALUE_CHARS_MAX
_ARGUMENTS_MAX = 500
_CHAIN_MAX = 20
_TOLD_MAX = 10
_FOLDER = re.compile(r"\.\.?(/|$)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_KEEPS = "anyone with the image could read it: use an address without a login, or a build secret"
_ESCAPE = re.compile(r"#\s*escape\s*=\s*([\\`])\s*", re.IGNORECASE)


@dataclass(frozen=True)
class _Dockerfile:
    """The parts of a Dockerfile that matter here. `base` is the folder of the image that is built first, if
    there is one. `wants_requirements` is the line that copies requirements.txt, 0 if none does."""

    folder: Path
    arguments: Mapping[str, str | None] = field(default_factory=dict)
    origins: tuple[str, ...] = ()
    base: Path | None = None
    base_line: int = 0
    wants_requirements: int = 0

    @property
    def path(self) -> Path:
        return self.folder / DOCKERFILE

    @property
    def name(self) -> str:
        """The folder's name as part of an image's name: lower-case letters, digits and single hyphens."""
        return re.sub(r"[^a-z0-9]+", "-", self.folder.resolve().name.lower()).strip("-") or "image"


def freeze(folder: Path, into: Path, *, requirements: Path | None = None, allow: Collection[str] = ()) -> str:
    """Writes `<into>/<sha256>.tar.gz` and returns the sha256 of its bytes. The file is durable by then.

    The same folders give the same bytes on every machine. If a Dockerfile copies a requirements.txt that its
    folder does not have, it gets `requirements`, the job's own. `allow` are paths in an image's folder that
    only look like credentials. Raises InputError that names the file, the line if known, and what to do.
    """
    chain = _chain(folder)
    entries: dict[str, Path] = {}
    for number, image in enumerate(chain):
        for name, path in _context(image, requirements).items():
            entries[f"{number}/{name}"] = path
    _check_size(chain, entries)
    allowed = {name for name in entries if name.partition("/")[2] in allow}
    _check_credentials({name: path for name, path in entries.items() if name not in allowed})
    with tempfile.TemporaryDirectory() as scratch:
        described = Path(scratch) / CHAIN
        described.write_text(_describe(chain), encoding="utf-8")
        return bundle.freeze(None, into, allow=allowed, also={**entries, CHAIN: described})


def _describe(chain: list[_Dockerfile]) -> str:
    images = [
        {"name": image.name, "arguments": dict(sorted(image.arguments.items())), "from": list(image.origins)}
        for image in chain
    ]
    return json.dumps({"images": images}, indent=1, sort_keys=True) + "\n"


# --- The chain ------------------------------------------------------------------------------------------


def _chain(folder: Path) -> list[_Dockerfile]:
    """The images in build order: an image comes before those that build on it."""
    found: list[_Dockerfile] = []
    seen: list[Path] = []
    current: Path | None = folder
    while current is not None:
        place = current.resolve()
        if place in seen:
            loop = " → ".join(path.name for path in [*seen[seen.index(place) :], place])
            top = found[-1]
            raise InputError(f"{top.path}:{top.base_line}: ARG {BASE} builds images in a circle: {loop}")
        if len(found) == _CHAIN_MAX:
            raise InputError(f"{found[-1].path}: more than {_CHAIN_MAX} images that build on each other")
        image = _parse(current, found[-1] if found else None)
        seen.append(place)
        found.append(image)
        current = image.base
    return found[::-1]


def _read(folder: Path, above: _Dockerfile | None) -> str:
    path = folder / DOCKERFILE
    if not path.is_file():
        if above is not None:
            raise InputError(
                f"{above.path}:{above.base_line}: ARG {BASE} leads to {folder}, which has no {DOCKERFILE}"
            )
        raise InputError(
            f"{folder}: no {DOCKERFILE} there; `image` must be a folder with a {DOCKERFILE}, or a name that "
            "an engine can pull"
        )
    try:
        with open_own(path) as stream:
            content = stream.read(_DOCKERFILE_BYTES_MAX + 1)
        text = content.decode("utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    if len(content) > _DOCKERFILE_BYTES_MAX:
        raise InputError(f"{path}: larger than {_DOCKERFILE_BYTES_MAX // 1024} KiB; is this a Dockerfile?")
    return text


def _parse(folder: Path, above: _Dockerfile | None) -> _Dockerfile:
    arguments: dict[str, str | None] = {}
    origins: list[str] = []
    stages: set[str] = set()
    mistakes: list[tuple[int, str]] = []
    base: str | None = None
    base_line = wants = froms = 0
    base_used = False
    text = _read(folder, above)
    values = _Values(mistakes)
    for line, word, rest in _instructions(text):
        if len(rest) > _INSTRUCTION_CHARS_MAX:
            mistakes.append((line, f"{word[:20]}: longer than {_INSTRUCTION_CHARS_MAX:,} characters"))
            continue
        values.take(line, word, rest)
        if word == "ARG":
            for name, default in _declared(line, rest, mistakes):
                if name == BASE and default is not None and not froms and _FOLDER.match(default):
                    base, base_line, default = default, line, None
                arguments[name] = arguments.get(name) if default is None else default
        elif word == "FROM":
            froms += 1
            reference, stage = _from(rest)
            used = {a or b for a, b in _VARIABLE.findall(reference)}
            unknown = sorted(used - set(arguments))
            if not reference:
                mistakes.append((line, "FROM names no image"))
            elif unknown:
                mistakes.append((line, f"FROM uses {', '.join(unknown)}, which no ARG before it declares"))
            elif base is not None and BASE in used:
                base_used = True
            elif reference.lower() not in {*stages, "scratch"}:
                origins.append(reference)
            stages |= {stage}
        elif word in ("COPY", "ADD") and _copies_requirements(rest):
            wants = wants or line
    if not froms:
        mistakes.append((1, "FROM is missing; add one that says what the image builds on"))
    if base is not None and not base_used and froms:
        mistakes.append(
            (base_line, f"ARG {BASE} names a folder, but no FROM uses it; write FROM ${{{BASE}}}")
        )
    mistakes += ((mark.line, f"{mark.kind}; {_KEEPS}") for mark in credentials.logins(text))
    if mistakes:
        told = [f"{folder / DOCKERFILE}:{line}: {mistake}" for line, mistake in mistakes[:_TOLD_MAX]]
        more = [f"and {len(mistakes) - _TOLD_MAX} more mistakes"] if len(mistakes) > _TOLD_MAX else []
        raise InputError("\n".join(told + more))
    below = None if base is None else Path(os.path.normpath(folder.absolute() / base))
    return _Dockerfile(folder, arguments, tuple(dict.fromkeys(origins)), below, base_line, wants)


class _Values:
    """The values that an engine will give to ARG and ENV, line by line.

    An engine expands values without a limit. So values that are too long are refused here, before they fill
    an engine's memory.
    """

    def __init__(self, mistakes: list[tuple[int, str]]) -> None:
        self._mistakes = mistakes
        self._known: dict[str, str] = {}
        self._count = 0

    def take(self, line: int, word: str, rest: str) -> None:
        if word not in ("ARG", "ENV"):
            if word == "FROM":
                self._fill(line, word, "", rest, build_arguments.REFERENCE_CHARS_MAX)
            return
        name, space, value = rest.partition(" ")
        # `ENV NAME value` has one value, which ends with the line.
        one = word == "ENV" and space and "=" not in name
        for each, given in [(name, value)] if one else _declared(line, rest, []):
            self._count += 1
            if self._count > _ARGUMENTS_MAX:
                if self._count == _ARGUMENTS_MAX + 1:
                    self._mistakes.append((line, f"more than {_ARGUMENTS_MAX} arguments and variables"))
                return
            self._fill(line, word, each, given or "", build_arguments.VALUE_CHARS_MAX)

    def _fill(self, line: int, word: str, name: str, given: str, chars_max: int) -> None:
        try:
            found = build_arguments.filled(given, self._known, chars_max)
        except build_arguments.TooLong as error:
            self._mistakes.append((line, f"{f'{word} {name}'.strip()[:60]} is {error}"))
            found = ""
        if name and (found or word == "ENV"):
            self._known[name] = found


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """The line, word and rest of every instruction. Continued lines are joined, comments left out."""
    escape = match.group(1) if (match := _ESCAPE.match(text)) else "\\"
    begun, parts = 0, list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        begun = begun or number
        parts.append(stripped.removesuffix(escape))
        if not stripped.endswith(escape):
            word, _, rest = " ".join(parts).strip().partition(" ")
            yield begun, word.upper(), rest.strip()
            begun, parts = 0, []
    if parts:
        word, _, rest = " ".join(parts).strip().partition(" ")
        yield begun, word.upper(), rest.strip()


def _declared(line: int, rest: str, mistakes: list[tuple[int, str]]) -> Iterator[tuple[str, str | None]]:
    try:
        words = shlex.split(rest)
    except ValueError as error:
        mistakes.append((line, f"ARG {rest}: {error}"))
        return
    for word in words:
        name, given, default = word.partition("=")
        yield name, default if given else None


def _from(rest: str) -> tuple[str, str]:
    """The reference, and the name of the stage (empty if it has none)."""
    words = [word for word in rest.split() if not word.startswith("--")]
    stage = words[2].lower() if len(words) > 2 and words[1].lower() == "as" else ""
    return (words[0] if words else ""), stage


def _copies_requirements(rest: str) -> bool:
    words = re.findall(r"[^\s\",\[\]]+", rest)
    if any(word.startswith("--from") for word in words):
        return False
    sources = [word for word in words if not word.startswith("--")][:-1]
    return any(posixpath.normpath(source.lstrip("/")) == REQUIREMENTS for source in sources)


# --- What is included -----------------------------------------------------------------------------------


def _context(image: _Dockerfile, requirements: Path | None) -> dict[str, Path]:
    found = _files(image.folder)
    if image.wants_requirements and REQUIREMENTS not in found:
        if requirements is None:
            raise InputError(
                f"{image.path}:{image.wants_requirements}: copies {REQUIREMENTS}, which is not in this "
                "folder; put it there, or set the job's `requirements` in the spec"
            )
        if not requirements.is_file():
            raise InputError(f"{requirements}: no such file; correct `requirements` in the spec")
        found[REQUIREMENTS] = requirements
    return found


def _files(folder: Path) -> dict[str, Path]:
    """The files of one context by their paths in it, without those that .dockerignore excludes. The
    Dockerfile and .dockerignore itself are always included, as with docker's own client."""
    root = folder.resolve()
    ignore = _ignore_of(folder)
    found: dict[str, Path] = {}
    for parent, folders, files in os.walk(root, onerror=_unreadable):
        prefix = Path(parent).relative_to(root).as_posix()
        prefix = "" if prefix == "." else f"{prefix}/"
        for name in list(folders):
            # With exceptions (`!`), files below an excluded folder may still be included.
            out = ignore.leaves_out(prefix + name) and not ignore.has_exceptions
            if name in _ALWAYS_OUT or out:
                folders.remove(name)
            elif (Path(parent) / name).is_symlink():
                files.append(name)
        for name in files:
            path = prefix + name
            kept = path in (DOCKERFILE, _IGNORE) or not ignore.leaves_out(path)
            if name not in _ALWAYS_OUT and kept:
                found[path] = _checked(folder, root, path)
        if len(found) > bundle.ENTRIES_MAX:
            raise InputError(
                f"{folder}: more than {bundle.ENTRIES_MAX} files; list those that the image does not need in "
                f"{folder / _IGNORE}"
            )
    return found


def _unreadable(error: OSError) -> None:
    raise InputError(f"{error.filename}: cannot be read ({error.strerror})") from error


@dataclass(frozen=True)
class _Ignore:
    """The patterns of a .dockerignore file in order, each with True if it excludes, False if it includes."""

    patterns: tuple[tuple[re.Pattern[str], bool], ...] = ()

    @property
    def has_exceptions(self) -> bool:
        return not all(leaves_out for _, leaves_out in self.patterns)

    def leaves_out(self, name: str) -> bool:
        """Whether the path is excluded: the last pattern that matches it, or a folder above it, decides."""
        folders = [match.start() for match in re.finditer("/", name)]
        paths = [*(name[:end] for end in folders), name]
        answers = (out for pattern, out in reversed(self.patterns) if any(map(pattern.fullmatch, paths)))
        return next(answers, False)


def _ignore_of(folder: Path) -> _Ignore:
    path = folder / _IGNORE
    patterns: list[tuple[re.Pattern[str], bool]] = []
    try:
        data = read_own(path, ignoring.BYTES_MAX) if path.is_file() else b""
        lines = data.decode("utf-8").splitlines()
        ignoring.check_patterns(path, lines)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or line.startswith("#"):
            continue
        pattern = posixpath.normpath(text.removeprefix("!").strip().lstrip("/"))
        if pattern == ".":
            continue
        try:
            patterns.append((re.compile(_expression(pattern)), not text.startswith("!")))
        except re.error as error:
            raise InputError(f"{path}:{number}: {text}: {error}") from error
    return _Ignore(tuple(patterns))


def _expression(pattern: str) -> str:
    """A .dockerignore pattern as a regular expression, converted as docker's own client does."""
    parts = re.findall(r"\*\*+/?|\*|\?|\\.|[\[\]^-]|.", pattern)
    found = ""
    for number, part in enumerate(parts, start=1):
        if part.startswith("**"):
            found += ".*" if number == len(parts) else "(.*/)?"
        elif part in ("*", "?"):
            found += "[^/]*" if part == "*" else "[^/]"
        else:
            found += part if part in "[]^-" or len(part) > 1 else re.escape(part)
    return found


def _checked(folder: Path, root: Path, name: str) -> Path:
    """The file to read for `name`. A link inside the folder is replaced by its target."""
    path = root / name
    target = path.resolve()
    is_odd = target.exists() and not (target.is_file() or target.is_dir())
    if path.is_symlink() and not target.is_relative_to(root) and not is_odd:
        raise InputError(f"{folder / name}: a link out of the folder; copy its target into the folder")
    try:
        mode = target.stat().st_mode
    except OSError as error:
        raise InputError(f"{folder / name}: cannot be read ({error.strerror})") from error
    if way := kernel_way(path):
        raise InputError(
            f"{folder / name}: leads into {way}, whose files the kernel makes up; list it in "
            f"{folder / _IGNORE}"
        )
    if not stat.S_ISREG(mode):
        kind = "a link to a folder" if stat.S_ISDIR(mode) else "a socket, pipe or device"
        raise InputError(
            f"{folder / name}: {kind} cannot be included; remove it or list it in {folder / _IGNORE}"
        )
    return target


def _check_size(chain: list[_Dockerfile], entries: Mapping[str, Path]) -> None:
    sizes = {name: path.stat().st_size for name, path in entries.items()}
    total = sum(sizes.values())
    if total <= bundle.BYTES_MAX:
        return
    largest = sorted(sizes, key=lambda name: -sizes[name])[:_NAMED]
    told = ", ".join(f"{_shown(chain, name)} {sizes[name] / 1e6:.1f} MB" for name in largest)
    raise InputError(
        f"{chain[-1].folder}: {total / 1e6:.1f} MB go into the image's build, but the limit is "
        f"{bundle.BYTES_MAX / 1e6:.0f} MB; list files that the image does not need in {_IGNORE}. "
        f"The largest: {told}"
    )


def _shown(chain: list[_Dockerfile], name: str) -> str:
    number, _, path = name.partition("/")
    return str(chain[int(number)].folder / path)


def _check_credentials(entries: Mapping[str, Path]) -> None:
    found = sorted(filter(None, (_credential(name, path) for name, path in entries.items())))
    if found:
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        raise InputError(
            f"looks like credentials: {', '.join(found[:_NAMED])}{more}; anyone with the image could read "
            f"them: list them in {_IGNORE}, or, if they are not credentials, under `source_allow` in the spec"
        )


def _credential(name: str, path: Path) -> str:
    if credentials.in_name(name):
        return str(path)
    mark = credentials.in_content(_content(path))
    return "" if mark is None else mark.at(str(path))


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
