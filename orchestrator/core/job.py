"""The user's job as frozen values, built from a job spec.

Decides only the arithmetic of the values themselves (how a global batch divides). Must never know YAML, files
or platforms. `orchestrator.spec` builds these values; everything else only reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Precision(StrEnum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class Kind(StrEnum):
    """The kinds of accelerators, which need different packages."""

    CPU = "cpu"
    GPU = "gpu"
    TPU = "tpu"


class OnNan(StrEnum):
    """What a loss that is not a finite number means."""

    CONTINUE = "continue"  # it is told, and the training goes on
    FAIL = "fail"  # the session is killed, and the run fails


class Prefer(StrEnum):
    """What `route.prefer` may ask for among the allowed offers."""

    FASTEST = "fastest"
    CHEAPEST = "cheapest"


@dataclass(frozen=True)
class Claim:
    """Somebody's figure for a rate; evidence, not truth (docs/references/training.md#speed-model).

    `steps_per_second` is (low, high) at `batch` samples a step.
    """

    steps_per_second: tuple[float, float]
    batch: int
    on: str
    source: str
    date: str

    @property
    def samples_per_second(self) -> tuple[float, float]:
        low, high = self.steps_per_second
        return low * self.batch, high * self.batch


@dataclass(frozen=True)
class Profile:
    """How the job runs on one accelerator. `micro_batch` is samples per device and forward pass."""

    micro_batch: int
    precision: Precision
    memory_gb: float | None = None
    claim: Claim | None = None


@dataclass(frozen=True)
class CostPhase:
    """From step `start` on, one step costs `flops_per_step` (a length curriculum)."""

    start: int
    flops_per_step: float


@dataclass(frozen=True)
class Work:
    """How much there is to do. One unit is one optimizer step over `global_batch` samples.

    The loss couples `group` samples, so they must stay in one micro-batch. Otherwise a move to another
    accelerator would change what is computed (docs/architecture.md). `phases` is empty if every step costs
    `flops_per_step`; otherwise it is sorted, and the first phase begins at step 0.
    """

    total: int
    global_batch: int
    unit: str = "steps"
    group: int = 1
    parameters: float | None = None
    flops_per_step: float | None = None
    phases: tuple[CostPhase, ...] = ()

    def accumulate(self, micro_batch: int, devices: int) -> int | None:
        """Gradient-accumulation steps, or None if the global batch does not divide."""
        whole, rest = divmod(self.global_batch, micro_batch * devices)
        return whole if rest == 0 and whole > 0 and micro_batch % self.group == 0 else None

    def next_micro_batch(self, micro_batch: int, devices: int) -> int | None:
        """The largest valid micro-batch below this one, to use after an out-of-memory; or None."""
        smaller = range(micro_batch - 1, 0, -1)
        return next((m for m in smaller if self.accumulate(m, devices) is not None), None)


FROZEN_IMAGE = "build:"  # then the sha256 of the archive of its folders; see orchestrator.freeze.images


def frozen_image(image: str | None) -> str | None:
    """The sha256 of the frozen folders that an image is built from; None if `image` is an image's name."""
    return image.removeprefix(FROZEN_IMAGE) if image is not None and image.startswith(FROZEN_IMAGE) else None


@dataclass(frozen=True)
class Needs:
    """What a job needs from a machine. `image`: the job's code is only in its image."""

    disk_gb: float = 0.0
    memory_gb: float = 0.0
    internet: bool = False
    image: bool = False


@dataclass(frozen=True)
class Best:
    metric: str
    mode: str = "max"


@dataclass(frozen=True)
class Keep:
    """Retention: the newest `last` checkpoints and, if asked, the best by one metric."""

    last: int = 3
    best: Best | None = None


@dataclass(frozen=True)
class CheckpointPolicy:
    """When to save and what to keep. `interval_seconds` None means auto: computed from the measured times to
    save and publish, and from the rate of lost sessions. `watch`: the pattern of what the script saves by
    itself (`orchestrator.core.save_pattern`); None: it keeps the contract."""

    interval_seconds: float | None = None
    keep: Keep = field(default_factory=Keep)
    watch: str | None = None


@dataclass(frozen=True)
class When:
    """The conditions of a rule; all that are given must hold. None or empty means any value.

    Pairs are (at least, at most), and either may be None. `hours_of_day` is (from, to) in local time, each in
    [0, 24); it may pass midnight.
    """

    expected_hours: tuple[float | None, float | None] | None = None
    parameters: tuple[float | None, float | None] | None = None
    steps: tuple[float | None, float | None] | None = None
    quota_left_hours: tuple[float | None, float | None] | None = None
    hours_of_day: tuple[float, float] | None = None
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class OfferPattern:
    """Which offers a rule applies to; None or empty matches all."""

    platforms: tuple[str, ...] = ()
    accelerators: tuple[str, ...] = ()
    owned: bool | None = None
    metered: bool | None = None


class RuleEffect(StrEnum):
    REQUIRE = "require"
    AVOID = "avoid"
    PREFER = "prefer"


@dataclass(frozen=True)
class Rule:
    """One line of routing policy; `origin` is job, config or default and is shown by `why`."""

    name: str
    effect: RuleEffect
    offers: OfferPattern
    when: When = field(default_factory=When)
    origin: str = "default"


@dataclass(frozen=True)
class RouteWish:
    """What the job says about where to run. `platforms` empty means any; `precision` None means any."""

    prefer: Prefer = Prefer.FASTEST
    platforms: tuple[str, ...] = ()
    precision: Precision | None = None
    finish_within_seconds: float = 30 * 86400.0
    rules: tuple[Rule, ...] = ()


ELSEWHERE = "elsewhere:"  # then a path on another machine, which is never looked up on this one


@dataclass(frozen=True)
class Input:
    """A file or folder the job reads; `origin` is a path, https URL, `kaggle:` or `hf:` reference. If the
    run came out of a store, it is a path of another machine, after ELSEWHERE."""

    name: str
    origin: str
    sha256: str | None = None
    size: int | None = None  # of what was fetched, in bytes


class Mode(StrEnum):
    """What a fire of a schedule does."""

    CONTINUE = "continue"  # the next slice of one growing run
    FRESH = "fresh"  # a new run


class Overlap(StrEnum):
    """What a fire does while the schedule's earlier run is still under way."""

    SKIP = "skip"  # nothing
    QUEUE = "queue"  # its run is submitted once the earlier one is over
    REPLACE = "replace"  # the earlier one is cancelled and keeps its checkpoints


class CatchUp(StrEnum):
    """Which of the fires that were missed while no controller ran are made up for."""

    NONE = "none"
    ONE = "one"
    ALL = "all"


@dataclass(frozen=True)
class Window:
    """Each day's time in which sessions may run, in minutes after local midnight. It may pass midnight."""

    opens: int
    closes: int

    def __post_init__(self) -> None:
        """Raises ValueError for a time that no clock shows, so that a damaged record is not read as one."""
        if not all(0 <= each < 24 * 60 for each in (self.opens, self.closes)):
            raise ValueError(f"a window from minute {self.opens} to minute {self.closes} of a day")


@dataclass(frozen=True)
class Recurrence:
    """When a job is to run again. `cron` has five fields, or six with seconds first, in the time of
    `timezone`. A fire may come up to `jitter_seconds` later than planned."""

    cron: str
    timezone: str = "UTC"
    mode: Mode = Mode.CONTINUE
    overlap: Overlap = Overlap.SKIP
    catch_up: CatchUp = CatchUp.ONE
    jitter_seconds: float = 0.0
    window: Window | None = None

    @property
    def in_slices(self) -> bool:
        """Whether its runs sleep until the next fire or opening if they are not done."""
        return self.mode is Mode.CONTINUE or self.window is not None


class NoticeKind(StrEnum):
    """What somebody may want to be told."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    HELD = "held"
    MOVED = "moved"  # the run trains on another platform or accelerator than before
    WAITING = "waiting"  # the run is queued until a person starts a machine
    QUOTA_LOW = "quota_low"
    SCHEDULE_MISSED = "schedule_missed"


@dataclass(frozen=True)
class Notify:
    """What the job wants told, and where: `url` is a reference, `env:NAME`. The address itself is looked up
    by the controller each time it sends, and recorded nowhere."""

    on: tuple[NoticeKind, ...]
    url: str


DEFAULT = "default"


@dataclass(frozen=True)
class Requirements:
    """A job's requirements file and its lock, as paths in the bundle. Without a lock, each session resolves
    the requirements again."""

    file: str
    lock: str | None = None


@dataclass(frozen=True)
class Python:
    """The interpreter of the user's own environment, for sessions on the user's own machine.

    `given`: the job file names it; otherwise it was the active one at submit. `why` says so in words.
    `version` and `torch` as they were then; empty if not known.
    """

    path: str
    given: bool = False
    why: str = field(default="", compare=False)
    version: str = field(default="", compare=False)
    torch: str = field(default="", compare=False)


@dataclass(frozen=True)
class Job:
    """One declared training job, frozen at submit.

    `bundle` is the sha256 of the source archive; it is empty until submit freezes the source. `command` is
    already split and still has its placeholders; with `shell` it is one script for a shell. `profiles` are
    keyed by accelerator name or `default`. `requirements` and `requirements_lock` are paths in the bundle: a
    `Requirements` in two fields. `variants` are those for one kind of accelerator only, by its name.
    `outputs` are patterns of files, relative to the working directory, that come home from every session.
    None: what a failed or the last session left does.
    `python`: for platforms whose sessions run in the user's own environment; None: no such platform was
    configured, or an older version submitted it.
    """

    name: str
    command: tuple[str, ...]
    work: Work
    profiles: tuple[tuple[str, Profile], ...]
    bundle: str = ""
    image: str | None = None
    requirements: str | None = None
    seed: int = 0
    tags: tuple[str, ...] = ()
    inputs: tuple[Input, ...] = ()
    needs: Needs = field(default_factory=Needs)
    checkpoint: CheckpointPolicy = field(default_factory=CheckpointPolicy)
    route: RouteWish = field(default_factory=RouteWish)
    without_progress: int = 3
    env: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    requirements_lock: str | None = None
    variants: tuple[tuple[str, Requirements], ...] = ()
    schedule: Recurrence | None = None
    notify: Notify | None = None
    outputs: tuple[str, ...] | None = None
    shell: bool = False
    on_nan: OnNan = OnNan.CONTINUE
    python: Python | None = None

    @property
    def all_requirements(self) -> dict[str, Requirements]:
        """The requirements by the kind of accelerator they are for, or `default`."""
        if self.requirements is None:
            return dict(self.variants)
        return {DEFAULT: Requirements(self.requirements, self.requirements_lock), **dict(self.variants)}

    def requirements_on(self, kind: Kind) -> Requirements | None:
        """What a session on this kind of accelerator installs; None if it is nothing."""
        given = self.all_requirements
        return given.get(kind) or given.get(DEFAULT)
