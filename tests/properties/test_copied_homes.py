"""Two homes with one store, copied, put back, killed and started: neither loses what it accepted.

Real ledgers, real stores and the engine's own actions; only the engine's decisions are made here. A
checkpoint that both homes accepted may go by the retention of either: it is the history that they share.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from orchestrator import Client
from orchestrator.client import taking_over
from orchestrator.core.action import Action, Collect, Done, Prepare, Retire
from orchestrator.core.checkpoint import (
    Accepted,
    CheckpointRef,
    FileEntry,
    Manifest,
    Part,
    newest,
    superseded,
)
from orchestrator.core.event import (
    CheckpointAccepted,
    Ended,
    Event,
    Launched,
    Prepared,
    Requeued,
    Retired,
    Started,
    Submitted,
    Withdrawn,
)
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.engine import depositing
from orchestrator.engine.ownership import InCharge
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import Superseded
from orchestrator.home import Folders
from orchestrator.ledger import Ledger, identity
from orchestrator.platforms.simulated import Scenario
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from tests.core.runs import NOW, RUN, assigned, job
from tests.simulation.clock import VirtualClock
from tests.stand_ins.drive import local_drive
from tests.stand_ins.drive.tokens import write_login
from tests.stand_ins.seaweed import ACCESS_KEY, BUCKET, SECRET_KEY, Seaweed
from tests.test_perform import Empty, Unasked


class Interrupted:
    """A store in which something happens just before a manifest is written."""

    def __init__(self, inner: Store, happens: Callable[[], None]) -> None:
        self._inner = inner
        self._happens = happens

    def put(self, key: str, source: Path, sha256: str) -> None:
        if key.endswith("manifest.json"):
            self._happens()
        self._inner.put(key, source, sha256)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class House:
    """A home, and its controller while one runs."""

    def __init__(self, world: Homes, name: str) -> None:
        self.world = world
        self.home = world.folder / name
        self.home.mkdir()
        world.furnish(self.home)
        config = {
            "platforms": {"here": {"type": "process"}},
            "stores": {"disk": dict(world.options)},
            "home_store": "disk",
        }
        (self.home / "config.yaml").write_text(yaml.safe_dump(config))
        self.client = Client(self.home, clock=world.clock)
        self.path = self.home / "ledger.sqlite"
        self.snapshot = self.home / "old.sqlite"
        self.ledger: Ledger | None = None
        self.charge: InCharge | None = None
        self.told: list[str] = []

    # --- What happens to it -----------------------------------------------------------------------------

    def up(self) -> None:
        if self.charge is not None or not self.path.exists():
            return
        self.ledger = Ledger.open(f"sqlite:///{self.path}")
        here = taking_over.here(self.client.home, self.ledger)
        self.store = self.client.wired().store("disk")
        self.charge = InCharge(self.ledger, {"disk": self.store}, here, self.world.clock, self.told.append)
        if self.is_stopped():
            assert "Nothing is started" in self.told[-1] or "put back" in self.told[-1]
            if self.charge.catches_up:
                taking_over.take(self.client, self.ledger, {"disk"}, why="put back")
                self.world.check_newest(self)
                self.down()
                self.up()

    def is_stopped(self) -> bool:
        """Whether its controller does nothing any more, after a look at the store."""
        assert self.charge is not None
        try:
            self.charge.check("disk")
        except Superseded:
            return True
        return False

    def down(self, *, killed: bool = False) -> None:
        if self.ledger is None or self.charge is None:
            return
        if not killed and not self.charge.elsewhere("disk"):
            identity.change(self.ledger, running=False)
        self.ledger.close()
        self.ledger = self.charge = None

    def copy_to(self, other: House) -> None:
        """While its controller runs, or not."""
        if self.path.exists():
            other.down(killed=True)
            _copied(self.path, other.path)
            other.snapshot.unlink(missing_ok=True)

    def remember(self) -> None:
        if self.path.exists():
            _copied(self.path, self.snapshot)

    def put_back(self) -> None:
        if self.snapshot.exists():
            self.down()
            _copied(self.snapshot, self.path)

    def take_over(self) -> None:
        if not self.path.exists():
            return
        self.down()
        with Ledger.open(f"sqlite:///{self.path}") as ledger:
            taking_over.take(self.client, ledger, {"disk"})
        self.world.check_newest(self)
        self.up()
        other = self.world.other(self)
        if other.charge is not None:
            assert other.is_stopped(), "both go on"

    # --- What its controller does -----------------------------------------------------------------------

    def work(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        """One more checkpoint, in a session that is begun if there is none."""
        self.up()
        if self.ledger is None or self.charge is None or self.charge.elsewhere("disk"):
            return
        record = self.ledger.record(RUN)
        if record.phase is Phase.QUEUED:
            record = self._begin(record)
        if record.phase is not Phase.RUNNING or record.session is None:
            return
        session, at = record.session, newest(record.accepted)
        step = max(at.ref.step if at else 0, session.order.resume_step) + 1
        assert session.incarnation is not None
        into = Folders(self.home).collected(RUN, session.name)
        bring(into, CheckpointRef(step, session.generation, session.incarnation))
        known = frozenset(each.name for each in record.stored)
        collect = Collect(RUN, session.name, "here", session.generation, session.incarnation, known,
                          last=False, store="disk", adoptions=record.adoptions)  # fmt: skip
        report = self._perform(collect, Interrupted(self.store, meanwhile))
        if self.ledger is None or not isinstance(report, Done):
            return
        record = self._append(record, *(CheckpointAccepted(NOW, each) for each in report.checkpoints))
        old = superseded(record.accepted, last=1, best=None, pinned=frozenset())
        if old:
            self.world.retired.update(each.name for each in old)
            record = self._append(record, Retired(NOW, tuple(each.name for each in old)))
            keep = frozenset(each.name for each in record.stored)
            self._perform(Retire(RUN, keep, record.generation, "disk", record.adoptions), self.store)

    def deposit(self) -> None:
        if self.ledger is not None and self.charge is not None and not self.charge.elsewhere("disk"):
            try:
                self.charge.check("disk")
                depositing.deposit(self.store, "disk", self.ledger.record(RUN), Folders(self.home))
            except Superseded:
                return

    def hop(self) -> None:
        """Its session ends, and what nobody needs of it goes."""
        if self.ledger is None or self.charge is None or self.charge.elsewhere("disk"):
            return
        record = self.ledger.record(RUN)
        if record.phase is Phase.RUNNING:
            ends = Ended(NOW, Outcome.STOPPED, "", confirmed=True)
            record = self._append(record, ends, Requeued(NOW, "", 0))
            keep = frozenset(each.name for each in record.stored)
            self._perform(Retire(RUN, keep, record.generation, "disk", record.adoptions), self.store)

    def _begin(self, record: RunRecord) -> RunRecord:
        best = newest(record.accepted)
        event = assigned(record.generation + 1, best)
        record = self._append(record, event)
        prepare = Prepare(event.order, frozenset(c.name for c in record.accepted), frozenset(record.dropped),
                          "disk", adoptions=record.adoptions)  # fmt: skip
        if not isinstance(self._perform(prepare, self.store), Done):
            return self._append(record, Withdrawn(NOW, "it could not be prepared"))
        self.world.check_start(best)
        self.world.incarnations += 1
        events = Prepared(NOW), Launched(NOW), Started(NOW, f"{self.world.incarnations:016x}")
        return self._append(record, *events)

    def _perform(self, action: Action, store: Any) -> object:
        assert self.charge is not None
        kind = Empty if isinstance(action, Collect) else Unasked
        backends = Backends({"here": kind("here", Scenario(), VirtualClock())}, {"disk": store}, "disk",
                            Folders(self.home), str, ownership=self.charge)  # fmt: skip
        return perform(action, backends)

    def _append(self, record: RunRecord, *events: Event) -> RunRecord:
        assert self.ledger is not None
        return self.ledger.append(record, events, due_at=None) if events else record

    def accepted(self) -> tuple[Accepted, ...]:
        if self.ledger is not None:
            return self.ledger.record(RUN).accepted
        if not self.path.exists():
            return ()
        with Ledger.open(f"sqlite:///{self.path}") as ledger:
            return ledger.record(RUN).accepted


class Homes:
    """Two homes that share a store; the first one has a run."""

    def __init__(self, folder: Path, options: dict[str, object], furnish: Callable[[Path], object]) -> None:
        self.folder, self.options, self.furnish = folder, options, furnish
        self.clock = VirtualClock(NOW)
        self.incarnations = 0
        self.retired: set[str] = set()  # by a home that had accepted them
        self.houses = (House(self, "one"), House(self, "two"))
        with Ledger.open(f"sqlite:///{self.houses[0].path}") as ledger:
            ledger.submit(Submitted(RUN, job(), NOW, store="disk"))
        self.store = self.houses[0].client.wired().store("disk")

    def other(self, house: House) -> House:
        return self.houses[house is self.houses[0]]

    def play(self, moves: list[tuple[str, int]]) -> None:
        for name, number in moves:
            house, other = self.houses[number], self.houses[1 - number]
            match name:
                case "copy":
                    house.copy_to(other)
                case "kill":
                    house.down(killed=True)
                case "work while the other takes over":
                    house.work(other.take_over)
                case "work while the other starts":
                    house.work(other.up)
                case _:
                    getattr(house, name)()
            self.check()

    def check(self) -> None:
        """What a home accepted is whole, unless a home that accepted it, too, has retired it."""
        for house in self.houses:
            for each in house.accepted():
                if each.name not in self.retired:
                    assert stored.verify(self.store, RUN, each.name, each.sha256), "or it raises"
        if self.store.registers is not None:
            self.check_one_goes_on()

    def check_one_goes_on(self) -> None:
        """If both run, one of them waits, and both have been told of the other."""
        if all(house.charge is not None for house in self.houses):
            waiting = [house for house in self.houses if house.is_stopped()]
            assert waiting, "both go on"
            for house in waiting:
                other = self.other(house)
                assert str(house.home) in "".join(other.told) or str(other.home) in "".join(house.told)

    def check_start(self, best: Accepted | None) -> None:
        there = [ref.step for ref in stored.names(self.store, RUN)]
        assert best is not None or not there, f"a session begins at 0 although the store has {there}"

    def check_newest(self, house: House) -> None:
        """After it took over."""
        there = [ref.step for ref in stored.names(self.store, RUN)]
        steps = [each.ref.step for each in house.accepted()]
        assert max(steps, default=0) == max(there, default=0)

    def close(self) -> None:
        for house in self.houses:
            house.down()


def bring(into: Path, ref: CheckpointRef) -> None:
    """A checkpoint as `collect` would have left it: its bytes depend on its session, so no two are alike."""
    data = ref.name.encode()
    sha256 = hashlib.sha256(data).hexdigest()
    file = FileEntry("state", len(data), (Part(sha256, len(data)),))
    manifest = Manifest(RUN, ref, 16, (file,))
    for path, content in (
        (into / "blobs" / sha256, data),
        (into / "checkpoints" / manifest.name / "manifest.json", manifest.encode()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _copied(source: Path, target: Path) -> None:
    """As `cp` of the whole home would do, whoever has the ledger open."""
    for path in target.parent.glob(f"{target.name}-*"):
        path.unlink()
    with sqlite3.connect(source) as one:
        data = one.serialize()
    one.close()
    target.write_bytes(data)


MOVES = st.lists(
    st.tuples(
        st.sampled_from((
            "up", "work", "work", "work", "hop", "deposit", "deposit", "down", "kill", "copy", "remember",
            "put_back", "take_over", "work while the other takes over", "work while the other starts",
        )),
        st.integers(0, 1),
    ),
    min_size=3,
    max_size=15,
)  # fmt: skip
SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True, print_blob=True
)


def played(
    moves: list[tuple[str, int]], options: dict[str, object], furnish: Callable[[Path], object]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = Homes(Path(folder), options, furnish)
        try:
            world.play(moves)
        finally:
            world.close()


def in_a_folder(moves: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        played(moves, {"type": "folder", "path": folder}, lambda _home: None)


STORE_SAID_NOTHING_OF_IT = [("work", 0), ("copy", 0), ("work", 0), ("up", 1), ("take_over", 1)]
COPIED_WHILE_IT_RAN = [("work", 0), ("copy", 0), ("work", 0), ("take_over", 1), ("work", 1), ("work", 0)]
COPIED_BEFORE_IT_RAN = [("copy", 0), ("work", 0), ("work while the other takes over", 0), ("work", 1)]
REWOUND = [("work", 0), ("remember", 0), ("work", 0), ("deposit", 0), ("put_back", 0), ("work", 0)]
BOTH_GO_ON = [("work", 0), ("hop", 0), ("copy", 0), ("work", 0), ("hop", 0), ("work", 1), ("hop", 1)]


@example(STORE_SAID_NOTHING_OF_IT)
@example(COPIED_WHILE_IT_RAN)
@example(COPIED_BEFORE_IT_RAN)
@example(REWOUND)
@example(BOTH_GO_ON)
@settings(SETTINGS, max_examples=15)
@given(MOVES)
def test_neither_home_loses_what_it_accepted(moves: list[tuple[str, int]]) -> None:
    in_a_folder(moves)
    assert moves


@pytest.mark.soak
@settings(SETTINGS, max_examples=5000, derandomize=False)
@given(MOVES)
def test_neither_home_loses_what_it_accepted_for_long(moves: list[tuple[str, int]]) -> None:
    in_a_folder(moves)
    assert moves


def test_the_same_in_a_bucket(seaweedfs: Seaweed) -> None:
    def furnish(home: Path) -> None:
        (home / "secret").write_text(f"{SECRET_KEY}\n", "utf-8")
        (home / "access").write_text(ACCESS_KEY, "utf-8")

    @example(REWOUND)
    @example(BOTH_GO_ON)
    @settings(SETTINGS, max_examples=2)
    @given(MOVES)
    def play(moves: list[tuple[str, int]]) -> None:
        played(moves, {
            "type": "s3", "preset": "seaweedfs", "endpoint": seaweedfs.endpoint, "bucket": BUCKET,
            "access_key": "file:access", "secret_key": "file:secret", "prefix": seaweedfs.prefix(),
        }, furnish)  # fmt: skip

    assert play() is None


def test_the_same_in_a_drive() -> None:
    @example(REWOUND)
    @example(BOTH_GO_ON)
    @settings(SETTINGS, max_examples=2)
    @given(MOVES)
    def play(moves: list[tuple[str, int]]) -> None:
        with local_drive() as drive:
            played(moves, {"type": "drive", "folder": drive.disk.folder, "endpoint": drive.url},
                   lambda home: write_login(home / "drive-credentials.json", drive.url))  # fmt: skip

    assert play() is None
