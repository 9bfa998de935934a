"""Work that ends a session never waits behind work that begins or reads one: real threads, hanging platforms.

If the machine cannot start a thread, nothing is lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core import decide, reports
from orchestrator.core.event import Submitted, Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Offer, Traits
from orchestrator.core.order import AgentStatus, Order
from orchestrator.core.session import Sighting, StopReply
from orchestrator.engine import surveying
from orchestrator.engine.engine import Brought, Engine
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.engine.workers import ThreadWorkers
from orchestrator.errors import Transient
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms.platform import Sight
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import job
from tests.seen import Canned

DEADLINE_SECONDS = 240.0  # on a machine that others use as well


class Hanging:
    """A platform whose sessions run for ever. The given verbs hang until they are released.

    While it is `busy`, it refuses to discard.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.hangs: set[str] = set()
        self.hanging: list[str] = []
        self.surveys = 0
        self.stopped: set[str] = set()
        self.busy = False
        self.refused: list[str] = []
        self.discarded: set[str] = set()
        self.let_go = threading.Event()

    def _perhaps(self, verb: str, *_: object) -> None:
        if verb in self.hangs:
            self.hanging.append(verb)
            assert self.let_go.wait(2 * DEADLINE_SECONDS)

    def survey(self) -> tuple[Offer, ...]:
        self._perhaps("survey")
        self.surveys += 1
        return (Offer(self.name, "cpu", Traits(poll_seconds=0.05, visibility_seconds=60.0), slots=16),)

    def prepare(self, order: Order, materials: Materials) -> None:
        self._perhaps("prepare", order, materials)

    def launch(self, order: Order) -> None:
        self._perhaps("launch", order)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        self._perhaps("observe")
        ended = Sight(Sighting.ENDED, Canned(("aaaa",)))
        alive = Sight(Sighting.RUNNING, Canned(("aaaa",), AgentStatus("aaaa", 1, 0.0, "training")))
        return {name: ended if name in self.stopped else alive for name in names}

    def open(self, name: str) -> Outbox:
        self._perhaps("collect", name)
        return Canned()

    def stop(self, name: str) -> StopReply:
        self.stopped.add(name)
        return StopReply.REQUESTED

    def discard(self, name: str) -> None:
        if self.busy:
            self.refused.append(name)
            raise Transient("try again")
        self.discarded.add(name)


class Real:
    """The real engine on threads, `threads` per lane, and this machine's clock."""

    def __init__(self, folder: Path, *platforms: Hanging, threads: int) -> None:
        self.clock = SystemClock()
        self.wake = threading.Event()
        self.ledger = Ledger.open(f"sqlite:///{folder / 'ledger.sqlite'}")
        self.workers: ThreadWorkers[Brought] = ThreadWorkers(self.wake, threads)
        takeover = self.ledger.take_over("test", now=self.clock.now())
        named = {each.name: each for each in platforms}
        backends = Backends(
            named, {"home": MemoryStore()}, "home", Folders(folder / "home"), lambda name: name
        )
        self.engine = Engine(
            self.ledger, takeover.fence, backends, Market(tuple(named)), self.workers, self.clock
        )

    def submit(self, run: str, platform: str) -> None:
        spec = job(name=run, route=replace(job().route, platforms=(platform,)))
        self.ledger.submit(Submitted(run, spec, self.clock.now()))

    def until(self, condition: Callable[[], bool]) -> bool:
        end = self.clock.monotonic() + DEADLINE_SECONDS
        while not condition():
            if self.clock.monotonic() > end:
                return False
            self.wake.clear()
            self.engine.tick()
            self.clock.wait(self.wake, 0.02)
        return True

    def phase(self, run: str, phase: Phase) -> Callable[[], bool]:
        return lambda: self.ledger.record(run).phase is phase


@contextmanager
def no_new_threads() -> Iterator[None]:
    """No thread can start, because its stack would not fit into the address space."""
    threading.stack_size(1 << 47)
    try:
        yield
    finally:
        threading.stack_size(0)


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., Real]]:
    made: list[tuple[Real, tuple[Hanging, ...]]] = []

    def make(*platforms: Hanging, threads: int = 4) -> Real:
        world = Real(tmp_path, *platforms, threads=threads)
        made.append((world, platforms))
        return world

    yield make
    for world, platforms in made:
        for platform in platforms:
            platform.let_go.set()
        world.workers.close()
        world.ledger.close()


@pytest.mark.parametrize("verb", ["prepare", "collect", "survey", "launch"])
def test_a_stop_is_asked_for_while_other_verbs_hang(
    real: Callable[..., Real], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "SURVEY_SECONDS", 0.1)
    threads = 1 if verb == "survey" else 4  # there is never more than one survey per platform
    box = Hanging("box")
    world = real(box, threads=threads)
    for number in range(5):
        world.submit(f"live{number}", "box")
    assert world.until(lambda: all(world.phase(f"live{n}", Phase.RUNNING)() for n in range(5)))
    box.hangs.add(verb)
    for number in range(5):
        world.submit(f"new{number}", "box")
    assert world.until(lambda: len(box.hanging) >= threads)
    world.ledger.wish("live0", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(lambda: any(name.startswith("live0") for name in box.stopped))


@pytest.mark.parametrize("verb", ["prepare", "collect", "survey", "launch", "observe"])
def test_a_discard_is_done_while_other_verbs_hang(
    real: Callable[..., Real], verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "SURVEY_SECONDS", 0.1)
    monkeypatch.setattr(decide, "DISCARD_AGAIN_SECONDS", 0.1)
    box = Hanging("box")
    world = real(box, threads=1)
    world.submit("over", "box")
    assert world.until(world.phase("over", Phase.RUNNING))
    box.busy = True
    world.ledger.wish("over", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(lambda: bool(box.refused)), "only the discard is left to do"
    world.submit("live", "box")
    assert world.until(world.phase("live", Phase.RUNNING))
    box.hangs.add(verb)
    world.submit("new", "box")
    assert world.until(lambda: bool(box.hanging))
    box.busy = False
    assert world.until(lambda: bool(box.discarded))


def test_a_platform_that_hangs_delays_no_other(real: Callable[..., Real]) -> None:
    dark, box = Hanging("dark"), Hanging("box")
    world = real(dark, box)
    world.submit("lost", "dark")
    assert world.until(world.phase("lost", Phase.RUNNING))
    dark.hangs |= {"survey", "prepare", "launch", "observe", "collect"}
    for number in range(5):
        world.submit(f"more{number}", "dark")
    assert world.until(lambda: len(dark.hanging) >= 4)
    world.submit("first", "box")
    assert world.until(world.phase("first", Phase.RUNNING))
    world.ledger.wish("first", Wished(world.clock.now(), Wish.CANCEL))
    assert world.until(world.phase("first", Phase.CANCELLED))
    assert world.until(lambda: bool(box.discarded))


def test_what_gets_no_thread_is_tried_again(
    real: Callable[..., Real], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "SURVEY_SECONDS", 0.1)
    monkeypatch.setattr(decide, "STOP_AGAIN_SECONDS", 0.1)
    box = Hanging("box")
    world = real(box)
    with no_new_threads():
        world.engine.tick()
        world.submit("run", "box")
        assert world.until(lambda: "can't start new thread" in world.ledger.record("run").reason)
    assert world.until(world.phase("run", Phase.RUNNING))
    with no_new_threads():
        world.ledger.wish("run", Wished(world.clock.now(), Wish.CANCEL))
        assert world.until(world.phase("run", Phase.STOPPING))
        assert not box.stopped
    assert world.until(world.phase("run", Phase.CANCELLED))


def test_a_prepare_that_gets_no_thread_has_failed_and_is_tried_again(
    real: Callable[..., Real], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surveying, "SURVEY_SECONDS", 0.1)
    monkeypatch.setattr(reports, "RETRY_SECONDS", 0.1)
    box = Hanging("box")
    world = real(box)
    assert world.until(lambda: box.surveys > 1)
    world.submit("run", "box")

    def failures() -> int:
        session = world.ledger.record("run").session
        return 0 if session is None else session.failures

    with no_new_threads():
        assert world.until(lambda: failures() > 1)
    assert world.until(world.phase("run", Phase.RUNNING))


def test_what_got_no_thread_is_not_begun_later() -> None:
    clock, wake, let_go = SystemClock(), threading.Event(), threading.Event()
    workers: ThreadWorkers[str] = ThreadWorkers(wake)
    workers.start("lane", lambda: f"first {let_go.wait(DEADLINE_SECONDS)}", str)
    with no_new_threads():
        workers.start("lane", lambda: "begun after all", str)
    [reason] = workers.finished()
    assert "can't start new thread" in reason
    let_go.set()
    workers.start("lane", lambda: "last", str)
    found: list[str] = []
    end = clock.monotonic() + DEADLINE_SECONDS
    while len(found) < 2 and clock.monotonic() < end:
        clock.wait(wake, 0.02)
        wake.clear()
        found += workers.finished()
    assert sorted(found) == ["first True", "last"]
    workers.close()
