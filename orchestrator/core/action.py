"""The actions that decide asks for, and the reports of their results.

Values only. Every action is idempotent by the session's name, so it can be issued again after a crash.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.offer import Uplink
from orchestrator.core.order import Order
from orchestrator.core.session import StopReply


@dataclass(frozen=True)
class Prepare:
    """Stage bundle, agent, inputs and the verified checkpoint to resume on the order's platform.

    `accepted`: the names of the run's accepted checkpoints, to look for if the one to resume fails.
    `dropped`: those that were accepted once and could not be read. `store`: the run's home store. If the
    `uplink` leads to it, older generations are fenced off first. If a ledger with more `adoptions` has the
    run now, nothing is done; this holds for a launch and a collect, too.
    `fetches`: the session fetches all but the agent from the home store, so it is put there. A checkpoint
    that the session reads where it lies is then verified here only if this is to be `thorough`.
    `schedule`: what this machine lacks may lie in the store for the next runs of this schedule.
    """

    order: Order
    accepted: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()
    store: str = ""
    uplink: Uplink = Uplink.SHARED
    adoptions: int = 0
    fetches: bool = False
    thorough: bool = False
    schedule: str = ""
    kind: Literal["prepare"] = "prepare"

    @property
    def session(self) -> str:
        return self.order.session


@dataclass(frozen=True)
class Launch:
    """Start the prepared session. `store` and `adoptions` as in Prepare."""

    order: Order
    store: str = ""
    adoptions: int = 0
    kind: Literal["launch"] = "launch"

    @property
    def session(self) -> str:
        return self.order.session


@dataclass(frozen=True)
class Collect:
    """Fetch the outbox and publish its checkpoints to the run's home `store`. If an `uplink` has shipped them
    there, judge them where they lie.

    `incarnation` None: not known yet; then checkpoints of every incarnation of the generation are published.
    `known`: the names that were accepted before, including retired ones; they are skipped without a request.
    `kept`: those of the session that were accepted and not retired.
    `last`: the session has ended, so what this collect does not bring is lost. If the `uplink` leads to the
    store, the outbox is there, and the last collect fences the generation off. `forgone`: what does not come
    now is given up, so that the rest is taken without it.
    `doubts`: the platform's answer that the session left nothing is not believed yet.
    `stale_before`: if the store has heard nothing of the session since then, by the agent's clock, its uplink
    does not get through (None: not known).
    """

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
    forgone: bool = False
    kept: frozenset[str] = frozenset()
    adoptions: int = 0
    doubts: bool = False
    stale_before: float | None = field(default=None, compare=False)  # it grows with every reading
    kind: Literal["collect"] = "collect"


@dataclass(frozen=True)
class Stop:
    """Ask the session to save and leave. With a `generation`, also through its home `store`, because its
    platform cannot reach it while it runs. `discard`: also if it cannot hear that now."""

    session: str
    platform: str
    store: str = ""
    generation: int | None = None
    discard: bool = False
    kind: Literal["stop"] = "stop"


@dataclass(frozen=True)
class Discard:
    """Remove what a closed session left on its platform, and with an `uplink` also in the home `store`."""

    session: str
    platform: str
    store: str = ""
    uplink: Uplink = Uplink.SHARED
    kind: Literal["discard"] = "discard"


@dataclass(frozen=True)
class Retire:
    """Delete all checkpoints of the generations up to `generation` from the home `store`, except `keep`.

    What is newer than the newest kept one stays, of any generation: it may be published but not accepted yet,
    or not complete yet. Later generations are left to later decisions, even if this action runs late. If a
    ledger with more `adoptions` has the run now, nothing is deleted.
    """

    run: str
    keep: frozenset[str]
    generation: int
    store: str = ""
    adoptions: int = 0
    kind: Literal["retire"] = "retire"

    @property
    def session(self) -> str:
        return ""


Action = Prepare | Launch | Collect | Stop | Discard | Retire


class Trouble(StrEnum):
    """Why an action failed, by what to do next; the values mirror `orchestrator.errors`.

    CAPACITY: there is no room now, which may last. FULL: this machine's disk or the home store is full.
    SUPERSEDED: another ledger has adopted the run.
    UNFORESEEN: an unexpected exception.
    """

    TRANSIENT = "transient"
    QUOTA = "quota"
    DENIED = "denied"
    REFUSED = "refused"
    CAPACITY = "capacity"
    REJECTED = "rejected"
    NAME_TAKEN = "name_taken"
    NOT_FOUND = "not_found"
    CORRUPT = "corrupt"
    FULL = "full"
    SUPERSEDED = "superseded"
    UNFORESEEN = "unforeseen"


@dataclass(frozen=True)
class Done:
    """An action took effect.

    `checkpoints`: those of the session that are now complete in the home store. `corrupt`: (name, reason) of
    checkpoints in the outbox that failed. `late`: likewise, of shipped checkpoints that are not complete in
    the home store yet. `gone`: accepted ones that their uplink has deleted. `notes`: what a person should
    know, such as a file larger than its limit. `more`: the outbox holds more, for the next collect. A stop
    sets `reply`, a prepare sets `image`.
    """

    action: Action
    checkpoints: tuple[Accepted, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    reply: StopReply | None = None
    image: str | None = None
    notes: tuple[str, ...] = ()
    more: bool = False
    late: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()
    kind: Literal["done"] = "done"


@dataclass(frozen=True)
class Failed:
    """An action failed; if TRANSIENT, it may have taken effect.

    `checkpoint` names the checkpoint to resume, if that is corrupt or gone. `left`: the other accepted ones
    that the home store still has (None: not looked for). `doubtful`: it may be the wrong store. `unknown`:
    the newest checkpoint there that this ledger does not know; then nothing starts over.
    """

    action: Action
    trouble: Trouble
    message: str
    until: float | None = None
    checkpoint: str | None = None
    left: tuple[str, ...] | None = None
    doubtful: bool = False
    unknown: str = ""
    kind: Literal["failed"] = "failed"


Report = Done | Failed
