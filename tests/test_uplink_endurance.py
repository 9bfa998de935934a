"""What an uplink makes of a store that is slow, full or interrupted, and of its own sudden end."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import FileEntry, Manifest, Part
from orchestrator.core.job import Keep
from orchestrator.errors import AccessDenied, QuotaExhausted, Transient
from orchestrator.session.committing import Outbox
from orchestrator.session.layout import Layout
from orchestrator.stores import checkpoints as stored
from orchestrator.uplink import registers
from orchestrator.uplink.pace import Pace
from tests.core.runs import RUN
from tests.simulation.clock import VirtualClock
from tests.test_uplink import KEYS, ORDER, read
from tests.test_uplink_driving import Distant, World

PARTS, PART_BYTES = 4, 1000


class Rough(Distant):
    """A store that fails as `fails` says, asked before each blob. `meanwhile` happens after each."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.fails: Callable[[], Exception | None] = lambda: None
        self.meanwhile: Callable[[], object] = lambda: None

    def put(self, key: str, source: Path, sha256: str) -> None:
        error = self.fails() if "/blobs/" in key else None
        if error is not None:
            raise error
        super().put(key, source, sha256)
        if "/blobs/" in key:
            self.meanwhile()

    def bytes(self) -> int:
        return sum(stat.size for stat in self.list(f"runs/{RUN}/blobs/"))


class Rougher(World):
    store: Rough

    def _made(self) -> Rough:
        return Rough(self.clock)

    def saves(self, step: int, keep: int = 2) -> Manifest:
        """A checkpoint of several blobs. The agent keeps only the newest few."""
        blobs = self.session.local / "blobs"
        blobs.mkdir(exist_ok=True)
        entries = []
        for number in range(PARTS):
            data = f"{step}-{number}-".encode() * PART_BYTES
            sha256 = hashlib.sha256(data[:PART_BYTES]).hexdigest()
            (blobs / sha256).write_bytes(data[:PART_BYTES])
            entries.append(FileEntry(f"f{number}", PART_BYTES, (Part(sha256, PART_BYTES),)))
        made = self.session.saves(step, files=tuple(entries))
        for old in sorted((self.session.local / "checkpoints").iterdir())[:-keep]:
            shutil.rmtree(old)
        return made

    def on_disk(self) -> int:
        return sum(path.stat().st_size for path in (self.scratch / "blobs").rglob("*") if path.is_file())

    def strays(self) -> int:
        """Blobs in the store that no checkpoint there needs."""
        return len(stored.orphans(self.store, RUN, ()))


def every(count: int, error: Exception) -> Callable[[], Exception | None]:
    """Each so many-th put fails."""
    puts = iter(range(1, 1_000_000))
    return lambda: error if next(puts) % count == 0 else None


def interrupted(world: Rougher, step: int) -> None:
    """The uplink begins the checkpoint of this step, and the connection breaks in its middle."""
    world.saves(step)
    world.store.fails = every(3, Transient("the connection broke"))
    world.ships_after(0)
    world.store.fails = lambda: None
    assert world.store.bytes() % (PARTS * PART_BYTES) == 2 * PART_BYTES


def test_saves_that_come_faster_than_a_shaky_line_ships_still_arrive(tmp_path: Path) -> None:
    world = Rougher(tmp_path)
    world.store.fails = every(PARTS, Transient("blip"))
    newest = 0
    for step in range(1, 41):
        world.saves(step)
        world.clock.advance(world.driver.ship())
        newest = max(world.steps(), default=0)
        assert newest >= step - 3
        assert world.strays() <= PARTS
    world.store.fails = lambda: None
    assert world.ships_after(60)[-1] >= newest
    assert world.ships_after(60)[-1] == 40
    assert world.strays() == 0


def test_a_try_that_sent_something_is_soon_repeated(tmp_path: Path) -> None:
    world = Rougher(tmp_path)
    world.store.fails = every(2, Transient("blip"))
    world.saves(1)
    pauses = [world.driver.ship() for _ in range(PARTS)]
    assert world.steps() == [1]
    assert max(pauses[:-1]) <= 1.0
    assert not any(word.trouble for word in world.words)


def test_what_has_begun_is_finished_by_the_next_uplink_and_not_sent_again(tmp_path: Path) -> None:
    world = Rougher(tmp_path)
    interrupted(world, 1)
    for step in range(2, 6):
        world.saves(step)
    world.driver = world.restarted()
    assert world.ships_after(0) == [1]
    assert world.ships_after(60) == [1, 5]
    assert len(world.store.got) == 2 * PARTS


def test_at_the_end_the_newest_goes_after_what_has_begun(tmp_path: Path) -> None:
    world = Rougher(tmp_path)
    interrupted(world, 1)
    world.saves(2)
    world.session.ends()
    world.store.fails = every(1, Transient("away"))
    world.ships_after(1)  # now it has the result
    world.store.fails = lambda: None
    while not world.uplink.done:
        world.clock.advance(world.driver.ship())
    assert world.steps() == [1, 2]
    assert read(world.store).small("result.json") is not None


def test_what_has_begun_and_is_gone_is_given_up(tmp_path: Path) -> None:
    world = Rougher(tmp_path)
    interrupted(world, 1)
    world.saves(2)
    shutil.rmtree(world.scratch / "blobs")
    world.ships_after(0)
    assert world.ships_after(60) == [2]
    assert world.uplink.sweep()
    assert world.strays() == 0


@pytest.mark.parametrize("error", [QuotaExhausted("full"), AccessDenied("read only"), Transient("away")])
def test_a_store_that_takes_nothing_fills_no_disk(tmp_path: Path, error: Exception) -> None:
    world = Rougher(tmp_path)
    world.store.error = error
    for step in range(1, 11):
        world.saves(step)
        world.clock.advance(world.driver.ship())
        assert world.on_disk() <= PARTS * PART_BYTES
    world.store.error = None
    assert world.ships_after(60) == [10]
    assert world.on_disk() == 0


def test_a_full_store_gets_room_from_what_is_superseded_or_half_sent(tmp_path: Path) -> None:
    """Never from what the controller relies on, nor from what has begun."""
    world = Rougher(tmp_path, replace(ORDER, keep=Keep(last=2)))

    def full() -> Exception | None:
        has_room = world.store.bytes() + PART_BYTES <= 3 * PARTS * PART_BYTES
        return None if has_room else QuotaExhausted("full")

    interrupted(world, 1)
    shutil.rmtree(world.scratch / "blobs")  # so it stays half sent
    world.ships_after(0)
    world.store.fails = full
    for step in (2, 3, 4):
        world.saves(step)
        world.ships_after(60)
    assert world.steps() == [3, 4]
    assert world.strays() == 0
    assert len(world.store.got) == 2 + 3 * PARTS
    registers.pin(world.store, KEYS, {min(world.uplink.published)})
    for step in (5, 6):
        world.saves(step)
        world.ships_after(60)
    assert world.steps() == [3, 4, 5]
    assert [word.trouble for word in world.words if word.trouble]  # it is full now
    world.store.registers.delete(KEYS.pins)
    assert world.ships_after(60) == [5, 6]
    for ref in stored.names(world.store, RUN):
        stored.verify(world.store, RUN, ref.name)


def test_a_slow_store_lags_by_one_upload_and_no_more(tmp_path: Path) -> None:
    """The agent saves, and removes what it has saved, many times during each upload."""
    world = Rougher(tmp_path)
    outbox = Outbox(Layout(world.session.local.parent), ORDER, "aaaa", {}, world.clock, part_bytes=PART_BYTES)
    (world.session.local / "blobs").mkdir()
    (world.session.local / "checkpoints").mkdir()

    def commit() -> None:
        step = len(seen)
        saved = tmp_path / f"step-{step}"
        saved.mkdir()
        (saved / "state").write_bytes(f"{step}-".encode() * PART_BYTES)
        seen.append(step)
        outbox.commit(saved)

    def commit_five() -> None:
        for _ in range(5):
            commit()

    seen: list[int] = []
    world.store.seconds = 60.0
    world.store.meanwhile = commit_five
    commit()
    for _ in range(10):
        newest, before = seen[-1], world.steps()
        world.clock.advance(world.driver.ship())
        assert world.steps() == before or world.steps()[-1] == newest
    assert len([word for word in world.words if word.shipped_seconds]) == 10
    assert len(seen) > 100


def test_a_day_has_so_many_bytes_also_if_the_uplink_dies(tmp_path: Path) -> None:
    world = Rougher(tmp_path, pace=Pace(daily_bytes=1.0))
    for step in range(1, 11):
        world.saves(step)
        world.driver = world.restarted()
        world.ships_after(60)
    assert sum(world.store.got) == PARTS * PART_BYTES


def test_a_day_has_so_many_bytes_also_if_uploads_fail(tmp_path: Path) -> None:
    world = Rougher(tmp_path, pace=Pace(daily_bytes=1.0))
    world.store.fails = every(PARTS, Transient("blip"))
    for step in range(1, 21):
        world.saves(step)
        world.ships_after(60)
    assert sum(world.store.got) < PARTS * PART_BYTES
    assert world.ships_after(PARTS * PART_BYTES * 86400.0) == [1]


def test_one_that_starts_again_tells_what_is_there(tmp_path: Path) -> None:
    """The uplink that shipped it may have died before the agent heard of it."""
    world = Rougher(tmp_path)
    for step in (1, 2):
        world.saves(step)
        world.ships_after(60)
    world.words.clear()
    world.driver = world.restarted()
    [word] = world.words
    assert (word.shipped_step, word.shipped_seconds) == (2, None)
