"""Watches the sessions for forecasts: events and readings in, a forecast of every run out, every few seconds.

Collects in the thread that ticks and computes in one of its own, so that a long queue delays no tick. In
memory only: after a restart it looks anew. Decides nothing, and nothing is decided from it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from orchestrator.clock import Clock
from orchestrator.core.event import Assigned, Ended, Event, Launched
from orchestrator.core.foreseen import Forecast
from orchestrator.core.outlook import foresee
from orchestrator.core.pace import Reading, pace, seen, told
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene, Watched
from orchestrator.core.schedule import Schedule
from orchestrator.core.session import Observation
from orchestrator.core.speed import Measurement
from orchestrator.engine.coming import coming
from orchestrator.errors import BackendError
from orchestrator.unforeseen import Unforeseen

FORESEE_SECONDS = 5.0
BUSY_SHARE_MAX = 0.1  # of one core, however long the queue is
WAITING_MAX = 100  # runs of the queue that are laid out
TURN_SECONDS_MAX = 900.0  # more is a wait for a slot or a quota, which is laid out by itself
LATE_SECONDS_MAX = 30.0  # between an agent's status and its reading; else the clocks differ

Scenery = Callable[[], tuple[Case, tuple[RunRecord, ...], tuple[RunRecord, ...]]]
Schedules = Callable[[], tuple[Schedule, ...]]


@dataclass
class _Seen:
    """Of one run."""

    session: str = ""
    readings: tuple[Reading, ...] = ()
    observation: Observation | None = None
    ended_at: float | None = None
    turn: float | None = None


class Foreseer:
    """`told`, `reading` and `after_tick` are called in the thread that ticks and never block. `write` gets
    the forecasts by run, in the other thread."""

    def __init__(
        self,
        clock: Clock,
        measurements: Callable[[str], tuple[Measurement, ...]],
        write: Callable[[Scene, Mapping[str, Forecast]], None],
        unforeseen: Unforeseen,
    ) -> None:
        self._clock = clock
        self._measurements = measurements
        self._write = write
        self._unforeseen = unforeseen
        self._seen: dict[str, _Seen] = {}
        self._known: dict[str, tuple[Measurement, ...]] = {}
        self._next: tuple[Scene, tuple[Schedule, ...]] | None = None
        self._wake = threading.Event()
        self._due_at = float("-inf")

    # --- In the thread that ticks -----------------------------------------------------------------------

    def told(self, record: RunRecord, event: Event) -> None:
        """Takes in that this has happened."""
        if record.phase.final:
            self._seen.pop(record.run, None)
            return
        found = self._seen.setdefault(record.run, _Seen())
        match event:
            case Assigned():
                found.session, found.readings, found.observation = event.order.session, (), None
            case Launched() if found.ended_at is not None:
                turn = event.at - found.ended_at
                found.ended_at = None
                if 0.0 <= turn <= TURN_SECONDS_MAX:
                    found.turn = turn
            case Ended():
                self._known.pop(record.job.name, None)
                early = event.left_at is not None and event.left_at < event.at
                found.ended_at = event.left_at if early else event.at

    def reading(self, record: RunRecord, observation: Observation, now: float) -> None:
        """Takes in a reading of the run's session."""
        session, status = record.session, observation.status
        if session is None:
            return
        found = self._seen.setdefault(record.run, _Seen())
        if found.session != session.name:
            found.session, found.readings = session.name, ()
        found.observation = observation
        if status is not None and status.step is not None:
            late = now - status.written_at
            at = status.written_at if 0.0 <= late <= LATE_SECONDS_MAX else now
            found.readings = seen(found.readings, min(status.step, record.job.work.total), at)

    @property
    def watches(self) -> int:
        """How many runs it remembers."""
        return len(self._seen)

    def after_tick(self, scenery: Scenery, schedules: Schedules = tuple) -> None:
        """Hands over what was seen, if the other thread is done with the last. Raises nothing."""
        now = self._clock.monotonic()
        if now < self._due_at or self._next is not None:
            return
        self._due_at = now + FORESEE_SECONDS
        try:
            known = schedules()
            self._next = self.scene(*scenery(), known), known
        except BackendError:  # the ledger does not answer, as the next tick will say
            return
        except Exception as error:  # noqa: BLE001 the barrier: told, and the next scene is another
            self._unforeseen("collecting what forecasts need", error)
            return
        self._wake.set()

    def scene(
        self, case: Case, running: tuple[RunRecord, ...], waiting: tuple[RunRecord, ...],
        schedules: tuple[Schedule, ...] = (),
    ) -> Scene:  # fmt: skip
        """Everything at this moment, as the engine has it and as it was seen. Finding the fires to come takes
        time, so they are not in it, but what is known of their jobs is."""
        waiting = tuple(sorted(waiting, key=lambda each: (each.submitted_at, each.run))[:WAITING_MAX])
        now = self._clock.now()
        jobs = {each.job.name for each in (*running, *waiting)} | {each.job.name for each in schedules}
        self._known = {job: self._known.get(job) or self._measurements(job) for job in jobs}
        watched = {each.run: self._watched(each, now) for each in running if each.run in self._seen}
        return Scene(now, case, running, waiting, watched=watched, measurements=dict(self._known))

    def _watched(self, record: RunRecord, now: float) -> Watched:
        try:
            return self._look_at(record, now)
        except Exception as error:  # noqa: BLE001 the barrier: only this run is forecast as if it were unseen
            self._unforeseen(f"measuring how fast {record.run} trains", error)
            return Watched(record.run)

    def _look_at(self, record: RunRecord, now: float) -> Watched:
        found, session = self._seen[record.run], record.session
        if session is None or found.session != session.name:
            return Watched(record.run, turn=found.turn)
        status = None if found.observation is None else found.observation.status
        speed = pace(record.job.work, found.readings, session.order.resume_step)
        return Watched(
            record.run, session.name, speed or told(record.job.work, session, status, now), status, found.turn
        )

    # --- In its own -------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Computes while the context is open. Leaving it waits for nothing."""
        over = threading.Event()

        def work() -> None:
            while not over.is_set():
                self._wake.wait()
                self._wake.clear()
                if not over.is_set():
                    self._foresee()

        threading.Thread(target=work, name="foreseeing", daemon=True).start()
        try:
            yield
        finally:
            over.set()
            self._wake.set()

    def _foresee(self) -> None:
        seen, began = self._next, self._clock.monotonic()
        if seen is None:
            return
        try:
            scene, schedules = seen
            fires, unkept = coming(schedules, scene.now)
            scene = replace(scene, coming=fires, unkept=unkept)
            self._write(scene, foresee(scene))
        except Exception as error:  # noqa: BLE001 the barrier: told, and the next scene is another
            self._unforeseen("a forecast", error)
        took = self._clock.monotonic() - began
        self._due_at = max(self._due_at, self._clock.monotonic() + took / BUSY_SHARE_MAX)
        self._next = None
