"""What the platforms hold out: offers with their traits, and the route that chooses among them.

Values only. A platform describes itself by these; the router reads nothing else of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Uplink(StrEnum):
    """How a session's outbox reaches the home store."""

    SHARED = "shared"  # the controller reads the outbox itself, also while the session runs
    STORE = "store"  # a process beside the agent ships it to the home store, and it is read there
    NONE = "none"  # only after the session has ended


@dataclass(frozen=True)
class Traits:
    """What a platform can and cannot do, as data, so that nothing depends on its name.

    `session_seconds` is the hard wall from the machine's start (None: there is none); `wall_margin_seconds`
    is taken off for the agent's budget. A session may wait `pending_seconds_max` for its start. After
    `session_seconds + slack_seconds` it cannot run any more, whatever the platform says. A heartbeat that
    stood still for `silence_seconds`, over several polls, is a lost session's.
    `visibility_seconds`: how long a started session may stay unseen. A running one is looked at every
    `poll_seconds`; its outbox is collected every `collect_seconds`, and at once for a new checkpoint.
    `hands_over`: the next session there can read what an ended one left, which is kept for it until it runs.
    `secrets`: a job's secrets may travel there. `custom_images`: sessions run in the job's image; with
    `needs_image` none runs that names no image.
    """

    session_seconds: float | None = None
    wall_margin_seconds: float = 0.0
    slack_seconds: float = 60.0
    uplink: Uplink = Uplink.SHARED
    durable_mid_run: bool = True
    hands_over: bool = False
    visibility_seconds: float = 5.0
    pending_seconds_max: float = 3600.0
    poll_seconds: float = 2.0
    collect_seconds: float = 10.0
    silence_seconds: float = 30.0
    setup_seconds: float = 10.0
    human_start: bool = False
    custom_images: bool = False
    needs_image: bool = False
    owned: bool = True
    metered: bool = False
    internet: bool = False
    secrets: bool = True


@dataclass(frozen=True)
class Quota:
    """Accelerator hours in a window, in seconds of session time. `left_seconds` is what is allowed less what
    was used, nothing taken off for sessions that run: the engine reserves their budgets. Offers of one
    platform and `pool` share it. `refresh_at` None: never, or unknown. `reserved_seconds` is what the
    platform sets aside for sessions that run, where it says so: for people."""

    left_seconds: float
    refresh_at: float | None = None
    window_seconds: float | None = None
    allowed_seconds: float | None = None
    pool: str = ""
    reserved_seconds: float = 0.0


class UntilKind(StrEnum):
    NEVER = "never"
    TIME = "time"
    SLOT = "slot"  # a session of ours ends
    HUMAN = "human"


@dataclass(frozen=True)
class Until:
    """How long a rejection holds: for good, until `at` (unix seconds), until a slot or a human acts."""

    kind: UntilKind
    at: float | None = None
    commands: tuple[str, ...] = ()


NEVER = Until(UntilKind.NEVER)
SLOT = Until(UntilKind.SLOT)


def until_time(at: float) -> Until:
    return Until(UntilKind.TIME, at)


def until_human(*commands: str) -> Until:
    return Until(UntilKind.HUMAN, commands=commands)


@dataclass(frozen=True)
class Unavailable:
    """Why a platform offers an accelerator no session now, in words, and until when."""

    reason: str
    until: Until


@dataclass(frozen=True)
class Offer:
    """Platform × accelerator, as surveyed. `slots`: sessions of ours that it would take in all, ours
    running included, others' excluded; offers of one platform and `slot_pool` share theirs. `memory_gb` is
    per device where the platform knows better than the catalogue (host memory for cpu); with `limit_memory`
    a session that takes more is out of memory. `threads` pins the CPU threads of a session, which bitwise
    resume on a CPU depends on. `wait_seconds`: how long each session is expected to wait for its start."""

    platform: str
    accelerator: str
    traits: Traits
    slots: int = 1
    quota: Quota | None = None
    memory_gb: float | None = None
    limit_memory: bool = False
    threads: int | None = None
    disk_gb: float | None = None
    unavailable: Unavailable | None = None
    slot_pool: str = ""
    wait_seconds: float = 0.0


@dataclass(frozen=True)
class Rejection:
    platform: str
    accelerator: str
    reason: str
    until: Until


@dataclass(frozen=True)
class Estimate:
    """When and how a run would finish on one offer; times in unix seconds, the rest in seconds.

    `finish_low`/`finish_high` bound the finish at one standard deviation of the rate.
    """

    start: float
    finish: float
    finish_low: float
    finish_high: float
    sessions: int
    quota_seconds: float
    expected_loss_seconds: float
    samples_per_second: float
    rate_source: str


@dataclass(frozen=True)
class Choice:
    """An offer that was not rejected: how the job would run on it."""

    offer: Offer
    micro_batch: int
    accumulate: int
    devices: int
    estimate: Estimate
    preferred_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Route:
    """The router's whole answer: the chosen offer, the runners-up, and every rejection with its reason."""

    chosen: Choice | None
    others: tuple[Choice, ...]
    rejections: tuple[Rejection, ...]
    rules: tuple[str, ...]
