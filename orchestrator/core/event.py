"""What can happen to a run: one frozen dataclass for each kind of event, as the ledger stores it.

Decides nothing: `orchestrator.core.decide` says which events happen, `orchestrator.core.run` what they
change, and the lifecycle table whether they are allowed. `at` is by the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.job import Job
from orchestrator.core.lifecycle import Awaited, Kind, Wish
from orchestrator.core.offer import Traits
from orchestrator.core.order import Order, Outcome


@dataclass(frozen=True)
class Cooldown:
    """No new session on this platform and accelerator before `until` (None: never again for this run).

    `since` is when it was set. Each of the `strikes` in a row makes it longer. A checkpoint from there ends
    the row; a start does not, because a wrong machine also starts and costs quota. `refusals`: how many of
    the last strikes in a row were refusals without a known reason. `began_at`: when the offer first
    refused in this row; 0: at `since`.
    """

    platform: str
    accelerator: str
    until: float | None
    reason: str
    strikes: int = 1
    since: float = 0.0
    refusals: int = 0
    began_at: float = 0.0


@dataclass(frozen=True)
class Slice:
    """The time that a schedule gives a run, all in unix seconds. No session runs outside of it.

    `planned`: the fire that began it. `until`: when its window closes; None: there is no window, and the
    slice is over when a session has used its time. `next_at`: when the next slice is due, if that is known.
    `gone`: the schedule was removed, so there is no next one.
    """

    planned: float
    until: float | None = None
    next_at: float | None = None
    gone: bool = False


@dataclass(frozen=True)
class Submitted:
    """A new run. `store` is its home store for good, by its name in the config; empty in events of the first
    version. `group` is shared by runs that belong together, such as a sweep; `parameters` are this run's.
    `schedule` is what submitted it; `origin` is when it was due, or where else it came from. `slice`: it may
    run only then, and otherwise sleeps; None: it may always run. `deadline`: when it should be done, in unix
    seconds; None: whenever it is. `start`: a checkpoint that another run made, which this one begins with."""

    run: str
    job: Job
    at: float
    store: str = ""
    group: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    schedule: str = ""
    origin: str = ""
    slice: Slice | None = None
    deadline: float | None = None
    start: Accepted | None = None
    kind: Literal[Kind.SUBMITTED] = Kind.SUBMITTED


@dataclass(frozen=True)
class Deferred:
    """No offer now. `until` is a time, or None: until a slot is free or an offer changes. `start`: the
    machines that a person could start, if any; the reason begins with that."""

    at: float
    until: float | None
    reason: str
    start: str = ""
    kind: Literal[Kind.DEFERRED] = Kind.DEFERRED


@dataclass(frozen=True)
class Assigned:
    """The intent to run a session, with its complete order."""

    at: float
    order: Order
    traits: Traits
    reason: str
    kind: Literal[Kind.ASSIGNED] = Kind.ASSIGNED


@dataclass(frozen=True)
class Prepared:
    """The materials are staged; this is also the intent to launch. `image` is what the job's image resolved
    to; the run uses it from now on."""

    at: float
    image: str | None = None
    kind: Literal[Kind.PREPARED] = Kind.PREPARED


@dataclass(frozen=True)
class Launched:
    """The launch succeeded, or may have taken effect without an answer."""

    at: float
    kind: Literal[Kind.LAUNCHED] = Kind.LAUNCHED


@dataclass(frozen=True)
class Began:
    """The platform was first seen to run the session; its agent has not written anything yet. The session
    limit and the quota count from here, not from the launch."""

    at: float
    kind: Literal[Kind.BEGAN] = Kind.BEGAN


@dataclass(frozen=True)
class Started:
    """The session's first incarnation was seen; no other will be accepted."""

    at: float
    incarnation: str
    kind: Literal[Kind.STARTED] = Kind.STARTED


@dataclass(frozen=True)
class ActionFailed:
    at: float
    action: str
    message: str
    retry_at: float
    kind: Literal[Kind.ACTION_FAILED] = Kind.ACTION_FAILED


@dataclass(frozen=True)
class Withdrawn:
    """The session is given up before any launch was attempted."""

    at: float
    reason: str
    cooldown: Cooldown | None = None
    kind: Literal[Kind.WITHDRAWN] = Kind.WITHDRAWN


@dataclass(frozen=True)
class TurnedAway:
    """The platform refused the launch and certainly started nothing. What was prepared there is kept, for the
    next try with the same order."""

    at: float
    reason: str
    cooldown: Cooldown
    kind: Literal[Kind.TURNED_AWAY] = Kind.TURNED_AWAY


@dataclass(frozen=True)
class StopRequested:
    """The intent to stop the session, for the user's wish."""

    at: float
    wish: Wish
    kind: Literal[Kind.STOP_REQUESTED] = Kind.STOP_REQUESTED


@dataclass(frozen=True)
class Ended:
    """The session is over. `confirmed` False: given up as lost and fenced; it may still run somewhere.

    `until`: when quota or capacity is back, according to the platform. `left_at`: when its agent last wrote
    its status, by the agent's clock; `at` is later if the controller slept. `reached`, `error` and `hopeless`
    as in the agent's result, `gpu_use` as in its last status.
    """

    at: float
    outcome: Outcome
    message: str
    confirmed: bool
    tail: str = ""
    step: int | None = None
    until: float | None = None
    left_at: float | None = None
    reached: int | None = None
    error: str = ""
    hopeless: bool = False
    gpu_use: GpuUse | None = None
    kind: Literal[Kind.ENDED] = Kind.ENDED


@dataclass(frozen=True)
class CheckpointAccepted:
    at: float
    checkpoint: Accepted
    kind: Literal[Kind.ACCEPTED] = Kind.ACCEPTED


@dataclass(frozen=True)
class OutputsKept:
    """The files that a session left for people are in the home store."""

    at: float
    outputs: Accepted
    kind: Literal[Kind.OUTPUTS_KEPT] = Kind.OUTPUTS_KEPT


@dataclass(frozen=True)
class CheckpointCorrupt:
    """While a session was prepared, an accepted checkpoint failed its verification or was gone from the home
    store. The order falls back to an earlier one."""

    at: float
    name: str
    reason: str
    order: Order
    kind: Literal[Kind.CORRUPT] = Kind.CORRUPT


@dataclass(frozen=True)
class Retired:
    """The intent to delete superseded checkpoints or outputs from the home store. `by` a session's uplink,
    named by its session: it has deleted them already, while its generation was open."""

    at: float
    names: tuple[str, ...]
    kind: Literal[Kind.RETIRED] = Kind.RETIRED
    by: str = ""


@dataclass(frozen=True)
class Noted:
    """Something a user should know, without effect on the run: a NaN loss, a second incarnation."""

    at: float
    text: str
    times: int = 1  # the count of its kind so far; see `orchestrator.core.notes`
    kind: Literal[Kind.NOTED] = Kind.NOTED


@dataclass(frozen=True)
class Confirmed:
    """A stray is gone for good: what it left on its platform has been discarded.

    `given_up`: or it stays there, because the config no longer has the platform and the user gave up the run.
    """

    at: float
    session: str
    given_up: bool = False
    kind: Literal[Kind.CONFIRMED] = Kind.CONFIRMED


@dataclass(frozen=True)
class Wished:
    """A user's wish. `discard` agrees to lose what a session has not brought home; with a release, what an
    ended session left."""

    at: float
    wish: Wish
    discard: bool = False
    kind: Literal[Kind.WISHED] = Kind.WISHED


@dataclass(frozen=True)
class Requeued:
    """The session's generation is closed, and the run continues with the next."""

    at: float
    reason: str
    fruitless: int
    cooldown: Cooldown | None = None
    micro_batch_cap: tuple[str, int] | None = None
    until: float | None = None
    kind: Literal[Kind.REQUEUED] = Kind.REQUEUED


@dataclass(frozen=True)
class Completed:
    at: float
    reason: str = ""
    kind: Literal[Kind.COMPLETED] = Kind.COMPLETED


@dataclass(frozen=True)
class GaveUp:
    at: float
    reason: str
    kind: Literal[Kind.GAVE_UP] = Kind.GAVE_UP


@dataclass(frozen=True)
class Cancelled:
    at: float
    reason: str = ""
    kind: Literal[Kind.CANCELLED] = Kind.CANCELLED


@dataclass(frozen=True)
class Held:
    """The run waits for a person. `start_over`: no accepted checkpoint could be read; if that is still so
    after a release, the run starts over."""

    at: float
    reason: str
    start_over: bool = False
    micro_batch_cap: tuple[str, int] | None = None
    kind: Literal[Kind.HELD] = Kind.HELD


@dataclass(frozen=True)
class Released:
    at: float
    kind: Literal[Kind.RELEASED] = Kind.RELEASED


@dataclass(frozen=True)
class Faulted:
    """The run waits for a person in its current phase and keeps everything.

    The reason is an unexpected exception, an outbox that cannot be collected, or a config without what is
    `missing`. Any wish ends the wait, unless something is still missing. What the run `awaits` is looked for
    meanwhile, and the run continues when it is there.
    """

    at: float
    reason: str
    missing: tuple[str, ...] = ()
    awaits: Awaited | None = None
    kind: Literal[Kind.FAULTED] = Kind.FAULTED


@dataclass(frozen=True)
class Regained:
    """What was missing is in the config again, or what was awaited is there: the run continues in its
    phase."""

    at: float
    found: tuple[str, ...]
    kind: Literal[Kind.REGAINED] = Kind.REGAINED


@dataclass(frozen=True)
class Adopted:
    """The run comes from another ledger, as a store describes it, and waits for a person. Or it comes back
    from one: if it has a session here, that goes on.

    `generation` is above every session that the other ledger may have started. `accepted` also holds the
    outputs that it kept. `adoptions` counts the ledgers
    that had the run before, this one included if it comes back. `by` names the machine that adopted it."""

    at: float
    reason: str
    generation: int
    accepted: tuple[Accepted, ...]
    adoptions: int
    micro_batch_caps: tuple[tuple[str, int], ...] = ()
    by: str = ""
    kind: Literal[Kind.ADOPTED] = Kind.ADOPTED


@dataclass(frozen=True)
class Moved:
    """Everything that was accepted lies verified in `store`, which is the run's home store from now on.
    `source` was it before."""

    at: float
    store: str
    source: str
    kind: Literal[Kind.MOVED] = Kind.MOVED


@dataclass(frozen=True)
class Woken:
    """Its schedule gives the run its next slice; None: it may always run. `job`: what it trains from now on,
    if its schedule was edited; the mathematics are the same."""

    at: float
    slice: Slice | None
    job: Job | None = None
    kind: Literal[Kind.WOKEN] = Kind.WOKEN


@dataclass(frozen=True)
class Slept:
    """The run's slice is over, and it waits for the next one: `until` then, if that is known. `told`: its
    schedule said so, because the date has changed; it was not decided."""

    at: float
    reason: str
    until: float | None = None
    told: bool = False
    kind: Literal[Kind.SLEPT] = Kind.SLEPT


@dataclass(frozen=True)
class Unscheduled:
    """The run's schedule was removed. When its slice is over it waits for a person, who may let it run
    on."""

    at: float
    kind: Literal[Kind.UNSCHEDULED] = Kind.UNSCHEDULED


@dataclass(frozen=True)
class Amended:
    """The user has changed the job of a run that rests, by these `changes`; the mathematics are the same."""

    at: float
    job: Job
    changes: tuple[str, ...]
    kind: Literal[Kind.AMENDED] = Kind.AMENDED


Event = (
    Submitted | Deferred | Assigned | Prepared | Launched | Began | Started | ActionFailed | Withdrawn
    | StopRequested | Ended | CheckpointAccepted | CheckpointCorrupt | Retired | Noted | Confirmed | Wished
    | Requeued | Completed | GaveUp | Cancelled | Held | Released | Faulted | Regained | TurnedAway
    | Adopted | Moved | Woken | Slept | Unscheduled | OutputsKept
    | Amended
)  # fmt: skip
