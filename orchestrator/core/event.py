"""What can happen to a run: one frozen dataclass a kind of event, as the ledger stores them.

Decides nothing: which events happen is `orchestrator.core.decide`'s business, what they change is
`orchestrator.core.run`'s, whether they may is the lifecycle table's. `at` is the controller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.job import Job
from orchestrator.core.lifecycle import Kind
from orchestrator.core.offer import Traits
from orchestrator.core.order import Order, Outcome


class Wish(StrEnum):
    """What a user asked for and the controller has not yet done."""

    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"


@dataclass(frozen=True)
class Cooldown:
    """No new session on this platform and accelerator before `until` (None: never again for this run), set
    at `since`.
    `strikes` in a row lengthen it; a checkpoint from there ends the row, a start does not: a machine that
    is not what was ordered starts, too, and is paid for."""

    platform: str
    accelerator: str
    until: float | None
    reason: str
    strikes: int = 1
    since: float = 0.0


@dataclass(frozen=True)
class Submitted:
    """`store` is where the run's checkpoints live, for good, by its name in the config; empty in what the
    first version wrote. `group` ties runs that belong together, as those of a sweep, of which `parameters`
    are this one's; `schedule` is what submitted it, `origin` the moment it was due, or where else it came
    from."""

    run: str
    job: Job
    at: float
    store: str = ""
    group: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    schedule: str = ""
    origin: str = ""
    kind: Literal[Kind.SUBMITTED] = Kind.SUBMITTED


@dataclass(frozen=True)
class Deferred:
    """No offer now. `until` is a time, or None: until a slot frees or an offer changes."""

    at: float
    until: float | None
    reason: str
    kind: Literal[Kind.DEFERRED] = Kind.DEFERRED


@dataclass(frozen=True)
class Assigned:
    """The intent to run a session: its order, complete."""

    at: float
    order: Order
    traits: Traits
    reason: str
    kind: Literal[Kind.ASSIGNED] = Kind.ASSIGNED


@dataclass(frozen=True)
class Prepared:
    """The materials are staged; this is also the intent to launch. `image` is what the job's image was at
    this moment, from now on the run's."""

    at: float
    image: str | None = None
    kind: Literal[Kind.PREPARED] = Kind.PREPARED


@dataclass(frozen=True)
class Launched:
    """A launch was answered, or may have taken effect unanswered."""

    at: float
    kind: Literal[Kind.LAUNCHED] = Kind.LAUNCHED


@dataclass(frozen=True)
class Began:
    """The platform was first seen to run the session, whose agent has not spoken yet: its wall and its quota
    count from here, not from the launch."""

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
class StopRequested:
    """The intent to stop the session, for the user's wish."""

    at: float
    wish: Wish
    kind: Literal[Kind.STOP_REQUESTED] = Kind.STOP_REQUESTED


@dataclass(frozen=True)
class Ended:
    """The session is over. `confirmed` False: given up for lost, fenced, perhaps still running somewhere.
    `until`: when the platform says quota or capacity will be back. `left_at`: when its agent last gave word,
    by the agent's clock; `at` is later where the controller slept."""

    at: float
    outcome: Outcome
    message: str
    confirmed: bool
    tail: str = ""
    step: int | None = None
    until: float | None = None
    left_at: float | None = None
    kind: Literal[Kind.ENDED] = Kind.ENDED


@dataclass(frozen=True)
class CheckpointAccepted:
    at: float
    checkpoint: Accepted
    kind: Literal[Kind.ACCEPTED] = Kind.ACCEPTED


@dataclass(frozen=True)
class CheckpointCorrupt:
    """An accepted checkpoint failed its verification on the way into a session, or is gone from the home
    store; the order falls back."""

    at: float
    name: str
    reason: str
    order: Order
    kind: Literal[Kind.CORRUPT] = Kind.CORRUPT


@dataclass(frozen=True)
class Retired:
    """The intent to delete superseded checkpoints of closed generations from the home store."""

    at: float
    names: tuple[str, ...]
    kind: Literal[Kind.RETIRED] = Kind.RETIRED


@dataclass(frozen=True)
class Noted:
    """Something a user should know that changes nothing: a NaN loss, a fall-back, a second incarnation."""

    at: float
    text: str
    times: int = 1  # how often something like it was met by now; `orchestrator.core.notes` counts
    kind: Literal[Kind.NOTED] = Kind.NOTED


@dataclass(frozen=True)
class Confirmed:
    """A stray is gone for good: what it left on its platform has been discarded."""

    at: float
    session: str
    kind: Literal[Kind.CONFIRMED] = Kind.CONFIRMED


@dataclass(frozen=True)
class Wished:
    at: float
    wish: Wish
    discard: bool = False
    kind: Literal[Kind.WISHED] = Kind.WISHED


@dataclass(frozen=True)
class Requeued:
    """The session's generation is closed and the run goes on to the next."""

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
    """`start_over`: no accepted checkpoint could be read; a release lets the run start over if that stays."""

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
    """The run waits for a person, in the phase it is in, with all it has: an exception that nobody foresaw
    was met on its behalf, what its session left cannot be brought home, or the config has no longer what is
    `missing`. Any wish ends the wait."""

    at: float
    reason: str
    missing: tuple[str, ...] = ()
    kind: Literal[Kind.FAULTED] = Kind.FAULTED


@dataclass(frozen=True)
class Regained:
    """What was missing is in the config again: the run goes on where it stands."""

    at: float
    found: tuple[str, ...]
    kind: Literal[Kind.REGAINED] = Kind.REGAINED


Event = (
    Submitted | Deferred | Assigned | Prepared | Launched | Began | Started | ActionFailed | Withdrawn
    | StopRequested | Ended | CheckpointAccepted | CheckpointCorrupt | Retired | Noted | Confirmed | Wished
    | Requeued | Completed | GaveUp | Cancelled | Held | Released | Faulted | Regained
)  # fmt: skip
