"""What really happened on a simulated platform, as plain data for checkers. Callers may have been told less.

All times are clock.elapsed() of the platform's clock, in seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orchestrator.core.order import Outcome


@dataclass(frozen=True)
class Launch:
    """One call of launch: whether it started the session, the error it raised, if any, and whether that says
    for certain that nothing was started, now."""

    at: float
    session: str
    started: bool
    error: str = ""
    refused: bool = False


@dataclass(frozen=True)
class Written:
    """One checkpoint committed to an outbox; `corrupt` if the outbox then altered it."""

    at: float
    name: str
    step: int
    corrupt: bool


@dataclass
class Lifetime:
    """One incarnation that ran. `outcome` is that of its own result; None while it runs or if it left none.
    `end` says why it ended. It began at `resumed_step`."""

    run: str
    session: str
    generation: int
    accelerator: str
    incarnation: str
    started_at: float
    resumed_step: int
    ended_at: float | None = None
    outcome: Outcome | None = None
    end: str = ""
    written: list[Written] = field(default_factory=list)


@dataclass(frozen=True)
class Discarded:
    """One discard that took effect. `alive`: something of the session ran then or was still to start."""

    at: float
    session: str
    alive: bool


@dataclass
class History:
    """`stops` and `collects` are calls, as (at, session). `quota_used` maps the number of a window to the
    session seconds, or units, that our own sessions used in it."""

    launches: list[Launch] = field(default_factory=list)
    lifetimes: list[Lifetime] = field(default_factory=list)
    stops: list[tuple[float, str]] = field(default_factory=list)
    collects: list[tuple[float, str]] = field(default_factory=list)
    discards: list[Discarded] = field(default_factory=list)
    quota_used: dict[int, float] = field(default_factory=dict)
