"""A session as the controller knows it: from assignment to close, its readings, and its remains.

Values only. `orchestrator.core.order` has what a session gets and what its agent reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import AgentStatus, Order, Outcome, Result


@dataclass(frozen=True)
class Session:
    """One stay of a run on one platform, from assignment to close. Times in unix seconds.

    `traits` are the platform's at assignment. `began_at`: when it was first seen to run, if that was before
    its agent was seen (`started_at`). `incarnation` is the first agent seen; only its checkpoints count.
    `retired_steps`: the steps of its checkpoints that were accepted and later retired. `step` is the one that
    the agent's result names; `reached`, `error` and `hopeless` are as in that. `failures` counts failed
    actions in a row; `retry_at` is when to try again.
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
    reached: int | None = None
    error: str = ""
    hopeless: bool = False

    @property
    def crash(self) -> tuple[str, int] | None:
        """The exception that ended it and the last step that it is known to have reached; None: it ended
        otherwise."""
        kept = max(self.step or 0, self.order.resume_step)
        return (self.error, kept if self.reached is None else self.reached) if self.error else None

    @property
    def name(self) -> str:
        return self.order.session

    @property
    def generation(self) -> int:
        return self.order.generation

    @property
    def wall_at(self) -> float | None:
        """When the platform's session limit is reached, by this machine's clock; None: no limit. If the
        session was not seen to run, this is the latest possible time."""
        if self.launched_at is None or self.traits.session_seconds is None:
            return None
        began = self.runs_since
        latest = self.launched_at + self.traits.pending_seconds_max
        return (latest if began is None else began) + self.traits.session_seconds

    @property
    def budget_seconds(self) -> float:
        """What it may use of a quota: its agent's budget plus the margin; 0 if it has no budget."""
        return (self.order.budget_seconds or 0.0) + self.traits.wall_margin_seconds

    @property
    def runs_since(self) -> float | None:
        """When it was first seen to run; None: never."""
        return self.began_at if self.began_at is not None else self.started_at


@dataclass(frozen=True)
class Stray:
    """A closed session whose remains are still on its platform, until they are discarded.

    `ended` False: given up as lost and fenced; it may still run. It is asked to stop, and its slot counts as
    used until its end is seen or `until` has passed (None: no limit). It ran from `since`, its assignment,
    at the earliest, and for at most `seconds_max` (None: unknown). It is polled every `poll_seconds`, as in
    its platform's traits. With `hands_over`, the run's next session may read its remains. `uplink`: where its
    outbox is. `machine` as in the traits.
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
    seconds_max: float | None = None
    machine: str = ""


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
    ABSENT = "absent"  # the platform does not know the session (now)
    PENDING = "pending"  # accepted, not started
    RUNNING = "running"
    SAVING = "saving"  # it runs no more; what it leaves is not all there yet
    ENDED = "ended"


@dataclass(frozen=True)
class Observation:
    """One reading of one session.

    `ending`: how the session ended, if the platform knows more than "ended" (quota, session limit, killed for
    memory). `notes`: what was not read because it was outside a limit or malformed; the same text each time.
    `log`: the newest lines of its log, for people, if they come before its outbox.
    """

    sighting: Sighting
    incarnations: tuple[str, ...] = ()
    status: AgentStatus | None = None
    result: Result | None = None
    ending: Outcome | None = None
    detail: str = ""
    notes: tuple[str, ...] = ()
    log: str = ""


ABSENT = Observation(Sighting.ABSENT)


class StopReply(StrEnum):
    REQUESTED = "requested"
    ENDED = "ended"
    IMPOSSIBLE = "impossible"
