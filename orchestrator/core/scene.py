"""All runs, offers and readings at one moment: what forecasts and plans are made from. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.core.job import Job
from orchestrator.core.order import AgentStatus
from orchestrator.core.pace import Pace
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Measurement


@dataclass(frozen=True)
class Watched:
    """What was seen of a run: the pace and the newest status of its `session`, and how long the `turn` from
    one session's end to the next one's launch took (in seconds; None: not seen yet)."""

    run: str
    session: str = ""
    pace: Pace | None = None
    status: AgentStatus | None = None
    turn: float | None = None


@dataclass(frozen=True)
class Coming:
    """A fire to come: at `planned`, the `schedule` submits its `job`, or wakes its run for the next slice.
    The run may run until `until` (None: no window). Times in unix seconds. `store`: the home store of its
    runs."""

    schedule: str
    job: Job
    planned: float
    until: float | None = None
    store: str = ""

    @property
    def name(self) -> str:
        """What stands for its run, or the slice of it: no other fire has it."""
        at = datetime.fromtimestamp(self.planned, UTC)
        return f"{self.schedule} {at:%Y-%m-%d %H:%M}{f':{at:%S}' if at.second else ''}Z"


@dataclass(frozen=True)
class Scene:
    """`case` has the offers, minus what our own sessions use of them, and the user's rules; its measurements
    are not used, because those of each job (by name) are in `measurements`. `running` are the runs with a
    session, `waiting` those without, and `asked` those that somebody asks about. `coming` are the fires of
    schedules, in order, and `unkept` the schedules for which the queue keeps no place. Nothing is known of a
    run that is not in `watched`."""

    now: float
    case: Case
    running: tuple[RunRecord, ...] = ()
    waiting: tuple[RunRecord, ...] = ()
    asked: tuple[RunRecord, ...] = ()
    coming: tuple[Coming, ...] = ()
    unkept: frozenset[str] = frozenset()
    watched: Mapping[str, Watched] = field(default_factory=dict)
    measurements: Mapping[str, tuple[Measurement, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Sightings:
    """What was seen of each run at `at`, in unix seconds."""

    at: float
    watched: tuple[Watched, ...] = ()
