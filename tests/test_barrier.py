"""An unforeseen error costs one run, or one platform for a while, and nobody else. With the real engine."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from orchestrator.core import decide as decide_module
from orchestrator.core.action import Launch
from orchestrator.core.draft import Decision, Inputs
from orchestrator.core.event import Assigned, Event, Faulted, Noted, Wished
from orchestrator.core.job import Claim, Precision, Profile, Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Sighting, StopReply
from orchestrator.core.speed import Measurement
from orchestrator.engine import controller
from orchestrator.engine.engine import Watchers
from orchestrator.engine.perform import Backends
from orchestrator.engine.readings import observe
from orchestrator.errors import Transient
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.platforms.simulated import Faults, Scenario
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.unforeseen import Reporter
from tests.test_engine import Small, scenario

VERBS = ("prepare", "launch", "observe", "collect", "stop", "discard")


class Buggy:
    """Wraps any platform. Some verbs have a bug that shows for sessions of the run `bad` only, or for all."""

    def __init__(self, inner: Platform) -> None:
        self.inner = inner
        self.bugs: frozenset[str] = frozenset()
        self.for_all = False

    @property
    def name(self) -> str:
        return self.inner.name

    def _perhaps(self, verb: str, *names: str) -> None:
        if verb in self.bugs and (self.for_all or any(name.startswith("bad") for name in names)):
            raise KeyError("a field that was always there")

    def survey(self) -> tuple[Offer, ...]:
        self._perhaps("survey")
        return self.inner.survey()

    def prepare(self, order: Order, materials: Materials) -> str | None:
        self._perhaps("prepare", order.session)
        return self.inner.prepare(order, materials)

    def launch(self, order: Order) -> None:
        self._perhaps("launch", order.session)
        self.inner.launch(order)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        wanted = tuple(names)
        self._perhaps("observe", *wanted)
        return self.inner.observe(wanted)

    def open(self, name: str) -> Outbox:
        self._perhaps("collect", name)
        return self.inner.open(name)

    def stop(self, name: str) -> StopReply:
        self._perhaps("stop", name)
        return self.inner.stop(name)

    def discard(self, name: str) -> None:
        self._perhaps("discard", name)
        self.inner.discard(name)


class Guarded(Small):
    """A small world whose platforms may have bugs, behind the barrier. `said` is the controller's log."""

    def __init__(self, folder: Path, **scenarios: Scenario) -> None:
        self.said: list[str] = []
        self.unforeseen: Callable[[str, Exception], None] = Reporter(self.said.append)
        self.buggy: dict[str, Buggy] = {}
        super().__init__(folder, **scenarios)

    def backends(self, names: tuple[str, ...]) -> Backends:
        self.buggy |= {name: Buggy(self.platforms[name]) for name in names if name not in self.buggy}
        platforms = {name: self.buggy[name] for name in names}
        return Backends(
            platforms, self.stores, self.home_store, self.folders, lambda name: name, self.unforeseen
        )

    def standing(self, run: str, phase: Phase) -> Callable[[], bool]:
        return lambda: self.record(run).standing is phase

    def events(self, run: str, kind: type) -> list[object]:
        return [s.event for s in self.ledger.history(run) if isinstance(s.event, kind)]


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Callable[..., Guarded]]:
    made: list[Guarded] = []

    def make(**scenarios: Scenario) -> Guarded:
        made.append(Guarded(tmp_path, **scenarios))
        return made[-1]

    yield make
    for each in made:
        each.ledger.close()


Make = Callable[..., Guarded]


@pytest.mark.parametrize("verb", VERBS)
def test_a_bug_in_a_verb_costs_its_run_and_no_other(guarded: Make, verb: str) -> None:
    world = guarded(box=scenario(slots=2))
    world.buggy["box"].bugs = frozenset({verb})
    world.submit("bad")
    world.submit("good")
    if verb == "stop":
        assert world.until(world.phase("bad", Phase.RUNNING))
        world.ledger.wish("bad", Wished(world.clock.now(), Wish.HOLD))
    assert world.until(world.phase("good", Phase.DONE), seconds=4 * 3600.0)
    assert world.until(lambda: bool(world.said))
    assert any("KeyError" in text and "a field that was always there" in text for text in world.said)
    assert any("Traceback" in text for text in world.said)
    if verb in ("prepare", "observe", "collect"):
        assert world.until(world.standing("bad", Phase.HELD))
        assert "KeyError" in world.record("bad").standing_reason
    world.buggy["box"].bugs = frozenset()
    if verb == "stop":
        assert world.until(lambda: world.record("bad").phase in (Phase.HELD, Phase.DONE))
    if world.record("bad").standing is Phase.HELD:
        world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("bad", Phase.DONE), seconds=8 * 3600.0)


def test_a_platform_whose_code_fails_is_closed_and_runs_go_elsewhere(guarded: Make) -> None:
    fast = Profile(8, Precision.FP32, claim=Claim((90.0, 110.0), 16, "T4", "test", "2026-01-01"))
    slow = Profile(8, Precision.FP32, claim=Claim((4.0, 6.0), 16, "cpu", "test", "2026-01-01"))
    world = guarded(box=scenario(), cloud=scenario("T4"))
    world.buggy["cloud"].bugs, world.buggy["cloud"].for_all = frozenset({"survey"}), True
    world.submit("first", profiles=(("T4", fast), ("cpu", slow)))
    assert world.until(lambda: world.record("first").session is not None)
    session = world.record("first").session
    assert session is not None
    assert session.order.platform == "box"
    assert world.until(world.phase("first", Phase.DONE))


def test_a_closed_platform_opens_again_after_a_good_survey(guarded: Make) -> None:
    world = guarded(box=scenario())
    world.submit("first")
    assert world.until(world.phase("first", Phase.DONE))
    world.buggy["box"].bugs, world.buggy["box"].for_all = frozenset({"survey"}), True
    assert world.until(lambda: bool(world.said))
    world.submit("second")
    assert not world.until(lambda: world.record("second").session is not None, seconds=600.0)
    assert "KeyError" in world.record("second").reason
    world.buggy["box"].bugs = frozenset()
    assert world.until(world.phase("second", Phase.DONE))


def test_readings_that_fail_for_all_blame_no_run(guarded: Make) -> None:
    world = guarded(box=scenario(slots=2))
    world.submit("one")
    world.submit("two")
    assert world.until(lambda: all(world.record(run).phase is Phase.RUNNING for run in ("one", "two")))
    world.buggy["box"].bugs, world.buggy["box"].for_all = frozenset({"observe"}), True
    world.until(lambda: False, seconds=60.0)
    assert any("a field that was always there" in text for text in world.said)
    assert [world.record(run).fault for run in ("one", "two")] == ["", ""]
    world.buggy["box"].bugs = frozenset()
    assert world.until(lambda: all(world.record(run).phase is Phase.DONE for run in ("one", "two")))


def broken_decide(monkeypatch: pytest.MonkeyPatch, run: str) -> Callable[[], None]:
    """Plants a bug in decide that shows for one run; returns a function that fixes it."""
    real = decide_module.decide

    def decide(record: RunRecord, inputs: Inputs) -> Decision:
        if record.run == run:
            raise OverflowError("int too large to convert to float")
        return real(record, inputs)

    monkeypatch.setattr(decide_module, "decide", decide)
    return lambda: monkeypatch.setattr(decide_module, "decide", real)


def test_a_bug_in_decide_holds_its_run_over_restarts(guarded: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = guarded(box=scenario(slots=2))
    world.submit("bad")
    assert world.until(world.phase("bad", Phase.RUNNING))
    repair = broken_decide(monkeypatch, "bad")
    world.submit("good")
    assert world.until(world.standing("bad", Phase.HELD))
    assert "OverflowError" in world.record("bad").standing_reason
    world.restart("box")
    assert world.until(world.phase("good", Phase.DONE), seconds=4 * 3600.0)
    assert world.record("bad").phase is Phase.RUNNING, "it keeps its phase"
    assert len(world.events("bad", Faulted)) == 1
    assert world.until(lambda: world.engine.idle), "the engine waits for a person"
    repair()
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert not world.engine.idle
    assert world.until(world.phase("bad", Phase.DONE), seconds=4 * 3600.0)


def test_where_every_session_fails_each_is_held_and_the_offers_open_again(guarded: Make) -> None:
    """The cause may be our code or the platform's. No more sessions start there for a while, and no other run
    pays."""
    world = guarded(box=scenario(slots=3))
    for run in ("bad-1", "bad-2"):
        world.submit(run)
    assert world.until(lambda: all(world.record(run).phase is Phase.RUNNING for run in ("bad-1", "bad-2")))
    world.buggy["box"].bugs = frozenset({"observe"})
    held = world.until(lambda: all("KeyError" in world.record(run).fault for run in ("bad-1", "bad-2")), 60.0)
    assert held
    world.submit("good")
    assert world.until(world.phase("good", Phase.DONE), seconds=4 * 3600.0)
    world.buggy["box"].bugs = frozenset()
    for run in ("bad-1", "bad-2"):
        world.ledger.wish(run, Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(lambda: all(world.record(run).phase is Phase.DONE for run in ("bad-1", "bad-2")))


def test_a_fault_beside_the_answer_to_a_launch_launches_nothing_again(
    guarded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is lost with that decision. After its release the run looks for the session before it starts
    one."""
    world = guarded(box=scenario(visibility_seconds=60.0))
    real, met = decide_module.decide, []

    def decide(record: RunRecord, inputs: Inputs) -> Decision:
        if any(isinstance(report.action, Launch) for report in inputs.reports):
            met.append(record.run)
            raise OverflowError("int too large to convert to float")
        return real(record, inputs)

    monkeypatch.setattr(decide_module, "decide", decide)
    world.submit("bad")
    assert world.until(world.standing("bad", Phase.HELD))
    monkeypatch.setattr(decide_module, "decide", real)
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("bad", Phase.DONE), seconds=4 * 3600.0)
    asked = [launch.session for launch in world.platforms["box"].history.launches]
    assert met == ["bad"]
    assert asked == ["bad-s01"]


def test_a_person_who_comes_late_finds_the_session_as_it_is(
    guarded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looked meanwhile. That says nothing about the session, which may have completed."""
    world = guarded(box=scenario())
    world.submit("bad", work=Work(total=500, global_batch=16))
    assert world.until(world.phase("bad", Phase.RUNNING))
    repair = broken_decide(monkeypatch, "bad")
    assert world.until(world.standing("bad", Phase.HELD))
    world.until(lambda: False, seconds=60.0)
    world.clock.advance(86400.0)  # far longer than the session's limit
    repair()
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("bad", Phase.DONE))
    assert world.record("bad").generation == 1


def test_a_controller_with_nothing_but_held_runs_leaves(
    guarded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guarded(box=scenario())
    world.submit("bad")
    assert world.until(world.phase("bad", Phase.RUNNING))
    broken_decide(monkeypatch, "bad")
    assert world.until(lambda: world.engine.idle)
    assert world.engine.faulted == {"bad"}
    assert not world.ledger.anything_left(besides=world.engine.faulted)
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.ledger.anything_left(besides=world.engine.faulted)


def test_a_bug_while_learning_a_rate_holds_that_run_alone(
    guarded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guarded(box=scenario(slots=2))
    real = world.ledger.add_measurement

    def add(name: str, measurement: Measurement) -> None:
        if name == "bad":
            raise OverflowError("int too large to convert to float")
        real(name, measurement)

    monkeypatch.setattr(world.ledger, "add_measurement", add)
    world.submit("bad")
    world.submit("good")
    assert world.until(world.standing("bad", Phase.HELD), seconds=4 * 3600.0)
    assert "OverflowError" in world.record("bad").standing_reason
    assert world.until(world.phase("good", Phase.DONE), seconds=4 * 3600.0)
    assert world.ledger.measurements("good")
    assert not world.ledger.measurements("bad")
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("bad", Phase.DONE), seconds=4 * 3600.0)


def test_who_cannot_be_told_of_an_event_loses_no_run(guarded: Make) -> None:
    world = guarded(box=scenario(slots=2))

    def told(record: RunRecord, event: Event) -> None:
        if record.run == "bad" and isinstance(event, Assigned):
            raise KeyError("a colour for this event")

    world.engine._watchers = Watchers(event=told)
    world.submit("bad")
    assert world.until(world.standing("bad", Phase.HELD))
    assert "telling of bad" in world.record("bad").standing_reason
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.RELEASE))
    assert world.until(world.phase("bad", Phase.DONE), seconds=4 * 3600.0)


def test_what_cannot_be_collected_can_be_given_up(guarded: Make) -> None:
    world = guarded(box=scenario())
    world.buggy["box"].bugs = frozenset({"collect"})
    world.submit("bad")
    assert world.until(world.standing("bad", Phase.HELD), seconds=4 * 3600.0)
    assert "cancel --discard" in world.record("bad").standing_reason
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(world.standing("bad", Phase.HELD)), "what it left may be the only copy"
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.CANCEL, discard=True))
    assert world.until(world.phase("bad", Phase.CANCELLED))


def test_what_a_finished_run_left_is_cleaned_up_whatever_is_met(guarded: Make) -> None:
    """Nobody can release a finished run, so its slot would stay taken for ever."""
    world = guarded(box=scenario())
    world.buggy["box"].bugs = frozenset({"discard"})
    world.submit("bad")
    assert world.until(world.phase("bad", Phase.DONE), seconds=4 * 3600.0)
    world.engine._faults["bad"] = "unexpected error while reading bad"
    world.until(lambda: False, seconds=10.0)
    assert not world.record("bad").fault
    world.buggy["box"].bugs = frozenset()
    assert world.until(lambda: not world.record("bad").strays)


class Halting(Buggy):
    """Raises an error for one session, and does not answer for another when it is asked alone."""

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        wanted = tuple(names)
        if "bad-s01" in wanted:
            raise KeyError("a field that was always there")
        if wanted == ("slow-s01",):
            raise Transient("no answer")
        return dict.fromkeys(wanted, Sight(Sighting.ABSENT))


def test_a_session_that_is_not_heard_alone_is_not_blamed(guarded: Make) -> None:
    world = guarded(box=scenario())
    found = observe(
        "box", Halting(world.platforms["box"]), ("good-s01", "bad-s01", "slow-s01"), world.unforeseen
    )
    assert set(found.observations) == {"good-s01"}
    assert set(found.unread) == {"bad-s01"}
    assert not found.trouble


def test_a_run_that_nobody_wants_is_cancelled_even_if_decide_fails(
    guarded: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = guarded(box=scenario())
    broken_decide(monkeypatch, "bad")
    world.submit("bad")
    assert world.until(world.standing("bad", Phase.HELD))
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(world.phase("bad", Phase.CANCELLED))


def test_what_is_left_of_a_run_that_is_over_is_cleaned_up_all_the_same(guarded: Make) -> None:
    """Its stray was given up as lost. Reading it raises an unforeseen error."""
    dark = scenario(faults=Faults(partitioned=1.0))
    world = guarded(box=dark)
    world.submit("bad", without_progress=1)
    assert world.until(lambda: bool(world.record("bad").strays), seconds=8 * 3600.0)
    world.buggy["box"].bugs = frozenset({"observe"})
    world.ledger.wish("bad", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(lambda: world.record("bad").phase.final, seconds=8 * 3600.0)
    assert world.until(lambda: not world.record("bad").strays, seconds=8 * 3600.0)
    assert world.record("bad").fault == ""


def test_what_cannot_be_journalled_holds_its_run(guarded: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    world = guarded(box=scenario(slots=2))
    real = decide_module.decide

    def decide(record: RunRecord, inputs: Inputs) -> Decision:
        decision = real(record, inputs)
        if record.run != "bad" or not decision.events:
            return decision
        poison = Noted(float("inf"), "a time that no database column and no JSON takes")
        return Decision(decision.record, (*decision.events, poison), decision.actions, decision.due_at)

    monkeypatch.setattr(decide_module, "decide", decide)
    world.submit("bad")
    world.submit("good")
    assert world.until(world.phase("good", Phase.DONE), seconds=4 * 3600.0)
    assert world.record("bad").standing is Phase.HELD
    assert "journalling" in world.record("bad").standing_reason


def test_in_tests_and_simulation_it_still_fails(tmp_path: Path) -> None:
    world = Small(tmp_path, box=scenario())
    world.platforms["box"].survey = lambda: 1 / 0  # type: ignore[assignment, method-assign, return-value]
    with pytest.raises(ZeroDivisionError):
        world.until(lambda: False, seconds=120.0)
    world.ledger.close()


def test_a_controller_whose_tick_fails_begins_anew(guarded: Make) -> None:
    world = guarded(box=scenario())
    world.engine.tick = lambda: 1 / 0  # type: ignore[method-assign]
    anew = controller.run(
        world.engine, world.clock, threading.Event(), lambda: False, leave_when_idle=True,
        outdated=lambda: False, say=world.said.append, unforeseen=world.unforeseen,
    )  # fmt: skip
    assert anew
    assert any("ZeroDivisionError" in text for text in world.said)


def test_a_controller_that_pauses_after_a_failed_tick_still_obeys(guarded: Make) -> None:
    world = guarded(box=scenario())
    world.engine.tick = lambda: 1 / 0  # type: ignore[method-assign]
    began = world.clock.monotonic()
    anew = controller.run(
        world.engine, world.clock, threading.Event(), lambda: world.clock.monotonic() > began,
        leave_when_idle=True, outdated=lambda: False, say=world.said.append, unforeseen=world.unforeseen,
    )  # fmt: skip
    assert not anew
    assert world.clock.monotonic() - began < controller.ANEW_SECONDS


def test_the_same_exception_again_and_again_fills_no_log() -> None:
    said: list[str] = []
    told = Reporter(said.append)
    for _ in range(1000):
        try:
            raise ValueError("again")
        except ValueError as error:
            told("looking", error)
    assert len(said) == 10
    assert "seen 512 times" in said[-1]


BUGGY_START = """
import sys
from orchestrator.cli import main
from orchestrator.platforms.process import ProcessPlatform

def tidy(self):
    raise RecursionError("too deep")

ProcessPlatform.tidy = tidy
sys.exit(main(["up", "--home", sys.argv[1]]))
"""


def test_what_nobody_foresaw_at_a_start_is_logged_and_the_controller_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-c", BUGGY_START, str(tmp_path / "home")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as started:
        try:
            assert started.stdout is not None
            told = ""
            while "RecursionError: too deep" not in told:
                line = started.stdout.readline()
                assert line, told
                told += line
            assert "while tidying" in told
            assert "Exception in thread" not in told
        finally:
            started.terminate()
            rest = started.stdout.read() if started.stdout else ""
        assert started.wait() == 0, told + rest
