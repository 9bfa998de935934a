"""A world whose runs come from schedules: every few minutes or hours, with windows, in several time zones.

The controller dies within a fire as it does anywhere else. Users pause, resume and fire schedules. Once it is
calm, each growing run is to finish; schedules that begin new runs are paused, because they never would.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator import cron
from orchestrator.core.event import Unscheduled
from orchestrator.core.job import CatchUp, Mode, Overlap, Recurrence, Window
from orchestrator.core.schedule import Fire, Planned, Schedule, Steps
from orchestrator.engine import scheduling
from orchestrator.errors import LedgerConflict
from tests.simulation.draws import draw_job
from tests.simulation.world import World

CALM_HOURS = 240.0  # for a growing run, nights count
LINES = ("*/10 * * * *", "*/25 * * * *", "7 * * * *", "0 */2 * * *", "30 2,14,22 * * *")
ZONES = ("UTC", "Europe/Berlin", "America/New_York")
WINDOWS = (None, None, Window(22 * 60, 15 * 60), Window(6 * 60, 23 * 60))


class ScheduledWorld(World):
    """See the module. `pauses`: the time in which each schedule was paused. `ended_at`: what each schedule
    had handled when it was first seen to have ended. `ticks`: when a controller had looked at everything.
    `asked`: when somebody fired a schedule. `removed`: schedules that were removed, with their fires."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self._draw = Random(f"scheduled {seed}")
        self.busy = self._draw.random() < 0.5
        self.names: list[str] = []
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.ended_at: dict[str, float] = {}
        self.asked: dict[str, set[float]] = defaultdict(set)
        self.ticks: list[float] = []
        self.removed: dict[str, tuple[Schedule, tuple[Fire, ...]]] = {}

    def _submit_all(self) -> None:
        for number in range(self._draw.choice((1, 1, 2))):
            self._register(f"nightly{number}", self._recurrence())

    def _recurrence(self) -> Recurrence:
        draw = self._draw
        given = Recurrence(
            draw.choice(LINES),
            draw.choice(ZONES),
            draw.choice(list(Mode)),
            draw.choice(list(Overlap)),
            draw.choice(list(CatchUp)),
            draw.choice((0.0, 0.0, 240.0)),
            draw.choice(WINDOWS),
        )
        if given.mode is Mode.CONTINUE and given.overlap is Overlap.REPLACE:
            return replace(given, overlap=Overlap.SKIP)
        return given

    def _register(self, name: str, recurrence: Recurrence) -> None:
        job = replace(draw_job(self._draw, name), schedule=recurrence)
        now = self.clock.now()
        self.ledger.schedules.add(Schedule(name, job, "home", now, now))
        self.names.append(name)

    def schedules(self) -> Iterator[Schedule]:
        for name in self.names:
            found = self.ledger.schedules.one(name)
            assert found is not None
            yield found

    def everything(self) -> Iterator[tuple[Schedule, tuple[Fire, ...]]]:
        """Every schedule that there was, with its fires."""
        yield from self.removed.values()
        for each in self.schedules():
            yield each, self.fires(each.name)

    def fires(self, name: str) -> tuple[Fire, ...]:
        return self.ledger.schedules.fires(name)

    # --- Playing ----------------------------------------------------------------------------------------

    def _tick(self) -> None:
        moment = self.clock.now()
        try:
            super()._tick()
            self.ticks.append(moment)
        finally:
            self.runs = self.ledger.known()
            for each in self.schedules():
                if each.ended:
                    self.ended_at.setdefault(each.name, each.last)

    def _pass_time(self) -> None:
        if self.busy and not self._calm and self._draw.random() < 0.01:
            self._manage(self._draw.choice(list(self.schedules())))
        super()._pass_time()

    def _manage(self, before: Schedule) -> None:
        """What a person does with a schedule, as the client does it."""
        now = self.clock.now()
        with suppress(LedgerConflict):
            if before.paused_at is not None:
                self._resume(before)
            elif self._draw.random() < 0.5:
                self._change(before, replace(before, paused_at=now))
            elif before.recurrence.window is None or cron.closes_at(before.recurrence, now) is not None:
                asked = Planned(now, now, cron.closes_at(before.recurrence, now))
                self.asked[before.name].add(now)
                with self._undisturbed():
                    scheduling.carry_out(self.ledger, self.folders, before, now, asked=asked)

    def _resume(self, before: Schedule) -> None:
        now = self.clock.now()
        assert before.paused_at is not None
        self.pauses[before.name].append((before.paused_at, now))
        self._change(before, replace(before, paused_at=None, last=max(before.last, now)))

    def _change(self, before: Schedule, after: Schedule) -> None:
        with self._undisturbed():
            self.ledger.schedules.take(before, Steps(after, 0.0))

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """A command of a user is not the controller that is to be killed."""
        before, after = self.ledger.before, self.ledger.after
        self.ledger.before, self.ledger.after = _nothing_before, lambda: None
        try:
            yield
        finally:
            self.ledger.before, self.ledger.after = before, after

    def calm(self) -> None:
        """Growing runs are to finish; schedules that would begin new runs for ever are removed."""
        super().calm()
        for each in list(self.schedules()):
            if each.recurrence.mode is Mode.CONTINUE:
                if each.paused_at is not None:
                    self._resume(each)
                continue
            self.removed[each.name] = (each, self.fires(each.name))
            self.names.remove(each.name)
            limited = ((run, run.slice) for run in map(self.record, self.ledger.known()))
            freed = tuple(
                (run, (Unscheduled(self.clock.now()),))
                for run, given in limited
                if run.schedule == each.name and given is not None and not run.phase.final
            )
            with self._undisturbed():
                self.ledger.schedules.remove(each, Steps(each, None, changes=freed))

    def finished(self) -> bool:
        growing = (each for each in self.schedules() if each.recurrence.mode is Mode.CONTINUE)
        return self._calm and super().finished() and all(each.ended for each in growing)


def _nothing_before(_proposals: Sequence[object]) -> None:
    return None
