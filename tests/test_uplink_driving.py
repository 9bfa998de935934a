"""When an uplink ships what: its pace, its patience with a store that fails, and what it deletes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.job import Best, Keep
from orchestrator.core.order import Order
from orchestrator.errors import AccessDenied, QuotaExhausted, Superseded, Transient
from orchestrator.session.outbox import FolderOutbox
from orchestrator.session.words import Word, heard
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from orchestrator.uplink.driving import Driver
from orchestrator.uplink.latest import Latest
from orchestrator.uplink.pace import Pace
from orchestrator.uplink.registers import raise_fence
from orchestrator.uplink.shipping import Uplink
from tests.core.runs import RUN
from tests.simulation.clock import VirtualClock
from tests.test_uplink import ORDER, Session, read

FOREVER = 365 * 86400.0


class Distant(MemoryStore):
    """A store behind a slow line, which may also refuse. Counts the bytes that it got."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__()
        self.clock = clock
        self.seconds = 0.0  # for each blob
        self.error: Exception | None = None
        self.got: list[int] = []

    def put(self, key: str, source: Path, sha256: str) -> None:
        if self.error is not None:
            raise self.error
        if "/blobs/" in key:
            self.clock.advance(self.seconds)
            self.got.append(source.stat().st_size)
        super().put(key, source, sha256)


class World:
    """A session with a driver whose every step the test takes."""

    def __init__(self, folder: Path, order: Order = ORDER, pace: Pace = Pace()) -> None:  # noqa: B008
        self.clock = VirtualClock()
        self.store = self._made()
        raise_fence(self.store, RUN, 1)
        self.session = Session(folder, self.store, order)
        self.order, self.pace, self.scratch = order, pace, folder / "scratch"
        self.words: list[Word] = []
        self.driver = self.restarted()

    def _made(self) -> Distant:
        return Distant(self.clock)

    def restarted(self) -> Driver:
        latest = Latest(FolderOutbox(self.session.local), self.order, "aaaa", self.scratch)
        self.uplink = Uplink(self.store, self.order, "aaaa", latest, self.scratch, latest.wants)
        return Driver(self.uplink, latest, self.pace, self.clock, Random(1), self.words.append)

    def steps(self) -> list[int]:
        return [ref.step for ref in stored.names(self.store, RUN)]

    def ships_after(self, seconds: float) -> list[int]:
        self.clock.advance(seconds)
        self.driver.ship()
        return self.steps()

    def troubles(self) -> list[str]:
        return [word.trouble for word in self.words if word.trouble]


def scored(session: Session, step: int, score: float) -> Manifest:
    return session.saves(step, metrics={"score": score})


def test_it_holds_back_for_the_interval_and_for_a_share_of_the_time(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.session.saves(1)
    assert world.ships_after(0) == [1]
    world.session.saves(2)
    assert world.ships_after(59) == [1]
    world.store.seconds = 100.0
    assert world.ships_after(1) == [1, 2]
    world.session.saves(3)
    assert world.ships_after(19) == [1, 2]  # 119 s after the last began
    assert world.ships_after(1) == [1, 2, 3]
    seconds = [word.shipped_seconds for word in world.words if word.shipped_step is not None]
    assert seconds == [0.0, 100.0, 100.0]


def test_a_day_has_so_many_bytes(tmp_path: Path) -> None:
    world = World(tmp_path, pace=Pace(daily_bytes=24.0))  # a byte an hour
    world.session.saves(1)
    assert world.ships_after(0) == [1]
    world.session.saves(2)
    assert world.ships_after(3599) == [1]
    assert world.ships_after(1) == [1, 2]


def test_what_was_sent_before_costs_nothing_again(tmp_path: Path) -> None:
    world = World(tmp_path, pace=Pace(daily_bytes=24.0))
    first = world.session.saves(1)
    frozen = first.files
    assert world.ships_after(0) == [1]
    both = (*frozen, FileEntry("more", 1, (Part(_sha256(b"2"), 1),)))
    world.session.saves(2, files=both)
    assert world.ships_after(3600) == [1, 2]
    assert world.store.got == [1, 1]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_only_the_newest_of_those_that_wait_is_sent(tmp_path: Path) -> None:
    world = World(tmp_path)
    for step in range(1, 6):
        world.session.saves(step)
    assert world.ships_after(0) == [5]
    assert world.ships_after(FOREVER) == [5]


def test_the_best_is_sent_too_and_stays(tmp_path: Path) -> None:
    keep = Keep(last=2, best=Best("score", "max"))
    world = World(tmp_path, replace(ORDER, keep=keep))
    for step, score in ((1, 0.1), (2, 0.9), (3, 0.2), (4, 0.3)):
        scored(world.session, step, score)
    assert world.ships_after(0) == [4]
    assert world.ships_after(60) == [2, 4]
    for step in range(5, 9):
        scored(world.session, step, 0.4)
        world.ships_after(60)
    assert world.steps() == [2, 7, 8]


def test_its_own_superseded_ones_are_deleted_and_no_others(tmp_path: Path) -> None:
    """Step 0 was resumed. Step 99 is of a session that was given up: the controller decides about it. A blob
    of an older session belongs to a checkpoint that the listing does not show."""
    world = World(tmp_path, replace(ORDER, keep=Keep(last=2)))
    for step, generation in ((0, 0), (99, 1)):
        stranger = Session(tmp_path / f"{step}", world.store, incarnation="bbbb")
        made = stranger.saves(step, ref=CheckpointRef(step, generation, "bbbb"))
        stored.publish(world.store, RUN, made, stranger.local)
    (tmp_path / "hidden").write_bytes(b"of a hidden checkpoint")
    hidden = f"runs/{RUN}/blobs/g00-cccc/{_sha256(b'of a hidden checkpoint')}"
    world.store.put(hidden, tmp_path / "hidden", hidden.rpartition("/")[2])
    for step in range(1, 6):
        world.session.saves(step)
        world.ships_after(60)
    assert world.store.stat(hidden) is not None
    assert world.steps() == [0, 4, 5, 99]
    for name in (ref.name for ref in stored.names(world.store, RUN)):
        stored.verify(world.store, RUN, name)
    blobs = [stat.key for stat in world.store.list(f"runs/{RUN}/blobs/g01-aaaa/")]
    assert len(blobs) == 2


def test_one_that_starts_again_knows_what_it_sent(tmp_path: Path) -> None:
    world = World(tmp_path, replace(ORDER, keep=Keep(last=2)))
    for step in range(1, 4):
        world.session.saves(step)
        world.ships_after(60)
    world.driver = world.restarted()
    world.session.saves(4)
    assert world.ships_after(60) == [3, 4]
    assert world.store.got == [1, 1, 1, 1]


def test_a_damaged_newest_one_does_not_keep_the_one_before_from_being_sent(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.session.saves(1)
    broken = world.session.saves(2)
    (world.session.local / "blobs" / next(iter(broken.blobs()))).write_bytes(b"?")
    world.ships_after(0)
    assert world.ships_after(60) == [1]


def test_at_the_end_nothing_is_held_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.session.saves(1)
    world.ships_after(0)
    world.session.saves(2)
    world.session.ends()
    assert world.driver.is_over()
    pauses = []
    while not world.uplink.done:
        pauses.append(world.driver.ship())
    assert world.steps() == [1, 2]
    assert max(pauses) < 1.0
    assert read(world.store).small("result.json") is not None


@pytest.mark.parametrize(
    ("error", "least", "most", "told"),
    [
        (Transient("no route"), 30.0, 60.0, "cannot reach the home store"),
        (OSError(28, "No space left on device"), 30.0, 60.0, "cannot use the session's disk"),
        (AccessDenied("the token has expired"), 150.0, 300.0, "refuses the uplink"),
        (QuotaExhausted("the bucket is full"), 150.0, 300.0, "is full"),
    ],
)
def test_it_waits_for_a_store_and_warns_once(
    tmp_path: Path, error: Exception, least: float, most: float, told: str
) -> None:
    world = World(tmp_path)
    world.store.error = error
    world.session.saves(1)
    pauses = [world.driver.ship() for _ in range(40)]
    assert all(least <= pause <= most for pause in pauses[10:]), pauses
    assert pauses[0] <= (1.0 if least < 100 else 300.0)
    [trouble] = world.troubles()
    assert told in trouble
    world.session.saves(2)
    world.store.error = None
    assert world.ships_after(0) == [2]
    assert world.words[-1].say == "the uplink reaches the store again"
    assert sum(str(error) in word.say for word in world.words) == 2  # the first, and with the warning


def test_a_short_outage_is_no_warning(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.store.error = Transient("no route")
    world.session.saves(1)
    world.driver.ship()
    world.store.error = None
    assert world.ships_after(1) == [1]
    assert world.troubles() == []


@pytest.mark.parametrize("act", [Driver.ship, Driver.beat, Driver.run])
def test_a_superseded_one_leaves_for_good(tmp_path: Path, act: Callable[[Driver], object]) -> None:
    world = World(tmp_path)
    world.session.saves(1)
    raise_fence(world.store, RUN, 2)
    with pytest.raises(Superseded):
        act(world.driver)
    assert world.steps() == []


def test_an_agent_hears_words_and_anything_else_is_for_its_log() -> None:
    assert heard(b'{"say": "hello", "shipped_seconds": 2.0}') == Word("hello", shipped_seconds=2.0)
    assert heard(b"Traceback (most recent call last):\n").say == "Traceback (most recent call last):"
    assert heard(b"\xff\xfe\n").say
