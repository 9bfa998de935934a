"""Checks between the values of a job spec: how batches divide, which names exist, which files exist.

Reads the tree and not the models, so that one wrong value never hides a mistake in another. Must never decide
what a single value may look like: that is `orchestrator.spec.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path as FilePath
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, available_timezones

from orchestrator import cron
from orchestrator.core import credentials
from orchestrator.core.job import Precision, Recurrence, Work
from orchestrator.core.own_accelerators import NO_OWN, Own, row_named
from orchestrator.core.profiles import is_general
from orchestrator.core.wording import did_you_mean, suggested, with_valid
from orchestrator.files import kernel_way
from orchestrator.spec import commands
from orchestrator.spec.document import Path, Problem, shown
from orchestrator.spec.fields import COUNT_MAX
from orchestrator.spec.profile_keys import profile_problems
from orchestrator.spec.rules import rule_problems
from orchestrator.spec.schema import MICRO_BATCH_MAX, window_of
from orchestrator.user import known_home

_SUGGESTED_MAX = 8
_REFERENCE = re.compile(
    r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?::[0-9]+)?(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_SCHEME = re.compile(r"^(?:[a-z]+://)?(?:(?:hub|registry)\.docker\.com/(?:r/|_/)?)?")
_PACKAGE = re.compile(r"[A-Za-z0-9._-]+(?:\[[a-z0-9,]+\])? ?(?:[=<>~!]=|[<>]).*")
_NOT_FOR_PIP = frozenset({".yml", ".yaml", ".toml", ".cfg", ".py", ".json"})
_LISTED_MAX = 1000
_PRECISIONS = tuple(precision.value for precision in Precision)


def job_problems(tree: object, folder: FilePath | None, own: Own = NO_OWN) -> Iterator[Problem]:
    """All mistakes of a spec that involve several values; files are looked up if `folder` is given.
    `own`: the accelerators of the user's config."""
    if not isinstance(tree, dict):
        return
    yield from profile_problems(_at(tree, "profiles"), own)
    yield from _batches(tree, own)
    yield from _phases(tree)
    yield from _precision(tree)
    yield from rule_problems(_at(tree, "route", "rules"), ("route", "rules"), own)
    yield from _environment(tree)
    yield from _command(tree, folder)
    yield from _inputs(tree, folder)
    yield from _paths(tree, folder)
    yield from _schedule(tree.get("schedule"))


def zone_problem(name: str) -> str | None:
    """Why this is not the name of a time zone, or None if it is."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        near = did_you_mean(name, available_timezones())
        return (
            f"given {shown(name)}; {near}valid: a time zone that this machine knows, such as Europe/Berlin "
            "or UTC"
        )
    return None


def _zone(name: object, path: Path) -> Iterator[Problem]:
    problem = zone_problem(name) if isinstance(name, str) and name else None
    if problem is not None:
        yield Problem(path, problem)


def _schedule(given: object) -> Iterator[Problem]:
    zone, line, window = _at(given, "timezone"), _at(given, "cron"), _at(given, "window")
    yield from _zone(zone, ("schedule", "timezone"))
    if _at(given, "overlap") == "replace" and _at(given, "mode") in (None, "continue"):
        yield Problem(("schedule", "overlap"), "given replace, which would cancel the one run that `mode: "
                                               "continue` grows; valid: skip, or mode: fresh")  # fmt: skip
    if not isinstance(line, str) or cron.problem(line) is not None:
        return
    name = zone if isinstance(zone, str) and zone else "UTC"
    times = window_of(window)
    if times is None or not cron.knows(name):
        return
    if cron.never_meets_window(Recurrence(line, name, window=times)):
        yield Problem(("schedule", "window"), f"given {shown(window)}, in which {shown(line)} never fires; "
                                              "valid: a window with at least one fire")  # fmt: skip


def _at(tree: object, *path: str) -> object:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _count(value: object) -> int | None:
    """The value as the models read a whole number from 1; None if they refuse it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if 1 <= value <= COUNT_MAX and value == int(value) else None


# --- Batches --------------------------------------------------------------------------------------------


def _batches(tree: dict[str, object], own: Own) -> Iterator[Problem]:
    profiles = _at(tree, "profiles")
    global_batch = _count(_at(tree, "work", "global_batch"))
    given = _at(tree, "work", "group")
    group = 1 if given is None else _count(given)
    if global_batch is None or group is None:
        return
    if global_batch % group:
        message = f"given {group}, which does not divide global_batch {global_batch}; valid: a divisor of it"
        yield Problem(("work", "group"), message)
        return
    work = Work(total=1, global_batch=global_batch, group=group)
    for name, profile in profiles.items() if isinstance(profiles, dict) else ():
        micro_batch = _count(_at(profile, "micro_batch"))
        if micro_batch is not None and micro_batch <= MICRO_BATCH_MAX:
            yield from _division(work, name, micro_batch, own)


def _division(work: Work, name: str, micro_batch: int, own: Own) -> Iterator[Problem]:
    """`default` and the like are for any number of devices, so they must divide at least for one."""
    row = None if is_general(name) else row_named(name, own)
    devices = 1 if row is None else row.devices
    if work.accumulate(micro_batch, devices) is not None:
        return
    reasons = []
    if work.global_batch % (micro_batch * devices):
        product = f"{micro_batch} × {devices} devices" if devices > 1 else str(micro_batch)
        reasons.append(f"global_batch {work.global_batch} is not a whole multiple of {product}")
    if micro_batch % work.group:
        reasons.append(f"it is not a whole multiple of work.group {work.group}")
    valid = _nearest(_micro_batches(work, devices), micro_batch)
    told = f"valid: {', '.join(map(str, valid))}" if valid else f"no value is valid on {devices} devices"
    yield Problem(("profiles", name, "micro_batch"), f"given {micro_batch}: {'; '.join(reasons)}; {told}")


def _micro_batches(work: Work, devices: int) -> list[int]:
    most = min(MICRO_BATCH_MAX, work.global_batch // devices)
    whole, rest = divmod(work.global_batch, devices)
    return [] if rest else [m for m in range(work.group, most + 1, work.group) if whole % m == 0]


def _nearest(values: Sequence[int], given: int) -> list[int]:
    return sorted(sorted(values, key=lambda value: abs(value - given))[:_SUGGESTED_MAX])


def _phases(tree: dict[str, object]) -> Iterator[Problem]:
    phases = _at(tree, "work", "phases")
    total = _count(_at(tree, "work", "total"))
    before = -1
    for number, phase in enumerate(phases if isinstance(phases, list) else ()):
        start = _at(phase, "from")
        if isinstance(start, bool) or not isinstance(start, int | float) or not 0 <= start <= COUNT_MAX:
            continue
        path: Path = ("work", "phases", number, "from")
        if number == 0 and start != 0:
            yield Problem(path, f"given {start:g}; valid: 0, because the first phase begins at step 0")
        elif start <= before:
            yield Problem(
                path, f"given {start:g} after {before:g}; valid: a later step than the phase before"
            )
        elif total is not None and start >= total:
            yield Problem(path, f"given {start:g}; valid: a step before work.total, {total}")
        before = max(before, int(start))


def _precision(tree: dict[str, object]) -> Iterator[Problem]:
    wish, profiles = _at(tree, "route", "precision"), _at(tree, "profiles")
    if wish not in _PRECISIONS or not isinstance(profiles, dict):
        return
    given = [_at(profile, "precision") for profile in profiles.values()]
    found = [precision for precision in _PRECISIONS if precision in given]
    if found and wish not in found:
        message = f"given {wish!r}, which no profile has; valid: any, {', '.join(found)}"
        yield Problem(("route", "precision"), message)


# --- Environment, inputs, files -------------------------------------------------------------------------


def is_reserved(name: str) -> bool:
    """Whether an environment variable is the orchestrator's own: no job may set it or get it as a secret."""
    return name.upper().startswith("ORCHESTRATOR_")


def _environment(tree: dict[str, object]) -> Iterator[Problem]:
    env, secrets = _at(tree, "env"), _at(tree, "secrets")
    names = secrets if isinstance(secrets, list) else []
    for name, value in env.items() if isinstance(env, dict) else ():
        path: Path = ("env", name)
        if is_reserved(name):
            yield Problem(path, "names with ORCHESTRATOR_ are set by the agent; choose another")
        elif name in names:
            yield Problem(path, "also listed under `secrets`; keep it there only")
        elif credentials.in_variable(name, value):
            yield Problem(path, "looks like a secret; list its name under `secrets` and set the value in the "
                                "environment of `submit` (the value is not shown)")  # fmt: skip
    for number, name in enumerate(names):
        if isinstance(name, str) and is_reserved(name):
            yield Problem(
                ("secrets", number), "names with ORCHESTRATOR_ are the orchestrator's own; choose another"
            )


def _command(tree: dict[str, object], folder: FilePath | None) -> Iterator[Problem]:
    command, source = tree.get("command"), tree.get("source")
    known = folder is not None and isinstance(source, str) and not _kernels(source, folder)
    if known and folder is not None and isinstance(source, str) and _is_folder(folder / source):
        missing = commands.missing_script(command, folder / source, has_image="image" in tree)
        if missing is not None:
            yield Problem(("command",), missing)
    if credentials.in_words(commands.words_of(command)):
        yield Problem(("command",), "a word looks like a secret; list its variable under `secrets` and let "
                                    "the script read that variable (the word is not shown)")  # fmt: skip


def _inputs(tree: dict[str, object], folder: FilePath | None) -> Iterator[Problem]:
    inputs = _at(tree, "inputs")
    seen: set[object] = set()
    for number, entry in enumerate(inputs if isinstance(inputs, list) else ()):
        name, origin = _at(entry, "name"), _at(entry, "from")
        if isinstance(name, str) and name in seen:
            yield Problem(
                ("inputs", number, "name"),
                f"given {shown(name)} twice; valid: a different name for each input",
            )
        seen |= {name} if isinstance(name, str) else set()
        if isinstance(origin, str) and origin:
            yield from _origin(origin, ("inputs", number, "from"), folder)


_WEB = r"https?://[^/\s@?#\\]+(/[^\s#]*)?"
_ORIGINS = {  # read by orchestrator.fetching.sources
    "https": (_WEB, "https://host/path, without a user or password"),
    "http": (_WEB, "https://host/path, without a user or password"),
    "kaggle": (
        r"kaggle:[A-Za-z0-9_-]+/[A-Za-z0-9_.-]+(/[0-9]{1,9})?(/\S.*)?",
        "kaggle:owner/dataset, or with /version, /file or both behind it",
    ),
    "hf": (
        r"hf:[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+(@[A-Za-z0-9_.-]+)?(/\S.*)?",
        "hf:owner/dataset, or with @revision, /path or both behind it",
    ),
}


_PAGE = re.compile(
    r"https://(?:www\.)?(?:kaggle\.com/datasets/([\w-]+/[\w.-]+)|huggingface\.co/datasets/([\w.-]+/[\w.-]+))/?"
)


def is_path(origin: str) -> bool:
    """Whether an input comes from this machine's files rather than from `https://`, `kaggle:` or `hf:`."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", origin) is None


def _origin(origin: str, path: Path, folder: FilePath | None) -> Iterator[Problem]:
    scheme = origin.partition(":")[0]
    if is_path(origin):
        if folder is not None and (kernels := _kernels(origin, folder)):
            yield Problem(path, with_valid(kernels, "a file or folder, relative to this file"))
        elif folder is not None and not _exists(folder / origin):
            yield Problem(
                path, with_valid(_lack(origin, folder, "file"), "a file or folder, relative to this file")
            )
    elif page := _PAGE.fullmatch(origin):
        kind = "kaggle" if page[1] else "hf"
        yield Problem(path, f"given {shown(origin)}, which is a page; valid: {kind}:{page[1] or page[2]}")
    elif scheme in _ORIGINS:
        pattern, valid = _ORIGINS[scheme]
        if not re.fullmatch(pattern, origin) or not _splits(
            origin
        ):  # it may hold a login, so it is not repeated
            yield Problem(path, f"not an origin of an input; valid: {valid}")
    else:
        valid = (
            "a file or folder, relative to this file; or https://…, kaggle:owner/dataset, hf:owner/dataset"
        )
        given = scheme if "@" in origin else origin  # a login is not repeated
        yield Problem(path, f"given {shown(given)}; valid: {valid}; download it first")


def _splits(address: str) -> bool:
    """Whether it is an address that programs can read. `https://[x/` is not, for example."""
    try:
        return urlsplit(address).port != 0
    except ValueError:
        return False


def _paths(tree: dict[str, object], folder: FilePath | None) -> Iterator[Problem]:
    source, image = tree.get("source"), tree.get("image")
    if "source" not in tree and "image" not in tree:
        yield Problem(("source",), "missing; valid: the folder of the code, relative to this file (not "
                                   "needed if an `image` holds the code)")  # fmt: skip
    if isinstance(image, str) and image:
        yield from _image(image, folder)
    if folder is None:
        return
    if isinstance(source, str) and source:
        yield from _source(source, folder)
    given = tree.get("requirements")
    files: list[tuple[Path, object]] = [(("requirements",), given)]
    if isinstance(given, dict):
        files = [(("requirements", str(kind)), name) for kind, name in given.items()]
    for path, name in files:
        if isinstance(name, str) and name:
            yield from _requirements(name, path, folder)


def _source(source: str, folder: FilePath) -> Iterator[Problem]:
    path: Path = ("source",)
    if "://" in source or source.startswith("git@"):
        yield Problem(path, f"given {shown(source)}; valid: a folder of this machine, such as a clone of it")
    elif kernels := _kernels(source, folder):
        yield Problem(path, with_valid(kernels, "a folder, relative to this file"))
    elif not _is_folder(folder / source):
        yield Problem(path, with_valid(_lack(source, folder, "folder"), "a folder, relative to this file"))
    elif _holds_home(folder / source):
        told = f"given {shown(source)}, which contains your whole home folder"
        yield Problem(path, f"{told}; valid: a folder with the code alone")


def _holds_home(folder: FilePath) -> bool:
    home = known_home()
    try:
        return home is not None and home.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False


def _requirements(name: str, path: Path, folder: FilePath) -> Iterator[Problem]:
    valid = "a file for pip with a package on each line, such as requirements.txt, relative to this file"
    if kernels := _kernels(name, folder):
        yield Problem(path, with_valid(kernels, valid))
    elif _is_file(folder / name):
        if FilePath(name).suffix in _NOT_FOR_PIP:
            yield Problem(path, f"given {shown(name)}, which pip cannot read; valid: {valid}")
    elif _PACKAGE.fullmatch(name):
        yield Problem(path, f"given {shown(name)}, which is a package; valid: {valid}")
    else:
        yield Problem(path, with_valid(_lack(name, folder, "file"), valid))


def _kernels(name: str, folder: FilePath) -> str:
    """What is wrong with a path into /proc, /sys and the like; empty for any other. Its content would be
    another one in each process, and may be another process's secret."""
    way = kernel_way(folder / name)
    return f"given {shown(name)}, which leads into {way}, whose files the kernel makes up" if way else ""


def _lack(name: str, folder: FilePath, wanted: str) -> str:
    """`given 'x', which does not exist in /folder`, with the name there that is probably meant."""
    if _exists(folder / name):
        return f"given {shown(name)}, which is not a {wanted}"
    if _is_link(folder / name):
        return f"given {shown(name)}, which is a link to nothing"
    home = "; ~ is not expanded" if name.startswith("~") else ""
    near = suggested(FilePath(name).name, _names(folder / name))
    return f"given {shown(name)}, which does not exist in {folder}{home}{near}"


def _names(path: FilePath) -> list[str]:
    """What lies beside a path that does not exist."""
    try:
        return [each.name for each in islice(path.parent.iterdir(), _LISTED_MAX)]
    except (OSError, ValueError):
        return []


def image_folder(image: str, folder: FilePath | None) -> FilePath | None:
    """The folder to build an image from, or None if `image` is an image's name."""
    written = image.startswith(("./", "../", "/")) or image in (".", "..")
    if folder is None:
        return FilePath(image) if written else None
    return folder / image if written or _is_folder(folder / image) else None


def _image(image: str, folder: FilePath | None) -> Iterator[Problem]:
    local = image_folder(image, folder)
    if local is None:
        if not _REFERENCE.fullmatch(image):
            name = _SCHEME.sub("", image).lower()
            near = f"; did you mean {shown(name)}?" if _REFERENCE.fullmatch(name) else ""
            valid = "a folder with a Dockerfile, relative to this file, or an image such as ghcr.io/me/it:tag"
            yield Problem(("image",), with_valid(f"given {shown(image)}{near}", valid))
    elif folder is not None and (kernels := _kernels(image, folder)):
        yield Problem(("image",), with_valid(kernels, "a folder with a Dockerfile, or an image's name"))
    elif folder is not None and not _is_file(local / "Dockerfile"):
        lack = f"given {shown(image)}, which has no Dockerfile"
        lack = lack if _is_folder(local) else _lack(image, folder, "folder")
        yield Problem(("image",), with_valid(lack, "a folder with a Dockerfile, or an image's name"))


def _exists(path: FilePath) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, a folder that may not be read
        return False


def _is_link(path: FilePath) -> bool:
    try:
        return path.is_symlink()
    except OSError:  # a name too long
        return False


def _is_folder(path: FilePath) -> bool:
    return _exists(path) and path.is_dir()


def _is_file(path: FilePath) -> bool:
    return _exists(path) and path.is_file()
