"""What platforms offer, with their traits, and the route that chooses among the offers.

Values only. A platform describes itself with these; the router reads nothing else about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.own_accelerators import OwnAccelerator


class Uplink(StrEnum):
    """How a session's outbox reaches the home store."""

    SHARED = "shared"  # the controller reads the outbox directly, also while the session runs
    STORE = "store"  # a process beside the agent ships it to the home store, where we read it
    NONE = "none"  # only after the session has ended


@dataclass(frozen=True)
class Traits:
    """What a platform can and cannot do, as data, so that nothing depends on its name.

    `session_seconds` is the hard limit from the machine's start (None: no limit); `wall_margin_seconds` is
    subtracted from it for the agent's budget. A session may wait `pending_seconds_max` for its start. After
    `session_seconds + slack_seconds` it must be over, whatever the platform says. If the heartbeat does not
    change for `silence_seconds` and several polls, the session is lost.
    `visibility_seconds`: how long a started session may stay invisible; `absence_seconds`, if that is longer:
    how long one that was seen may. `saving_seconds_max`: how long what an ended session left may take to
    appear before a person is asked. A running session is polled every `poll_seconds`. Its outbox is collected
    every `collect_seconds`, and at once after a new checkpoint.
    `readable_mid_run`: the platform can read the outbox of a running session.
    `fetches`: a session with an uplink to the store fetches source, inputs and checkpoint from there itself.
    `hands_over`: the next session there can read what an ended one left; it is kept until then.
    `machine`: the sessions are bound to this machine, and only its controllers reach them (`machine_id`);
    empty: they are the same for every controller.
    `secrets`: a job's secrets may be sent there. `custom_images`: sessions run in the job's image.
    `own_python`: sessions run in the user's own Python environment (`Job.python`).
    `needs_image`: a job without an image cannot run there. `human_start`: a person starts its machine; until
    then its offers are closed.
    """

    session_seconds: float | None = None
    wall_margin_seconds: float = 0.0
    slack_seconds: float = 60.0
    uplink: Uplink = Uplink.SHARED
    durable_mid_run: bool = True
    readable_mid_run: bool = True
    fetches: bool = False
    hands_over: bool = False
    visibility_seconds: float = 5.0
    absence_seconds: float = 0.0
    saving_seconds_max: float = 3600.0
    pending_seconds_max: float = 3600.0
    poll_seconds: float = 2.0
    collect_seconds: float = 10.0
    silence_seconds: float = 30.0
    setup_seconds: float = 10.0
    human_start: bool = False
    custom_images: bool = False
    own_python: bool = False
    needs_image: bool = False
    owned: bool = True
    metered: bool = False
    internet: bool = False
    secrets: bool = True
    machine: str = ""


def machine_id(identity: str, host: str) -> str:
    """Names a machine: equal only for the same `identity`, and readable by the `host` in it."""
    return f"{identity}:{host}"


def is_same_machine(one: str, other: str) -> bool:
    return one.partition(":")[0] == other.partition(":")[0]


def host_of(machine: str) -> str:
    return machine.partition(":")[2] or "another machine"


@dataclass(frozen=True)
class Quota:
    """Accelerator time that is allowed in a window, in seconds of session time on this offer's accelerator.

    `left_seconds` is the allowed time minus the used time. Nothing is subtracted for running sessions: the
    engine reserves their budgets. Offers of one platform and `pool` share the quota. `refresh_at` None:
    never, or unknown. `reserved_seconds`: what the platform itself reserves for running sessions, if it says
    so; only shown to people.
    `units_per_hour`: the platform has a balance in units, from which an hour on this accelerator takes so
    many; 0: it counts time. The offers of one pool share the units, whatever their rates. A survey must list
    an accelerator of the pool for as long as a session of ours may run on it, if only as unavailable.
    """

    left_seconds: float
    refresh_at: float | None = None
    window_seconds: float | None = None
    allowed_seconds: float | None = None
    pool: str = ""
    reserved_seconds: float = 0.0
    units_per_hour: float = 0.0

    @classmethod
    def of_units(
        cls, left: float, per_hour: float, *, pool: str = "units", refresh_at: float | None = None,
        window_seconds: float | None = None, allowed: float | None = None,
    ) -> Quota:  # fmt: skip
        """A balance of `left` units (of `allowed` ones, if the platform says so) on an accelerator that takes
        `per_hour` of them, which must be more than 0."""
        hours = None if allowed is None else allowed / per_hour
        return cls(left / per_hour * 3600.0, refresh_at, window_seconds,
                   None if hours is None else hours * 3600.0, pool, units_per_hour=per_hour)  # fmt: skip

    def taken(self, seconds: float) -> float:
        """What a session of so many seconds takes of the pool: units, or seconds if the platform counts
        time. Equal for all offers of the pool, so that it can be added up."""
        return self.units(seconds) if self.units_per_hour else seconds

    def lasts(self, taken: float) -> float:
        """The inverse of `taken`: for how many seconds so much of the pool lasts on this accelerator."""
        return taken / self.units_per_hour * 3600.0 if self.units_per_hour else taken

    def units(self, seconds: float) -> float:
        """The units that so many seconds take; 0 if the platform counts time."""
        return seconds * self.units_per_hour / 3600.0


class UntilKind(StrEnum):
    NEVER = "never"
    TIME = "time"
    SLOT = "slot"  # a session of ours ends
    START = "start"  # a person starts the machine
    HUMAN = "human"


@dataclass(frozen=True)
class Until:
    """How long a rejection holds: for ever, until `at` (unix seconds; None: nobody knows when), until a slot
    is free, or until a person starts the machine or repairs something. `commands` say how."""

    kind: UntilKind
    at: float | None = None
    commands: tuple[str, ...] = ()


NEVER = Until(UntilKind.NEVER)
SLOT = Until(UntilKind.SLOT)
UNDATED = Until(UntilKind.TIME)


def until_time(at: float) -> Until:
    return Until(UntilKind.TIME, at)


def until_start(*commands: str) -> Until:
    return Until(UntilKind.START, commands=commands)


def until_human(*commands: str) -> Until:
    return Until(UntilKind.HUMAN, commands=commands)


@dataclass(frozen=True)
class Unavailable:
    """Why a platform cannot start a session on an accelerator now, and until when."""

    reason: str
    until: Until


@dataclass(frozen=True)
class Lifetimes:
    """What became of our own recent sessions: how many there were, how many of them the platform took away,
    and for how many seconds they ran in total."""

    sessions: int
    lost: int
    seconds: float


@dataclass(frozen=True)
class Offer:
    """Platform × accelerator, as surveyed.

    `slots`: how many of our sessions can run there in total, including the running ones. Offers of one
    platform and `slot_pool` share their slots. `memory_gb` is per device, if the platform knows it better
    than the catalogue (host memory for cpu). With `limit_memory`, a session that uses more is out of memory.
    `threads` fixes the number of CPU threads, which bitwise resume on a CPU needs. `wait_seconds`: how long a
    session is expected to wait for its start. `lifetimes`: of our sessions there, which the market adds; no
    survey knows them. `own`: what the user's config says of the accelerator, if the catalogue lacks it.
    """

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
    lifetimes: Lifetimes | None = None
    own: OwnAccelerator | None = None


@dataclass(frozen=True)
class Rejection:
    platform: str
    accelerator: str
    reason: str
    until: Until


@dataclass(frozen=True)
class Estimate:
    """When and how a run would finish on one offer; times in unix seconds, the rest in seconds.

    `finish_low`/`finish_high` bound the finish at one standard deviation of the rate. `quota_units` are the
    units that `quota_seconds` take; 0 if the platform counts time.
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
    quota_units: float = 0.0


@dataclass(frozen=True)
class Choice:
    """An offer that was not rejected: how the job would run on it.

    `stay_seconds`: the plan ends the session after so many seconds, if it does before the platform does.
    """

    offer: Offer
    micro_batch: int
    accumulate: int
    devices: int
    estimate: Estimate
    preferred_by: tuple[str, ...] = ()
    stay_seconds: float | None = None


@dataclass(frozen=True)
class Hop:
    """One session of a plan: where it runs, when, and from which step to which. Times are unix seconds;
    `quota_seconds` is 0 on an offer without a quota, `quota_units` on one without a balance in units."""

    platform: str
    accelerator: str
    start: float
    end: float
    from_step: int
    to_step: int
    quota_seconds: float
    why_it_ends: str
    quota_units: float = 0.0


@dataclass(frozen=True)
class Itinerary:
    """The sessions of a run with dates in unix seconds, and the quota that they take, in seconds of session
    time and in units. `finish_low` and `finish_high` bound the finish at one standard deviation of the
    rates."""

    hops: tuple[Hop, ...]
    finish: float
    finish_low: float
    finish_high: float
    quota_seconds: float = 0.0
    quota_units: float = 0.0

    @property
    def start(self) -> float:
        return self.hops[0].start if self.hops else self.finish


@dataclass(frozen=True)
class Route:
    """The router's whole answer: the chosen offer, the runners-up, and every rejection with its reason.

    `itinerary`: the run's expected sessions over all offers, in the place that the queue leaves it; None if
    nothing was planned.
    """

    chosen: Choice | None
    others: tuple[Choice, ...]
    rejections: tuple[Rejection, ...]
    rules: tuple[str, ...]
    itinerary: Itinerary | None = None
