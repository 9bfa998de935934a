"""Shipped checkpoints are accepted where they lie: what is read, what is waited for, what may be deleted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core import bounds, wire
from orchestrator.core.action import Collect, Done, Failed, Prepare, Retire, Trouble
from orchestrator.core.job import Best, Keep
from orchestrator.core.offer import Uplink as Kind
from orchestrator.core.order import AgentStatus
from orchestrator.engine.perform import perform
from orchestrator.errors import Rejected
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.faulty import FaultRates, FaultyStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Stat
from orchestrator.uplink import registers
from orchestrator.uplink.accepting import LOOKS_MIN
from orchestrator.uplink.registers import raise_fence
from tests.core.runs import RUN, assigned
from tests.test_uplink import KEYS, ORDER, STATE, Session
from tests.test_uplink_engine import Engine

COLLECT = Collect(
    RUN, ORDER.session, "here", 1, "aaaa", frozenset(), last=False, store="home", uplink=Kind.STORE
)


class Counting(MemoryStore):
    """Counts what is asked of it, by the kind of key; blobs can be hidden, listings can be empty."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[str] = Counter()
        self.hidden: set[str] = set()
        self.lists_nothing = False

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self.asked[f"get {key.split('/')[2]}"] += 1
        super().get(key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        return None if key in self.hidden else super().stat(key)

    def list(self, prefix: str) -> Iterator[Stat]:
        self.asked["list"] += 1
        found = [each for each in super().list(prefix) if each.key not in self.hidden]
        yield from [] if self.lists_nothing else found


@pytest.fixture
def store() -> Counting:
    made = Counting()
    raise_fence(made, RUN, 1)
    return made


@pytest.fixture
def session(tmp_path: Path, store: Counting) -> Session:
    return Session(tmp_path, store)


@pytest.fixture
def engine(tmp_path: Path, store: Counting) -> Engine:
    return Engine(tmp_path, store)


def looks(engine: Engine, **changes: object) -> Done:
    report = perform(replace(COLLECT, **changes), engine.backends)  # type: ignore[arg-type]
    assert isinstance(report, Done), report
    return report


def blob_of(store: MemoryStore) -> str:
    [key] = [stat.key for stat in MemoryStore.list(store, f"runs/{RUN}/blobs/")]
    return key


def steps(report: Done) -> list[int]:
    return [each.ref.step for each in report.checkpoints]


# --- What is read ---------------------------------------------------------------------------------------


def test_no_blob_is_fetched(session: Session, engine: Engine, store: Counting) -> None:
    made = session.saves(1)
    session.ships()
    store.asked.clear()
    report = looks(engine)
    assert [each.sha256 for each in report.checkpoints] == [made.sha256], "its manifest is journalled"
    assert store.asked["get checkpoints"] == 1
    assert store.asked["get blobs"] == 0
    assert not list((engine.backends.folders.collected(RUN, ORDER.session)).glob("blobs/*"))


def test_what_is_known_costs_no_request(session: Session, engine: Engine, store: Counting) -> None:
    names = {session.saves(step).name for step in (1, 2)}
    session.ships()
    store.asked.clear()
    looks(engine, known=frozenset(names), kept=frozenset(names))
    assert store.asked["get checkpoints"] == 0


def test_a_checkpoint_that_was_damaged_since_falls_back_to_the_one_before(
    session: Session, engine: Engine, store: Counting
) -> None:
    made = [session.saves(step) for step in (1, 2)]
    session.ships()
    taken = looks(engine).checkpoints
    [sha256] = made[1].blobs()
    store._objects[f"runs/{RUN}/blobs/g01-aaaa/{sha256}"] = b"X"
    order = replace(assigned(2, taken[1]).order, platform="here", resume_sha256=made[1].sha256)
    names = frozenset(each.name for each in taken)
    failed = perform(Prepare(order, names, store="home", uplink=Kind.STORE), engine.backends)
    assert isinstance(failed, Failed)
    assert (failed.trouble, failed.left) == (Trouble.CORRUPT, (made[0].name,))


def test_a_manifest_that_is_not_the_shipped_one_is_not_accepted(
    session: Session, engine: Engine, store: Counting
) -> None:
    """Somebody who can write to the store replaces a checkpoint before the controller sees it."""
    made = session.saves(1)
    session.ships()
    session.uplink.beat()
    forged = replace(made, global_batch=99)
    store._objects[stored.manifest_key(RUN, made.name)] = forged.encode()
    for tries in range(bounds.CHECKPOINT_TRIES_MAX + 1):
        report = looks(engine)
        assert report.checkpoints == ()
        assert bool(report.corrupt) == (tries < bounds.CHECKPOINT_TRIES_MAX), "it is not read for ever"
    assert store.stat(stored.manifest_key(RUN, made.name)) is not None, "nothing is deleted because of that"


# --- What is late ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", ["missing", "of another size"])
def test_a_checkpoint_without_its_blobs_is_waited_for(
    shown: str, session: Session, engine: Engine, store: Counting
) -> None:
    made = session.saves(1)
    session.ships()
    key = blob_of(store)
    whole = store._objects[key]
    if shown == "missing":
        store.hidden = {key}
    else:
        store._objects[key] = b"much longer"
    for look in range(1, LOOKS_MIN + 2):
        report = looks(engine)
        assert (report.checkpoints, report.corrupt, report.more) == ((), (), False)
        [(name, reason)] = report.late
        assert (name, shown in reason) == (made.name, True)
        assert bool(report.notes) == (look >= LOOKS_MIN), "a person hears of it only if it stays so"
    assert key in store._objects, "nothing is deleted because of that"
    store.hidden, store._objects[key] = set(), whole
    assert steps(looks(engine)) == [1]


def test_what_is_never_complete_does_not_keep_the_others_waiting(
    session: Session, engine: Engine, store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "COLLECT_CHECKPOINTS_MAX", 2)
    for step in (1, 2, 3):
        session.saves(step)
    session.ships(2)
    store.hidden = {stat.key for stat in store.list(f"runs/{RUN}/blobs/")}
    assert [looks(engine).more for _ in range(3)] == [True, False, False]
    session.saves(4)
    session.ships()
    assert steps(looks(engine)) == [4]


def test_the_last_publications_are_found_though_listings_are_late(
    session: Session, engine: Engine, store: Counting
) -> None:
    for step in (1, 2, 3):
        session.saves(step)
    session.ships()
    session.uplink.beat()
    store.lists_nothing = True
    assert steps(looks(engine)) == [1, 2, 3]


def test_the_newest_one_that_a_heartbeat_names_is_waited_for(
    session: Session, engine: Engine, store: Counting
) -> None:
    """Its put was acknowledged and lost. An older one that is missing was deleted by its uplink."""
    older, newest = (session.saves(step) for step in (1, 2))
    session.ships()
    session.uplink.beat()
    store.delete(stored.manifest_key(RUN, older.name))
    store.delete(stored.manifest_key(RUN, newest.name))
    assert looks(engine, last=True).late == ((newest.name, "its manifest is missing"),)


def test_a_heartbeat_fits_into_its_register(tmp_path: Path, store: Counting) -> None:
    session = Session(tmp_path, store, replace(ORDER, keep=Keep(last=100)))
    for step in range(1, 30):
        session.saves(step)
    session.ships()
    loud = tuple(f"{number}" * 20_000 for number in range(8))
    session.says(replace(STATE, warnings=loud[:3]))
    session.uplink.beat()
    held = store.registers.read(KEYS.heartbeat)
    assert held is not None
    assert len(held.value) <= bounds.REGISTER_BYTES_MAX
    beats = registers.heartbeat(store, KEYS)
    assert beats is not None
    assert [int(each.name[:10]) for each in beats.published] == list(range(22, 30))


def test_a_heartbeat_of_an_older_version_is_read(store: Counting, engine: Engine, session: Session) -> None:
    made = session.saves(1)
    session.ships()
    older = {"status": wire.to_json(replace(STATE, checkpoint=made.name, checkpoint_step=1)), "result": None}
    store.registers.swap(KEYS.heartbeat, wire.encode(older), None)
    store.lists_nothing = True
    assert steps(looks(engine)) == [1]


# --- What the uplink deletes ----------------------------------------------------------------------------


def kept(store: MemoryStore) -> list[int]:
    return [ref.step for ref in stored.names(store, RUN)]


@pytest.fixture
def keeping(tmp_path: Path, store: Counting) -> Session:
    order = replace(ORDER, keep=Keep(last=1, best=Best("loss", "min")))
    return Session(tmp_path / "keeping", store, order)


def test_the_uplink_deletes_what_it_has_superseded(keeping: Session, store: Counting) -> None:
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, 2.0), (5, 2.0)):
        keeping.saves(step, metrics={"loss": loss})
        keeping.ships()
    assert kept(store) == [2, 4, 5], "the best, and the newest two: a reader may be fetching one"
    assert len(list(store.list(f"runs/{RUN}/blobs/"))) == 3
    keeping.uplink.beat()
    beats = registers.heartbeat(store, KEYS)
    assert beats is not None
    assert [int(each.name[:10]) for each in beats.published] == [2, 4, 5]


def test_the_uplink_deletes_nothing_that_the_engine_relies_on(
    keeping: Session, engine: Engine, store: Counting
) -> None:
    made = keeping.saves(1, metrics={"loss": 9.0})
    keeping.ships()
    looks(engine)
    for step in (2, 3, 4):  # the controller is away: nothing of this is accepted
        keeping.saves(step, metrics={"loss": float(step)})
        keeping.ships()
    assert kept(store) == [1, 2, 3, 4]
    report = looks(engine, known=frozenset({made.name}), kept=frozenset({made.name}))
    assert steps(report) == [2, 3, 4]
    keeping.saves(5, metrics={"loss": 5.0})
    keeping.ships()
    names = frozenset(each.name for each in report.checkpoints)
    assert steps(looks(engine, known=names | {made.name}, kept=names | {made.name})) == [5]
    keeping.saves(6, metrics={"loss": 6.0})
    keeping.ships()
    assert kept(store) == [2, 4, 5, 6]


def test_the_uplink_deletes_blobs_though_it_cannot_read_the_store(keeping: Session, store: Counting) -> None:
    """As in an encrypted store, for which a session has no key."""
    for step in (1, 2, 3):
        keeping.saves(step, metrics={"loss": 1.0 / step})
        keeping.ships()
    store.asked.clear()
    for step in (4, 5):
        keeping.saves(step, metrics={"loss": 1.0 / step})
        keeping.ships()
    assert store.asked["get checkpoints"] <= 2, "only the look before each put of a manifest"
    assert len(list(store.list(f"runs/{RUN}/blobs/"))) == len(kept(store)) == 2


def test_pins_that_cannot_be_read_keep_everything(keeping: Session, store: Counting) -> None:
    store.registers.swap(KEYS.pins, b"{", None)
    for step in (1, 2, 3):
        keeping.saves(step)
    with pytest.raises(Rejected, match="is deleted"):
        keeping.ships()
    assert kept(store) == [1, 2, 3]


def test_pins_are_written_only_if_some_are_missing(store: Counting) -> None:
    registers.pin(store, KEYS, {"a"})
    registers.pin(store, KEYS, {"b", "c"})
    registers.pin(store, KEYS, {"b"})
    assert registers.pinned(store, KEYS) == {"b", "c"}


def test_an_older_generation_is_left_to_the_engine(
    keeping: Session, session: Session, tmp_path: Path, store: Counting
) -> None:
    """A listing that is late must not cost an accepted checkpoint of another session its blobs."""
    parent = session.saves(1)
    session.ships()
    raise_fence(store, RUN, 2)
    order = replace(keeping.order, session=f"{RUN}-s02", generation=2)
    later = Session(tmp_path / "later", store, order, "bbbb")
    store.hidden = {stored.manifest_key(RUN, parent.name)}
    for step in (2, 3, 4):
        later.saves(step)
        later.ships()
    store.hidden = set()
    assert kept(store) == [1, 3, 4]
    assert stored.verify(store, RUN, parent.name) == parent


def test_what_its_uplink_has_deleted_is_reported_as_gone(
    keeping: Session, engine: Engine, store: Counting
) -> None:
    names = frozenset(keeping.saves(step, metrics={"loss": 1.0}).name for step in (1, 2, 3))
    keeping.ships()
    store.delete(stored.manifest_key(RUN, min(names)))
    store.hidden = {stored.manifest_key(RUN, max(names))}  # only late
    assert looks(engine, known=names, kept=names).gone == (min(names),)


def test_what_is_incomplete_is_not_deleted_until_the_run_is_past_it(
    session: Session, engine: Engine, store: Counting
) -> None:
    made = [session.saves(step) for step in (1, 2, 3)]
    session.ships()
    perform(Retire(RUN, frozenset({made[1].name}), 1, "home"), engine.backends)
    assert kept(store) == [2, 3]


def test_pins_go_with_the_rest_of_a_session(session: Session, engine: Engine, store: Counting) -> None:
    session.saves(1)
    session.ships()
    looks(engine)
    assert registers.pinned(store, KEYS)
    engine.discards()
    assert store.registers.read(KEYS.pins) is None


def test_a_store_with_faults_brings_every_checkpoint_in_the_end(tmp_path: Path, store: Counting) -> None:
    session = Session(tmp_path, store, replace(ORDER, keep=Keep(last=100)))
    made = [session.saves(step) for step in range(1, 20)]
    session.ships()
    rates = FaultRates(fails=0.05, loses_reply=0.05, tears=0.05)
    faulty = FaultyStore(store, rates, Random(5), now=lambda: 0.0, wait=lambda _seconds: None)
    engine, found = Engine(tmp_path, faulty), set[str]()
    for _ in range(40):
        action = replace(COLLECT, known=frozenset(found))
        report = perform(action, engine.backends)
        if isinstance(report, Done):
            found |= {each.name for each in report.checkpoints}
    assert found == {each.name for each in made}


def test_a_status_of_a_strange_agent_names_nothing(store: Counting, engine: Engine, session: Session) -> None:
    session.ships()
    odd = AgentStatus("aaaa", 1, 1.0, "training", checkpoint="../../etc/passwd")
    named = (registers.Published("no name", "0"), registers.Published("0000000009-g07-aaaa", "0"))
    registers.beat(store, KEYS, registers.Heartbeat(odd, published=named))
    report = looks(engine)
    assert (report.checkpoints, report.corrupt, report.late) == ((), (), ())
