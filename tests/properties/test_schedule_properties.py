"""Whatever restarts, pauses and clocks do: each planned instant is handled once, as the policy says."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import cron
from orchestrator.core.event import Completed
from orchestrator.core.job import CatchUp, Mode, Overlap, Recurrence, Window
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.core.schedule import LATE_SECONDS, Fire, FireOutcome, Schedule, decide
from tests.core import runs

BEGIN = runs.NOW
HOUR = 3600.0
LINES = st.sampled_from(["*/7 * * * *", "0 * * * *", "30 2 * * *", "*/40 * * * * *", "0 22,3 * * *"])
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "Australia/Lord_Howe"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(1.0, 2 * HOUR)),
        st.tuples(st.just("down"), st.floats(1.0, 20 * HOUR)),
        st.tuples(st.just("pause"), st.floats(1.0, 5 * HOUR)),
        st.tuples(st.just("done"), st.just(0.0)),
        st.tuples(st.just("back"), st.floats(61.0, 5 * HOUR)),
        st.tuples(st.just("forward"), st.floats(61.0, 5 * HOUR)),
        st.tuples(st.just("killed"), st.just(0.0)),
    ),
    max_size=12,
)


class World:
    """A schedule, its fires by their key and its runs, with a controller that ticks while time passes."""

    def __init__(self, recurrence: Recurrence) -> None:
        job = runs.job(name="nightly", schedule=recurrence)
        self.schedule = Schedule("nightly", job, "home", BEGIN, BEGIN)
        self.now = BEGIN
        self.fires: dict[float, Fire] = {}
        self.runs: dict[str, RunRecord] = {}
        self.late: set[float] = set()

    def tick(self, *, killed: bool = False) -> None:
        agenda = cron.agenda(self.schedule, self.now)
        fired = frozenset(each.planned for each in agenda.due) & self.fires.keys()
        under_way = [each for each in self.runs.values() if not each.phase.final]
        last = [self.runs[self.schedule.run]] if self.schedule.run in self.runs else []
        records = {each.run: each for each in (*under_way, *last)}.values()
        steps = decide(self.schedule, replace(agenda, fired=fired), records, self.now)
        if killed:  # nothing of it was written
            return
        self.schedule = steps.schedule
        self.next_at = steps.next_at
        for fire in steps.fires:
            assert fire.planned not in self.fires, "a fire has one key"
            self.fires[fire.planned] = fire
        for fire in steps.settled:
            assert self.fires[fire.planned].outcome is FireOutcome.WAITING
            self.fires[fire.planned] = replace(fire, count=1)
        for event in steps.submissions:
            assert event.run not in self.runs, "a fire has one run"
            self.runs[event.run] = submit(event)
        for before, events in steps.changes:
            record = before
            for each in events:
                record = apply(record, each)
            self.runs[before.run] = record

    def wait(self, seconds: float) -> None:
        """A controller looks at the schedule when it said that something is to be done."""
        end = self.now + seconds
        while self.next_at is not None and self.next_at <= end:
            self.now = max(self.now, self.next_at)
            self.tick()
        self.now = end

    def finish_runs(self) -> None:
        for name, record in self.runs.items():
            if not record.phase.final and record.session is None:
                events = (*runs.running(), runs.ended(Outcome.COMPLETED), Completed(self.now))
                for event in events:
                    record = apply(record, event)
                self.runs[name] = record
        self.tick()  # the controller notices that a run is over

    def step(self, what: str, seconds: float) -> None:
        match what:
            case "wait":
                self.wait(seconds)
            case "down" | "forward":
                self.now += seconds
                self.tick()
            case "back":
                self.now -= seconds
                self.tick()
            case "killed":
                self.tick(killed=True)
                self.tick()
            case "done":
                self.finish_runs()
            case "pause":
                self.schedule = replace(self.schedule, paused_at=self.now)
                self.tick()
                self.now += seconds
                last = max(self.schedule.last, self.now)
                self.schedule = replace(self.schedule, paused_at=None, last=last)
                self.tick()


@settings(max_examples=120, deadline=None)
@given(
    line=LINES,
    zone=ZONES,
    mode=st.sampled_from(list(Mode)),
    overlap=st.sampled_from([Overlap.SKIP, Overlap.QUEUE]),
    catch_up=st.sampled_from(list(CatchUp)),
    window=st.sampled_from([None, Window(22 * 60, 7 * 60)]),
    steps=STEPS,
)
def test_each_planned_instant_is_handled_exactly_once(
    line: str, zone: str, mode: Mode, overlap: Overlap, catch_up: CatchUp, window: Window | None,
    steps: list[tuple[str, float]],
) -> None:  # fmt: skip
    recurrence = Recurrence(line, zone, mode, overlap, catch_up, window=window)
    world = World(recurrence)
    world.tick()
    clocks_are_right = all(what != "back" for what, _ in steps)
    pauses = []
    for what, seconds in steps:
        if what == "done" and mode is Mode.CONTINUE:
            continue  # which would end the schedule
        began = world.now
        world.step(what, seconds)
        if what == "pause":
            pauses.append((began, world.now))
    assert world.next_at is None or world.next_at > world.now
    if not clocks_are_right:
        return
    fires = (each.planned for each in cron.planned_after(recurrence, "nightly", BEGIN))
    planned = list(takewhile(lambda instant: instant <= world.now, fires))
    handled = [each for each in planned if not any(a < each <= b for a, b in pauses)]
    assert sum(fire.count for fire in world.fires.values()) == len(handled)
    assert world.fires.keys() <= set(handled)
    if catch_up is CatchUp.NONE and window is None:
        took_place = (f for f in world.fires.values() if f.outcome is not FireOutcome.MISSED)
        assert all(fire.at - fire.planned <= LATE_SECONDS or fire.run for fire in took_place)


@settings(max_examples=40, deadline=None)
@given(line=LINES, ticks=st.lists(st.floats(1.0, 50.0), min_size=1, max_size=40))
def test_a_controller_that_runs_misses_nothing(line: str, ticks: list[float]) -> None:
    world = World(Recurrence(line, mode=Mode.FRESH, catch_up=CatchUp.NONE))
    for seconds in ticks:
        world.now += seconds
        world.tick()
    assert all(fire.outcome is not FireOutcome.MISSED for fire in world.fires.values())
