"""A store that lost or altered something, or a home restored from an old copy: no run is lost."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.event import Assigned, CheckpointCorrupt, Wished
from orchestrator.core.job import CheckpointPolicy, Keep, Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Order
from orchestrator.home import Folders
from orchestrator.platforms.simulated import expected_state
from orchestrator.stores import checkpoints as stored
from tests.test_engine import DeafWorkers, FlakyLedger, Small, scenario

RUN = "first"
WORK = Work(total=3600, global_batch=16)  # about 12 minutes, in sessions of 4


class Lasting(Small):
    """A world whose store and platforms outlive the home. The home can be copied and restored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        [offer] = scenario().offers
        short = replace(offer, session_seconds=240.0, slots=2)
        super().__init__(folder, box=scenario(offers=(short,)))

    def copy_home(self) -> None:
        self.folders.home.mkdir(exist_ok=True)
        shutil.copytree(self.folders.home, self.folder / "copy")
        with (
            closing(sqlite3.connect(self.folder / "ledger.sqlite")) as source,
            closing(sqlite3.connect(self.folder / "copy.sqlite")) as target,
        ):
            source.backup(target)

    def put_back(self) -> None:
        """Kills the controller, restores the copy of the home, and starts a controller there."""
        self.workers.crash()
        self.ledger.close()
        self.workers = DeafWorkers(self.clock, Random(2), 0.0)
        self.folders = Folders(self.folder / "copy")
        self.ledger = FlakyLedger.open(f"sqlite:///{self.folder / 'copy.sqlite'}")
        self.up(tuple(self.platforms))

    def forget(self, checkpoint: Accepted) -> None:
        self.store.delete(f"runs/{RUN}/checkpoints/{checkpoint.name}/manifest.json")

    def ordered(self) -> list[Order]:
        return [item.event.order for item in self.ledger.history(RUN) if isinstance(item.event, Assigned)]

    def wish(self, wish: Wish) -> None:
        self.ledger.wish(RUN, Wished(self.clock.now(), wish))

    def check_result(self) -> None:
        """Checks that the run is done with the result of an uninterrupted training."""
        assert self.until(self.phase(RUN, Phase.DONE), seconds=4 * 3600.0), self.record(RUN)
        last = newest(self.record(RUN).accepted)
        assert last is not None
        into = self.folder / "result"
        manifest = stored.fetch(self.stores["home"], RUN, last.name, into / "parts", last.sha256)
        stored.restore(into / "parts", [manifest], into / "checkpoint")
        state = (into / "checkpoint" / "state.json").read_bytes()
        assert state == expected_state(self.ordered()[0], WORK.total)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Lasting]:
    made = Lasting(tmp_path)
    yield made
    made.ledger.close()


def running(world: Lasting, generation: int, checkpoints: int) -> Callable[[], bool]:
    def reached() -> bool:
        record = world.record(RUN)
        mine = [c for c in record.accepted if c.ref.generation == generation]
        return record.phase is Phase.RUNNING and len(mine) >= checkpoints

    return reached


def submit(world: Lasting, keep: int) -> None:
    world.submit(RUN, work=WORK, checkpoint=CheckpointPolicy(keep=Keep(last=keep)))


def hold(world: Lasting) -> list[Accepted]:
    """Holds the run with three checkpoints; returns them, oldest first."""
    submit(world, keep=3)
    assert world.until(running(world, 1, 3))
    world.wish(Wish.HOLD)
    assert world.until(world.phase(RUN, Phase.HELD))
    return sorted(world.record(RUN).accepted, key=lambda c: c.ref.step)


def test_checkpoints_that_are_gone_cost_those_and_the_run_goes_on(world: Lasting) -> None:
    before, *gone = hold(world)
    for each in gone:
        world.forget(each)
    world.wish(Wish.RELEASE)
    world.check_result()
    notes = world.record(RUN).notes
    events = [item.event for item in world.ledger.history(RUN)]
    told = {event.name: event.reason for event in events if isinstance(event, CheckpointCorrupt)}
    assert set(told) == {each.name for each in gone}
    assert set(told.values()) == {"it is gone from the home store"}
    assert any(f"falling back to step {before.ref.step}" in note for note in notes)


def test_an_empty_store_holds_the_run_until_its_disk_is_back(world: Lasting) -> None:
    newer = hold(world)[-1]
    there, world.store._objects = world.store._objects, {}
    world.wish(Wish.RELEASE)
    assert world.until(lambda: "is its disk there?" in world.record(RUN).reason)
    assert world.record(RUN).phase is Phase.HELD
    world.store._objects = there
    world.wish(Wish.RELEASE)
    world.check_result()
    assert world.ordered()[-1].resume_step >= newer.ref.step, "nothing was forgotten meanwhile"


def test_a_run_whose_every_checkpoint_is_gone_is_held_once(world: Lasting) -> None:
    """Other runs' checkpoints are there: an empty store is no longer empty once another run wrote there."""
    other = world.folders.home / "other"
    other.parent.mkdir(parents=True, exist_ok=True)
    other.write_bytes(b"of another run")
    world.store.put("runs/other/blobs/g01-aaaa/x", other, hashlib.sha256(b"of another run").hexdigest())
    for each in hold(world):
        world.forget(each)
    world.wish(Wish.RELEASE)
    assert world.until(lambda: "the store has none of the run's checkpoints" in world.record(RUN).reason)
    assert world.record(RUN).phase is Phase.HELD
    world.wish(Wish.RELEASE)
    world.check_result()
    assert any("starts over from step 0" in note for note in world.record(RUN).notes)


def test_a_run_whose_every_checkpoint_is_rotten_starts_over(world: Lasting) -> None:
    """The manifests are all there. This ledger knows which checkpoints have just failed."""
    for each in hold(world):
        manifest = stored.read(world.store, RUN, each.name)
        lineage = f"g{each.ref.generation:02d}-{each.ref.incarnation}"
        for sha256 in manifest.blobs():
            world.store._objects[f"runs/{RUN}/blobs/{lineage}/{sha256}"] = b"rotten"
    world.wish(Wish.RELEASE)
    world.check_result()
    assert any("starts over from step 0" in note for note in world.record(RUN).notes)
    assert "old copy" not in " ".join(world.record(RUN).notes)


def test_a_store_that_stays_empty_lets_a_released_run_start_over(world: Lasting) -> None:
    hold(world)
    world.store._objects = {}
    world.wish(Wish.RELEASE)
    assert world.until(lambda: "starts over from step 0" in world.record(RUN).reason)
    world.wish(Wish.RELEASE)
    world.check_result()
    assert any("starts over from step 0" in note for note in world.record(RUN).notes)


def test_a_home_restored_from_an_old_copy_goes_on_from_the_newest_it_accepted(world: Lasting) -> None:
    """The names it would use next are taken: by sessions of the lost time, and by their checkpoints in the
    store."""
    submit(world, keep=100)
    assert world.until(running(world, 1, 2))
    world.copy_home()
    known = newest(world.record(RUN).accepted)
    assert known is not None
    assert world.until(running(world, 3, 2))
    world.put_back()
    world.check_result()
    second = world.ordered()[1]
    assert second.resume_step >= known.ref.step
    notes = " ".join(world.record(RUN).notes)
    assert "was an old copy of the home restored?" in notes


def test_where_the_lost_time_has_retired_all_of_them_the_run_never_starts_over(world: Lasting) -> None:
    submit(world, keep=1)
    assert world.until(running(world, 1, 1))
    world.copy_home()
    assert world.until(running(world, 3, 1))
    lost = newest(world.record(RUN).accepted)
    assert lost is not None
    world.put_back()
    assert world.until(world.phase(RUN, Phase.HELD))
    assert lost.name in world.record(RUN).reason
    world.wish(Wish.RELEASE)
    before = world.record(RUN).version
    assert world.until(lambda: world.record(RUN).version > before and world.record(RUN).phase is Phase.HELD)
    assert "`orchestrator adopt --take-over`" in world.record(RUN).reason
    assert all(order.resume_step for order in world.ordered()[1:])
