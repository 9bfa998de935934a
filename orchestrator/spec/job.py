"""Turns a spec's file or text into a job and the paths of its files.

The entry point of this package. Decides what paths refer to; must never read those files: that is
`orchestrator.freeze.bundle`.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from orchestrator.core.job import (
    DEFAULT,
    Best,
    CatchUp,
    CheckpointPolicy,
    Claim,
    CostPhase,
    Input,
    Job,
    Keep,
    Mode,
    Needs,
    OnNan,
    Overlap,
    Precision,
    Prefer,
    Profile,
    Python,
    Recurrence,
    Requirements,
    RouteWish,
    Window,
    Work,
)
from orchestrator.core.own_accelerators import NO_OWN, Own
from orchestrator.errors import InputError, Mistake, SpecError
from orchestrator.files import open_own
from orchestrator.spec import document, elsewhere
from orchestrator.spec.checks import image_folder, is_path, job_problems
from orchestrator.spec.fetching import InputWish
from orchestrator.spec.mistakes import schema_of, validate
from orchestrator.spec.rules import build_rules
from orchestrator.spec.schema import (
    ClaimSection,
    JobSection,
    ProfileSection,
    RouteSection,
    ScheduleSection,
    WorkSection,
)

_SCRIPTS = frozenset({".py", ".ipynb"})
_OWN_REQUIREMENTS = ".orchestrator/requirements"

_NOT_IN_SCHEMA = """A job for the orchestrator. What this schema cannot say, and `submit` reports:
work.group must divide work.global_batch; each profile's micro_batch must be a multiple of work.group, and
micro_batch × devices must divide work.global_batch; phases begin at step 0, rise, and stay below
work.total; rules and profiles name accelerators of the catalogue or of
the config; command splits as a shell would, holds known
placeholders only and needs no shell; route.precision is one that a profile has; a claim's and a range's
lower number comes first; a rule has exactly one of require, avoid and prefer and a pattern that is not
empty; source is needed unless image is given; outputs lie below the working directory; source,
requirements, path inputs and image folders exist; inputs come from a path, https, kaggle: or hf:; names
of inputs, tags and secrets are given once; env names neither secrets nor ORCHESTRATOR_ variables, secrets
none of the latter, and no word of command looks like a secret; dates, durations and image names are
possible ones; numbers are finite; a schedule's cron line names dates that exist, its time zone is known,
its window is not the whole day and has at least one fire, and overlap: replace needs mode: fresh. The file
is UTF-8, one document of at most 256 KiB and 24 levels, without anchors, aliases, tags, repeated keys and
keys that are not text."""


@dataclass(frozen=True)
class Parsed:
    """A job and the files it names, as absolute paths if the spec's folder is known.

    `job.bundle` is still empty; the job's requirements are paths inside the bundle. `requirements` are their
    files, and `locks` their locks, by the kind of accelerator or `default`. `image` is the folder to
    build `job.image` from; None if that is an image's name. `source_allow` are paths in the source, and
    `input_allow` paths in each input, in the order of `job.inputs`, as `input_wishes` are. `extra`: what
    else the bundle holds, by its path there. `lines`: where each key stands in the spec.
    """

    job: Job
    file: str
    source: Path | None = None
    requirements: Mapping[str, Path] = field(default_factory=dict)
    image: Path | None = None
    source_allow: tuple[str, ...] = ()
    input_allow: tuple[tuple[str, ...], ...] = ()
    input_wishes: tuple[InputWish, ...] = ()
    locks: Mapping[str, bytes] = field(default_factory=dict)
    extra: Mapping[str, bytes] = field(default_factory=dict)
    lines: Mapping[document.Path, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def also(self) -> dict[str, Path | bytes]:
        """What the bundle holds in addition to the source: path in the bundle → file, or its content."""
        given = self.job.all_requirements
        found: dict[str, Path | bytes] = {given[kind].file: path for kind, path in self.requirements.items()}
        found |= {path: lock for kind, lock in self.locks.items() if (path := given[kind].lock)}
        return found | dict(self.extra)

    def mistake(self, path: document.Path, message: str) -> Mistake:
        """A mistake of this spec that was found after it was read."""
        return document.Document(self.file, lines=self.lines).mistake(path, message)

    @contextlib.contextmanager
    def at(self, *path: str) -> Iterator[None]:
        """Turns an InputError about what a key names into one that tells the key and its line."""
        try:
            yield
        except SpecError:
            raise
        except InputError as error:
            raise SpecError(tuple(self.mistake(path, each) for each in str(error).splitlines())) from error

    def locked(self, locks: Mapping[str, bytes]) -> Parsed:
        """The same job with these requirements locked."""
        given = {
            kind: replace(each, lock=_own_path(kind, "lock")) if kind in locks else each
            for kind, each in self.job.all_requirements.items()
        }
        return replace(self, locks=locks, job=_with(self.job, given))


def load(path: Path, own: Own = NO_OWN) -> Parsed:
    """Reads a spec's file. `own`: the accelerators of the user's config. Raises SpecError with every mistake,
    InputError if the file cannot be read."""
    if path.suffix in _SCRIPTS and path.is_file():
        raise InputError(
            f"{path} is a script, not a job file; `orchestrator new {path}` writes a job file for it"
        )
    data = read_bytes(path)
    return parse(data, str(path), path.absolute().parent, own)


def read_bytes(path: Path, advice: str = "give the file of a spec") -> bytes:
    """A file's bytes, at most one more than the limit. Raises InputError, with `advice` if `path` is not a
    file."""
    try:
        with open_own(path) as file:
            return file.read(document.BYTES_MAX + 1)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except InputError as error:
        raise InputError(f"{error}: {advice}") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None


def parse(text: bytes, file: str, folder: Path | None, own: Own = NO_OWN) -> Parsed:
    """The job that `text` declares. Mistakes name it `file`. Its paths are relative to `folder`; if that is
    None, they are not looked up.

    Raises SpecError with every mistake, in line order.
    """
    found = document.read(text, file)
    spec = validate(JobSection, found, job_problems(found.tree, folder, own), elsewhere.HINTS)
    return Parsed(
        job=_job(spec, folder),
        file=file,
        source=_path(spec.source, folder),
        requirements={
            kind: path for kind, name in (spec.requirements or {}).items() if (path := _path(name, folder))
        },
        image=image_folder(spec.image, folder) if spec.image is not None else None,
        source_allow=tuple(posixpath.normpath(entry) for entry in spec.source_allow),
        input_allow=tuple(tuple(posixpath.normpath(path) for path in i.allow) for i in spec.inputs),
        input_wishes=tuple(InputWish.of(i.max_gb, i.token) for i in spec.inputs),
        lines=found.lines,
    )


@functools.cache
def schema() -> dict[str, Any]:
    """The spec's JSON Schema (draft 2020-12), which accepts all that `parse` accepts."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Job"}
    return head | schema_of(JobSection) | {"description": " ".join(_NOT_IN_SCHEMA.split())}


def _path(name: str | None, folder: Path | None) -> Path | None:
    if name is None:
        return None
    return Path(name) if folder is None else folder / name


def _job(spec: JobSection, folder: Path | None) -> Job:
    requirements: dict[str, Requirements] = {
        kind: Requirements(_bundled(spec.source, name, kind))
        for kind, name in (spec.requirements or {}).items()
    }
    job = Job(
        name=spec.name,
        command=spec.command.words,
        shell=spec.command.shell,
        work=_work(spec.work),
        profiles=tuple((name, _profile(profile)) for name, profile in spec.profiles.items()),
        image=_image(spec.image, folder),
        seed=spec.seed,
        tags=tuple(spec.tags),
        inputs=tuple(Input(i.name, _origin(i.from_, folder), i.sha256) for i in spec.inputs),
        needs=Needs(spec.needs.disk_gb, spec.needs.memory_gb, spec.needs.internet, image=spec.source is None),
        checkpoint=_checkpoint(spec),
        route=_route(spec.route),
        without_progress=spec.retry.without_progress,
        env=tuple(sorted(spec.env.items())),
        secrets=tuple(spec.secrets),
        schedule=None if spec.schedule is None else _recurrence(spec.schedule),
        notify=spec.notify.build() if spec.notify is not None else None,
        outputs=None if spec.outputs is None else tuple(spec.outputs),
        on_nan=OnNan(spec.on_nan),
        python=None if spec.python is None else Python(spec.python, given=True),
    )
    return _with(job, requirements)


def _work(work: WorkSection) -> Work:
    phases = tuple(CostPhase(phase.from_, phase.flops_per_step) for phase in work.phases)
    return Work(
        work.total, work.global_batch, work.unit, work.group, work.parameters, work.flops_per_step, phases
    )


def _profile(profile: ProfileSection) -> Profile:
    claim = _claim(profile.claim) if profile.claim is not None else None
    return Profile(profile.micro_batch, Precision(profile.precision), profile.memory_gb, claim)


def _claim(claim: ClaimSection) -> Claim:
    low, high = claim.steps_per_second
    return Claim((low, high), claim.batch, claim.on, claim.source, claim.date)


def _checkpoint(spec: JobSection) -> CheckpointPolicy:
    keep = spec.checkpoint.keep
    best = Best(keep.best.metric, keep.best.mode) if keep.best is not None else None
    return CheckpointPolicy(spec.checkpoint.interval, Keep(keep.last, best), spec.checkpoint.watch)


def _route(route: RouteSection) -> RouteWish:
    precision = None if route.precision == "any" else Precision(route.precision)
    rules = build_rules(route.rules, "job")
    return RouteWish(Prefer(route.prefer), tuple(route.platforms), precision, route.finish_within, rules)


def _recurrence(given: ScheduleSection) -> Recurrence:
    return Recurrence(
        " ".join(given.cron.split()),
        given.timezone,
        Mode(given.mode),
        Overlap(given.overlap),
        CatchUp(given.catch_up),
        given.jitter or 0.0,
        None if given.window is None else Window(*given.window),
    )


def _origin(origin: str, folder: Path | None) -> str:
    return str(folder / origin) if folder is not None and is_path(origin) else origin


def _image(image: str | None, folder: Path | None) -> str | None:
    local = image_folder(image, folder) if image is not None else None
    return image if local is None else str(local)


def _bundled(source: str | None, requirements: str, kind: str) -> str:
    """The requirements file's path in the bundle: its own path if it is in the source."""
    inside = posixpath.relpath(posixpath.normpath(requirements), posixpath.normpath(source or "."))
    elsewhere = source is None or inside.split("/")[0] == ".."
    return _own_path(kind, "txt") if elsewhere else inside


def _own_path(kind: str, extension: str) -> str:
    """The path in the bundle of a file that does not come from the source."""
    return f"{_OWN_REQUIREMENTS}{'' if kind == DEFAULT else f'-{kind}'}.{extension}"


def _with(job: Job, requirements: Mapping[str, Requirements]) -> Job:
    default = requirements.get(DEFAULT)
    return replace(
        job,
        requirements=default.file if default else None,
        requirements_lock=default.lock if default else None,
        variants=tuple((kind, each) for kind, each in requirements.items() if kind != DEFAULT),
    )
