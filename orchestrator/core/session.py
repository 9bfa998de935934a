"""A session as the controller knows it: from its assignment to its close, what is seen of it, what remains.

Values only. What goes into one and what its agent says is `orchestrator.core.order`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.event import Wish
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import AgentStatus, Order, Outcome, Result


@dataclass(frozen=True)
class Session:
    """One stay of a run on one platform, from its assignment to its close. Times in unix seconds.

    `traits` are the platform's at assignment. `began_at`: when it was first seen to run, where that was
    before its agent spoke (`started_at`). `incarnation` is the first agent seen, the only one whose
    checkpoints count. `retired_steps`: of its checkpoints that were accepted and have been retired since.
    `step` is the last one the result marker named. `failures` counts failed actions in
    a row, `retry_at` when to try the next.
    """

    order: Order
    traits: Traits
    assigned_at: float
    launched_at: float | None = None
    began_at: float | None = None
    incarnation: str | None = None
    retired_steps: tuple[int, ...] = ()
    started_at: float | None = None
    stop: Wish | None = None
    stop_requested_at: float | None = None
    outcome: Outcome | None = None
    message: str = ""
    tail: str = ""
    step: int | None = None
    until: float | None = None
    ended_at: float | None = None
    end_confirmed: bool = True
    failures: int = 0
    retry_at: float = 0.0

    @property
    def name(self) -> str:
        return self.order.session

    @property
    def generation(self) -> int:
        return self.order.generation

    @property
    def wall_at(self) -> float | None:
        """When the platform's session limit is reached, by this machine's clock; None: there is none. Of one
        that was not seen to run: when it is at the latest."""
        if self.launched_at is None or self.traits.session_seconds is None:
            return None
        began = self.runs_since
        latest = self.launched_at + self.traits.pending_seconds_max
        return (latest if began is None else began) + self.traits.session_seconds

    @property
    def budget_seconds(self) -> float:
        """What it may use of a quota: its agent's budget, and the margin to the wall; 0: nothing said."""
        return (self.order.budget_seconds or 0.0) + self.traits.wall_margin_seconds

    @property
    def runs_since(self) -> float | None:
        """When it was first seen to run; None: it never was."""
        return self.began_at if self.began_at is not None else self.started_at


@dataclass(frozen=True)
class Stray:
    """A closed session whose remains are still on its platform, until they are discarded.

    `ended` False: given up for lost, fenced, perhaps still running; it is told to stop and its slot counts
    as used until it is seen to have ended or `until` has passed (None: no wall); it ran from `since`, its
    assignment, at the earliest. It is looked at every `poll_seconds`, as its platform's traits had it. With
    `hands_over` the run's next session may read it. `uplink`: where its outbox lies.
    """

    session: str
    platform: str
    accelerator: str
    ended: bool
    until: float | None
    poll_seconds: float = 2.0
    hands_over: bool = False
    since: float = 0.0
    uplink: Uplink = Uplink.SHARED


@dataclass(frozen=True)
class ClosedSession:
    """A session that is over and that a platform may not have counted yet.

    It ran at some time between `since` and `gone_at` (unix seconds), for at most `seconds_max`. `since` is
    its assignment: a machine may run for a while before anybody sees it.
    """

    session: str
    platform: str
    accelerator: str
    since: float
    seconds_max: float
    gone_at: float


class Sighting(StrEnum):
    ABSENT = "absent"  # the platform knows no such session (now)
    PENDING = "pending"  # accepted, not started
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class Observation:
    """One reading of one session. `ending` is the platform's own word on how it ended, if it has one:
    an outcome where the platform knows better than "ended" (quota, wall, killed for memory). `notes`: what
    the session left that was beyond a bound or in the wrong shape, and so was not read, in the same words
    each time."""

    sighting: Sighting
    incarnations: tuple[str, ...] = ()
    status: AgentStatus | None = None
    result: Result | None = None
    ending: Outcome | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()


ABSENT = Observation(Sighting.ABSENT)


class StopReply(StrEnum):
    REQUESTED = "requested"
    ENDED = "ended"
    IMPOSSIBLE = "impossible"
