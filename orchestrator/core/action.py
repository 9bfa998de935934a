"""What decide wants done, and what came of it: actions out, reports in.

Values only. Every action is idempotent by the session's name, so that it may be issued again after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order
from orchestrator.core.session import StopReply


@dataclass(frozen=True)
class Prepare:
    """Stage bundle, agent, inputs and the verified resume checkpoint on the order's platform. `accepted`:
    the names of the run's accepted checkpoints, to be looked for where the one to resume fails; `dropped`
    those that were accepted once and could not be read. `store`: the run's home store. With an `uplink` to
    it older generations are fenced off first."""

    order: Order
    accepted: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    store: str = ""
    uplink: Uplink = Uplink.SHARED
    kind: Literal["prepare"] = "prepare"

    @property
    def session(self) -> str:
        return self.order.session


@dataclass(frozen=True)
class Launch:
    order: Order
    kind: Literal["launch"] = "launch"

    @property
    def session(self) -> str:
        return self.order.session


@dataclass(frozen=True)
class Collect:
    """Bring the outbox and publish its checkpoints to the run's home `store`. `incarnation` None: not known
    yet, all of the generation are published. `known`: names that were accepted before, retired ones included;
    they are skipped and cost no request. `last`: asked for when the session's end was known, so that what it
    does not bring never comes. With an `uplink` to the store the outbox lies there, and the last look fences
    the generation off."""

    run: str
    session: str
    platform: str
    generation: int
    incarnation: str | None
    known: frozenset[str]
    last: bool
    metric: str | None = None
    store: str = ""
    uplink: Uplink = Uplink.SHARED
    kind: Literal["collect"] = "collect"


@dataclass(frozen=True)
class Stop:
    session: str
    platform: str
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Discard:
    """Remove what a closed session left on its platform, and with an `uplink` in the run's home `store`."""

    session: str
    platform: str
    store: str = ""
    uplink: Uplink = Uplink.SHARED
    kind: Literal["discard"] = "discard"


@dataclass(frozen=True)
class Retire:
    """Make the run's home `store` hold only `keep` of its generations up to `generation`. Of the `live` one
    (None: all are closed) what is newer than the newest kept may be published and not yet accepted: it
    stays. What later generations hold is a later decision's, however late this is carried out."""

    run: str
    keep: frozenset[str]
    generation: int
    live: int | None
    store: str = ""
    kind: Literal["retire"] = "retire"

    @property
    def session(self) -> str:
        return ""


Action = Prepare | Launch | Collect | Stop | Discard | Retire


class Trouble(StrEnum):
    """Why an action failed, by what to do next; the values mirror `orchestrator.errors`. FULL: this machine's
    disk or the home store takes no more. UNFORESEEN: an exception that nobody expected there."""

    TRANSIENT = "transient"
    QUOTA = "quota"
    DENIED = "denied"
    REJECTED = "rejected"
    NAME_TAKEN = "name_taken"
    NOT_FOUND = "not_found"
    CORRUPT = "corrupt"
    FULL = "full"
    UNFORESEEN = "unforeseen"


@dataclass(frozen=True)
class Done:
    """An action took effect. `checkpoints`: verified in the home store now, of the action's session;
    `corrupt`: (name, reason) of outbox checkpoints that failed; `notes`: what a person should know, such as
    what was beyond a bound; `more`: the outbox holds more, which the next collect brings; `reply` is a
    stop's, `image` a prepare's."""

    action: Action
    checkpoints: tuple[Accepted, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    reply: StopReply | None = None
    image: str | None = None
    notes: tuple[str, ...] = ()
    more: bool = False
    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class Failed:
    """An action failed, or (TRANSIENT) may have taken effect. `checkpoint` names the one to resume that is
    corrupt or gone; `left` the other accepted ones that the home store still has (None: not looked for)."""

    action: Action
    trouble: Trouble
    message: str
    until: float | None = None
    checkpoint: str | None = None
    left: tuple[str, ...] | None = None
    doubtful: bool = False
    kind: Literal["failed"] = "failed"


Report = Done | Failed
