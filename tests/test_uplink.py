"""A session's outbox in its run's home store: who may publish there, what arrives, what the engine reads."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.core import bounds, wire
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.order import AgentStatus, Order, Outcome, Result
from orchestrator.core.session import Observation, Sighting
from orchestrator.engine.readings import observation
from orchestrator.errors import Conflict, Superseded, Transient
from orchestrator.files import Odd
from orchestrator.platforms.platform import Sight
from orchestrator.session.layout import LOG, RESULT, STATUS
from orchestrator.session.outbox import Collected, FolderOutbox, collect
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.faulty import FaultRates, FaultyStore
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from orchestrator.uplink import registers
from orchestrator.uplink.layout import SessionKeys, fence_key
from orchestrator.uplink.outbox import StoreOutbox
from orchestrator.uplink.registers import check_fence, raise_fence
from orchestrator.uplink.shipping import Uplink
from tests.core.runs import RUN, assigned

ORDER = replace(assigned().order, platform="here")
KEYS = SessionKeys(RUN, ORDER.session)
STATE = AgentStatus("aaaa", 1, 1.0, "training")


class Session:
    """An agent's outbox in a folder, and its uplink to a store."""

    def __init__(self, folder: Path, store: Store, order: Order = ORDER, incarnation: str = "aaaa") -> None:
        self.store = store
        self.order = order
        self.incarnation = incarnation
        self.local = folder / incarnation / "outbox"
        self.local.mkdir(parents=True)
        self.says(STATE)
        self.uplink = self.restarted("scratch")

    def restarted(self, scratch: str) -> Uplink:
        folder = self.local.parent / scratch
        return Uplink(self.store, self.order, self.incarnation, FolderOutbox(self.local, links=True), folder)

    def says(self, status: AgentStatus) -> None:
        (self.local / STATUS).write_bytes(wire.encode(replace(status, incarnation=self.incarnation)))

    def logs(self, text: str, segment: int = 1) -> None:
        (self.local / LOG).mkdir(exist_ok=True)
        with (self.local / LOG / f"{segment:06d}.log").open("a") as file:
            file.write(text)

    def saves(self, step: int, **changes: object) -> Manifest:
        data = f"{step}".encode()
        sha256 = hashlib.sha256(data).hexdigest()
        files = (FileEntry("state", len(data), (Part(sha256, len(data)),)),)
        ref = CheckpointRef(step, self.order.generation, self.incarnation)
        manifest = replace(Manifest(RUN, ref, 16, files), **changes)  # type: ignore[arg-type]
        for path, content in (
            (self.local / "blobs" / sha256, data),
            (self.local / "checkpoints" / manifest.name / "manifest.json", manifest.encode()),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return manifest

    def ends(self) -> None:
        result = Result(self.incarnation, Outcome.COMPLETED, 0, 2, "all steps done")
        (self.local / RESULT).write_bytes(wire.encode(result))

    def ships(self, rounds: int = 1) -> None:
        for _ in range(rounds):
            for _step in self.uplink.ship():
                pass
            if not self.uplink.done:
                self.uplink.retire()


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    raise_fence(made, RUN, 1)
    return made


@pytest.fixture
def session(tmp_path: Path, store: MemoryStore) -> Session:
    return Session(tmp_path, store)


def read(store: Store) -> StoreOutbox:
    return StoreOutbox(store, RUN, ORDER.session, 1)


def seen(store: Store, sighting: Sighting = Sighting.RUNNING) -> Observation:
    return observation(Sight(sighting), read(store))


def brought(store: Store, into: Path) -> Collected:
    into.mkdir(exist_ok=True)
    return collect(read(store), into)


# --- Who may publish ------------------------------------------------------------------------------------


def test_the_first_of_two_agents_publishes_and_the_other_leaves(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    twin = Session(tmp_path, store, incarnation="bbbb")
    twin.saves(1)
    session.ships()
    for act in (twin.ships, twin.uplink.beat):
        with pytest.raises(Superseded):
            act()
    session.saves(2)
    session.ships()
    assert [ref.incarnation for ref in stored.names(store, RUN)] == ["aaaa"]


def test_a_claim_whose_reply_was_lost_is_known_again(session: Session, store: MemoryStore) -> None:
    session.store = FaultyStore(
        store, FaultRates(loses_reply=0.4), Random(1), now=lambda: 0.0, wait=lambda _seconds: None
    )
    session.uplink = session.restarted("other")
    lost = 0
    while read(store).small(STATUS) is None:
        try:
            session.uplink.beat()
        except Transient:
            lost += 1
    assert lost > 0
    assert registers.claimant(store, KEYS) == "aaaa"


def test_nothing_is_published_without_a_fence_or_above_it(tmp_path: Path) -> None:
    empty = MemoryStore()
    early = Session(tmp_path, empty)
    early.saves(1)
    with pytest.raises(Transient, match="is its disk there"):
        early.ships()
    raise_fence(empty, RUN, 2)
    with pytest.raises(Superseded):
        early.ships()
    assert list(empty.list("")) == []


def test_the_fence_is_read_before_each_publication(session: Session, store: MemoryStore) -> None:
    session.saves(1)
    session.saves(2)
    shipping = session.uplink.ship()
    next(shipping)  # it has looked before the first
    raise_fence(store, RUN, 2)
    with pytest.raises(Superseded):
        next(shipping)
    assert [ref.step for ref in stored.names(store, RUN)] == [2]  # begun before, and nobody reads it


def test_a_fence_only_rises(store: MemoryStore) -> None:
    assert raise_fence(store, RUN, 3) == 3
    assert raise_fence(store, RUN, 2) == 3
    check_fence(store, RUN, 3)
    held = store.registers.read(fence_key(RUN))
    assert held is not None
    store.registers.swap(fence_key(RUN), b"no fence", held.version)
    with pytest.raises(Superseded):
        check_fence(store, RUN, 3)
    assert raise_fence(store, RUN, 4) == 4
    check_fence(store, RUN, 4)


def test_two_controllers_raise_the_fence_one_after_the_other(store: MemoryStore) -> None:
    held = store.registers.read(fence_key(RUN))
    assert held is not None
    raise_fence(store, RUN, 2)
    with pytest.raises(Conflict):
        store.registers.swap(fence_key(RUN), wire.encode(registers.Fence(1)), held.version)


# --- What arrives ---------------------------------------------------------------------------------------


def test_all_that_a_session_leaves_is_brought_home(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    first = session.saves(1)
    session.logs("it begins\n")
    session.ships()
    into = tmp_path / "home"
    assert brought(store, into).manifests == (first,)
    (session.local / "progress.jsonl").write_text('{"step": 2}\n')
    session.logs("it ends\n")
    session.logs("another\n", segment=2)
    last = session.saves(2)
    session.ends()
    session.ships(2)
    assert session.uplink.done
    found = brought(store, into)
    assert last in found.manifests
    assert found.notes == ()
    assert (into / LOG / "000001.log").read_text() == "it begins\nit ends\n"
    assert (into / LOG / "000002.log").read_text() == "another\n"
    assert (into / "progress.jsonl").read_text() == '{"step": 2}\n'
    reading = seen(store)
    assert reading.result is not None
    assert reading.result.outcome is Outcome.COMPLETED
    assert reading.incarnations == ("aaaa",)


def test_the_result_comes_after_what_was_committed_while_it_was_read(
    session: Session, store: MemoryStore
) -> None:
    session.ends()
    session.ships()
    reading = seen(store)
    assert reading.result is None
    last = session.saves(2)
    session.ships()
    reading = seen(store)
    assert reading.result is not None
    assert reading.status is not None
    assert reading.status.checkpoint == last.name


def test_a_heartbeat_names_no_checkpoint_that_is_not_there(session: Session, store: MemoryStore) -> None:
    made = session.saves(5)
    session.says(replace(STATE, heartbeat=7, checkpoint=made.name, checkpoint_step=5))
    session.uplink.beat()
    before = seen(store)
    session.ships()
    session.uplink.beat()
    after = seen(store)
    assert before.status is not None
    assert (before.status.heartbeat, before.status.checkpoint) == (7, None)
    assert after.status is not None
    assert after.status.checkpoint == made.name


def test_a_forged_checkpoint_of_another_session_is_not_shipped(session: Session, store: MemoryStore) -> None:
    session.saves(1, run="another-run")
    session.saves(2, ref=CheckpointRef(2, 7, "aaaa"))
    session.saves(3, ref=CheckpointRef(3, 1, "bbbb"))
    ours = session.saves(4)
    session.ships()
    assert [stat.key.split("/")[3] for stat in store.list("runs/") if "manifest" in stat.key] == [ours.name]


def test_an_uplink_that_is_started_again_goes_on(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    session.logs("it begins\n")
    session.saves(1)
    session.ships()
    session.logs("it goes on\n")
    session.saves(2)
    session.uplink = session.restarted("other")
    session.ships()
    found = brought(store, tmp_path / "home")
    assert [manifest.ref.step for manifest in found.manifests] == [1, 2]
    assert (tmp_path / "home" / LOG / "000001.log").read_text() == "it begins\nit goes on\n"


def test_an_uplink_that_was_killed_while_it_copied_a_blob_goes_on(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    left = session.local.parent / "scratch" / "blobs" / ".tmp-orchestrator-0123"
    left.mkdir(parents=True)
    (left / "part").write_bytes(b"of a blob")
    made = session.saves(1)
    session.logs("it goes on\n")
    session.ships()
    found = brought(store, tmp_path / "home")
    assert found.manifests == (made,)
    assert (tmp_path / "home" / LOG / "000001.log").read_text() == "it goes on\n"


def test_the_newest_checkpoint_is_found_though_listings_lag(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    lagging = FaultyStore(store, FaultRates(hides=1.0, hidden_seconds=60.0), Random(1), now=lambda: 0.0,
                          wait=lambda _seconds: None)  # fmt: skip
    session.store = lagging
    session.uplink = session.restarted("other")
    made = session.saves(1)
    session.ships()
    session.uplink.beat()
    assert stored.names(lagging, RUN) == ()
    assert brought(lagging, tmp_path / "home").manifests == (made,)


def test_what_is_no_session_of_this_generation_is_not_shown(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    session.saves(1)
    session.ships()
    raise_fence(store, RUN, 2)
    later = replace(ORDER, session=f"{RUN}-s02", generation=2)
    newer = Session(tmp_path, store, later, "cccc")
    made = newer.saves(2)
    newer.ships()
    assert list(StoreOutbox(store, RUN, later.session, 2).checkpoints()) == [made.name]


# --- What the engine reads, and does --------------------------------------------------------------------


def test_a_store_that_does_not_answer_is_no_reading(session: Session, store: MemoryStore) -> None:
    session.uplink.beat()
    down = FaultyStore(store, FaultRates(fails=1.0), Random(1), now=lambda: 0.0, wait=lambda _seconds: None)
    for sighting in Sighting:
        with pytest.raises(Transient):
            seen(down, sighting)
        assert seen(store, sighting).sighting is sighting


def test_an_altered_piece_of_the_log_ends_its_file(
    session: Session, store: MemoryStore, tmp_path: Path
) -> None:
    session.logs("it begins\n")
    session.ships()
    session.logs("it goes on\n")
    session.logs("another\n", segment=2)
    (session.local / "progress.jsonl").write_text('{"step": 2}\n')
    session.ships()
    rotten = FaultyStore(store, FaultRates(), Random(1), now=lambda: 0.0, wait=lambda _seconds: None)
    [key] = [stat.key for stat in store.list(KEYS.root) if "000001.log/" in stat.key and stat.size == 11]
    rotten.rot(key)
    found = brought(rotten, tmp_path / "home")
    assert (tmp_path / "home" / LOG / "000001.log").read_text() == "it begins\n"
    assert (tmp_path / "home" / LOG / "000002.log").read_text() == "another\n"
    assert (tmp_path / "home" / "progress.jsonl").exists()
    assert found.notes == (f"{key} is altered: the rest of log/000001.log was not read",)
    assert not found.more


def test_an_altered_result_costs_a_note(session: Session, store: MemoryStore) -> None:
    session.ends()
    session.ships(2)
    rotten = FaultyStore(store, FaultRates(), Random(1), now=lambda: 0.0, wait=lambda _seconds: None)
    [key] = [stat.key for stat in store.list(KEYS.root) if RESULT in stat.key]
    rotten.rot(key)
    with pytest.raises(Odd):
        read(rotten).small(RESULT)
    reading = seen(rotten, Sighting.ENDED)
    assert reading.result is None
    assert any("altered" in note for note in reading.notes)


class Sized(MemoryStore):
    """A store that counts the bytes that were fetched from it."""

    fetched = 0

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        super().get(key, target, sha256, bytes_max=bytes_max)
        self.fetched += target.stat().st_size


def huge(store: Store, folder: Path, key: str, bytes_max: int) -> str:
    path = folder / "huge"
    path.write_bytes(b"\0" * (bytes_max + 1))
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    store.put(key.format(sha256), path, sha256)
    return sha256


def test_what_is_beyond_a_bound_is_not_fetched(tmp_path: Path) -> None:
    """A session can write to the store: it must fill neither the controller's disk nor its memory."""
    store = Sized()
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    session.ships()
    name = CheckpointRef(9, 1, "aaaa").name
    huge(store, tmp_path, f"runs/{RUN}/checkpoints/{name}/manifest.json", bounds.MANIFEST_BYTES_MAX)
    result = huge(store, tmp_path, KEYS.root + "result.json/{}", bounds.RESULT_BYTES_MAX)
    registers.beat(store, KEYS, registers.Heartbeat(STATE, result))
    store.fetched = 0
    found = brought(store, tmp_path / "home")
    assert [(each, "larger" in reason) for each, reason in found.corrupt] == [(name, True)]
    assert any("result.json is larger" in note for note in found.notes)
    assert store.fetched == 0


def test_a_blob_beyond_its_bound_is_not_fetched(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    made = session.saves(9)
    session.ships()
    [sha256] = made.blobs()
    with (tmp_path / "store" / f"runs/{RUN}/blobs/g01-aaaa" / sha256).open("r+b") as file:
        file.truncate(bounds.PART_BYTES_MAX + 1)
    [(name, reason)] = brought(store, tmp_path / "home").corrupt
    assert name == made.name
    assert "larger" in reason


@pytest.mark.parametrize("value", [b"", b"{}", b"\xff", b'{"status": 3}'])
def test_what_is_no_claim_or_heartbeat_says_nothing(value: bytes, store: MemoryStore) -> None:
    store.registers.swap(KEYS.claim, value, None)
    store.registers.swap(KEYS.heartbeat, value, None)
    assert seen(store) == Observation(Sighting.RUNNING)
    assert list(read(store).checkpoints()) == []


def test_a_heartbeat_that_names_an_odd_result_costs_a_note(store: MemoryStore) -> None:
    store.registers.swap(KEYS.heartbeat, wire.encode(registers.Heartbeat(STATE, "../../etc/passwd")), None)
    reading = seen(store)
    assert reading.result is None
    assert reading.notes
