"""Sessions with an uplink, as the engine prepares, reads and ends them on real folders."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core import bounds, wire
from orchestrator.core.action import Collect, Done, Failed, Prepare, Trouble
from orchestrator.core.offer import Uplink
from orchestrator.core.order import AgentStatus, Order, Outcome, Result
from orchestrator.core.session import Sighting
from orchestrator.engine.perform import Backends, perform
from orchestrator.engine.readings import observation, observe
from orchestrator.errors import Rejected
from orchestrator.home import Folders
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.simulated import Faults, Scenario, SimulatedPlatform
from orchestrator.session.layout import RESULT, STATUS
from orchestrator.session.outbox import FolderOutbox
from orchestrator.session.staging import Materials, Shipping, contents
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.opening import carried, opened
from orchestrator.stores.portable import Portable
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.uplink import archive
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.outbox import StoreOutbox
from orchestrator.uplink.registers import pinned, raise_fence
from tests.core.runs import RUN
from tests.simulation.clock import VirtualClock
from tests.test_uplink import ORDER, STATE, Session

SECRET = "a-key-that-nobody-may-see"  # no credential
HERE = replace(ORDER, platform="here", accelerator="cpu", resume=None)


class Guarded(MemoryStore):
    """A store with a credential, which sessions of any machine may have."""

    def portable(self) -> Portable:
        return Portable("folder", {"path": "/nowhere"}, {"key": SECRET})


def backends(folder: Path, store: Store) -> Backends:
    folders = Folders(folder / "home")
    for path in (folders.agent, folders.bundle(HERE.bundle), folders.home / "uplink.pyz"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    options = {"accelerator": "cpu", "uplink": True}
    here = catalog.build("here", "process", options, folder=folder / "sessions", clock=SystemClock())
    stores = {"home": RetryingStore(store, sleep=lambda _: None)}
    return Backends({"here": here}, stores, "home", folders, secret=lambda name: name)


def prepare(order: Order = HERE) -> Prepare:
    return Prepare(order, uplink=Uplink.STORE)


SILENT = SimulatedPlatform("here", Scenario(faults=Faults(request_lost=1.0)), VirtualClock())


def collect(*, last: bool = True) -> Collect:
    return Collect(RUN, HERE.session, "here", 1, "aaaa", frozenset(), last=last, uplink=Uplink.STORE)


# --- What a session gets --------------------------------------------------------------------------------


def test_a_session_gets_the_uplink_and_what_opens_the_store(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    assert isinstance(perform(prepare(), backends(tmp_path, store)), Done)
    root = tmp_path / "sessions" / HERE.session
    assert (root / "uplink.pyz").exists()
    assert (root / "store.json").stat().st_mode & 0o777 == 0o600
    portable = wire.decode(Portable, (root / "store.json").read_bytes())
    (tmp_path / "object").write_bytes(b"shipped")
    sha256 = hashlib.sha256(b"shipped").hexdigest()
    opened(portable).put("key", tmp_path / "object", sha256)
    assert store.stat("key") is not None


def test_its_credential_is_in_that_file_alone(tmp_path: Path) -> None:
    report = perform(prepare(), backends(tmp_path, Guarded()))
    assert isinstance(report, Done)
    assert SECRET not in repr(report)
    holding = [path.name for path in tmp_path.rglob("*") if path.is_file() and SECRET in path.read_text()]
    assert holding == ["store.json"]
    assert SECRET not in repr(Materials(tmp_path, tmp_path, shipping=Shipping(tmp_path, SECRET.encode())))
    assert SECRET not in repr(Guarded().portable())


def test_without_an_uplink_a_session_gets_neither(tmp_path: Path) -> None:
    given = backends(tmp_path, FolderStore(tmp_path / "store"))
    assert isinstance(perform(Prepare(HERE), given), Done)
    names = {path.name for path in (tmp_path / "sessions" / HERE.session).iterdir()}
    assert names == {"agent.pyz", "bundle.tar.gz", "order.json"}


def test_a_store_that_no_session_can_open_is_refused_with_a_remedy(tmp_path: Path) -> None:
    report = perform(prepare(), backends(tmp_path, MemoryStore()))
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.REJECTED
    assert "cannot be opened by a session" in report.message
    assert "set `uplink: false` for here in config.yaml" in report.message
    assert not (tmp_path / "sessions" / HERE.session).exists()


def test_a_store_of_this_machine_is_refused_elsewhere(tmp_path: Path) -> None:
    store = carried(FolderStore(tmp_path / "store"))
    shipping = Shipping(tmp_path / "uplink.pyz", wire.encode(store), store.this_machine)
    materials = Materials(tmp_path / "bundle", tmp_path / "agent", shipping=shipping)
    assert any(each.name == "store.json" for each in contents(HERE, materials, here=True))
    with pytest.raises(Rejected, match=r"only this machine can open that store.*`uplink: false` for here"):
        list(contents(HERE, materials))


def test_a_platform_that_needs_the_store_is_not_told_to_do_without(tmp_path: Path) -> None:
    action = replace(prepare(), fetches=True)
    report = perform(action, backends(tmp_path, MemoryStore()))
    assert isinstance(report, Failed)
    assert report.message.endswith("give the run a home store that its sessions can reach")


def test_a_container_without_a_network_is_refused(tmp_path: Path) -> None:
    options = {"host": "unix:///nowhere", "uplink": True}
    docker = catalog.build("box", "docker", options, folder=tmp_path / "box", clock=SystemClock())
    materials = Materials(tmp_path, tmp_path, shipping=Shipping(tmp_path, b"{}"))
    with pytest.raises(Rejected, match="has no network"):
        docker.prepare(replace(HERE, platform="box"), materials)


def test_an_encrypted_store_is_never_opened_as_a_plain_one(tmp_path: Path) -> None:
    plain = FolderStore(tmp_path / "store")
    encrypted = replace(plain.portable(), recipients=("age1example",))
    try:
        store = opened(encrypted)
    except Exception:  # noqa: BLE001 - a session without the package, or a wrong key, cannot ship
        return
    assert type(store) is not FolderStore


def test_a_folder_that_has_gone_does_not_come_back_empty(tmp_path: Path) -> None:
    store = opened(carried(FolderStore(tmp_path / "store")))
    (tmp_path / "object").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    registers = store.registers
    assert registers is not None
    for write in (
        lambda: store.put("a/b", tmp_path / "object", empty),
        lambda: registers.swap("a/b", b"value", None),
    ):
        with pytest.raises(Exception, match="No such file"):
            write()
    assert not (tmp_path / "store").exists()


def test_the_archive_is_small_and_the_same_every_time() -> None:
    first = archive.content()
    assert first == archive.content()
    assert len(first) < 1_000_000


# --- What the controller reads and brings ---------------------------------------------------------------


def test_a_result_counts_once_the_session_has_ended(tmp_path: Path) -> None:
    """Until then the last checkpoint may be on its way. The shipped outbox is empty here."""
    session = Session(tmp_path, MemoryStore())
    session.ends()
    own, shipped = FolderOutbox(session.local), FolderOutbox(tmp_path / "nothing")
    running = observation(Sight(Sighting.RUNNING, own), shipped)
    ended = observation(Sight(Sighting.ENDED, own), shipped)
    gone = observation(Sight(Sighting.ABSENT), FolderOutbox(session.local))
    assert running.status is not None
    assert running.result is None
    for seen in (ended, gone):
        assert seen.result is not None


class Log:
    """What a platform reads in the log of a session: its status only, and perhaps late."""

    def __init__(self, status: AgentStatus) -> None:
        self.small = {STATUS: wire.encode(status)}.get


def test_of_two_reports_that_may_be_late_the_newer_status_counts(tmp_path: Path) -> None:
    """The store does not answer the session, or its log is not shown: either alone shows that it lives."""
    said = AgentStatus("aaaa", 10, 1.0, "training", step=7)
    shipped = Session(tmp_path, MemoryStore())
    for beats, step in ((5, 7), (15, 9)):
        shipped.says(replace(said, heartbeat=beats, step=9))
        log = Log(said)
        sight = Sight(Sighting.RUNNING, log, partial=True)  # type: ignore[arg-type]
        seen = observation(sight, FolderOutbox(shipped.local))
        assert seen.status is not None
        assert (seen.status.step, seen.incarnations) == (step, ("aaaa",))
    shipped.ends()
    seen = observation(sight, FolderOutbox(shipped.local))
    assert seen.result is None


def test_if_an_output_is_lost_the_shipped_result_counts(tmp_path: Path) -> None:
    shipped = Session(tmp_path, MemoryStore())
    shipped.ends()
    lost = FolderOutbox(tmp_path / "nothing")
    seen = observation(Sight(Sighting.ENDED, lost, ending=Outcome.LOST), FolderOutbox(shipped.local))
    assert seen.result is not None
    assert seen.result.outcome is Outcome.COMPLETED


def test_an_agent_that_still_ships_its_result_is_not_over(tmp_path: Path) -> None:
    given = backends(tmp_path, FolderStore(tmp_path / "store"))
    perform(prepare(), given)
    root = tmp_path / "sessions" / HERE.session
    (root / "outbox").mkdir()
    (root / "outbox" / "incarnation").write_text("aaaa")
    (root / "outbox" / RESULT).write_bytes(wire.encode(Result("aaaa", Outcome.COMPLETED, 0, 2, "done")))
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        seen = given.platform("here").observe([HERE.session])[HERE.session]
        assert seen.sighting is Sighting.RUNNING
    assert given.platform("here").observe([HERE.session])[HERE.session].sighting is Sighting.ENDED


@pytest.mark.parametrize("claimed", [True, False])
def test_the_last_look_brings_what_was_not_shipped(tmp_path: Path, claimed: bool) -> None:
    store = FolderStore(tmp_path / "store")
    given = backends(tmp_path, store)
    perform(prepare(), given)
    session = Session(tmp_path / "there", store)
    first = session.saves(1)
    if claimed:
        session.ships()
    later = session.saves(2)
    session.ends()
    os.rename(session.local, tmp_path / "sessions" / HERE.session / "outbox")  # noqa: PTH104
    midway = perform(collect(last=False), given)
    names = [each.name for each in midway.checkpoints] if isinstance(midway, Done) else []
    assert names == ([first.name] if claimed else [])
    report = perform(collect(), given)
    assert isinstance(report, Done), report
    assert [each.name for each in report.checkpoints] == [first.name, later.name]
    stored.verify(store, RUN, later.name)
    result = given.folders.collected(RUN, HERE.session) / RESULT
    assert json.loads(result.read_bytes())["message"] == "all steps done"


@pytest.mark.parametrize("claimed", [True, False])
def test_what_does_not_get_through_is_brought_from_the_platform(tmp_path: Path, claimed: bool) -> None:
    """As without an uplink. If the controller has heard nothing but what came through the store, it asks the
    platform for nothing."""
    store = FolderStore(tmp_path / "store")
    given = backends(tmp_path, store)
    perform(prepare(), given)
    session = Session(tmp_path / "there", store)
    first = session.saves(1)
    if claimed:
        session.ships()
        session.uplink.beat()
    later = session.saves(2)
    os.rename(session.local, tmp_path / "sessions" / HERE.session / "outbox")  # noqa: PTH104
    heard_since = STATE.written_at - 1.0 if claimed else None
    in_step = perform(replace(collect(last=False), stale_before=heard_since), given)
    names = [each.name for each in in_step.checkpoints] if isinstance(in_step, Done) else []
    assert names == ([first.name] if claimed else [])
    behind = perform(replace(collect(last=False), stale_before=STATE.written_at + 1.0), given)
    assert isinstance(behind, Done), behind
    assert [each.name for each in behind.checkpoints] == [first.name, later.name]
    stored.verify(store, RUN, later.name)
    assert later.name in pinned(store, SessionKeys(RUN, HERE.session)), "its uplink may come back"


def test_a_platform_that_does_not_answer_hides_no_heartbeat(tmp_path: Path) -> None:
    """A session that was never heard is not judged: it may wait for its image."""
    store = FolderStore(tmp_path / "store")
    raise_fence(store, RUN, 1)
    shipped = StoreOutbox(store, RUN, HERE.session, 1)
    read = observe("here", SILENT, (HERE.session,), outboxes={HERE.session: shipped})
    assert read.trouble
    assert not read.observations
    session = Session(tmp_path, store)
    session.uplink.beat()
    read = observe("here", SILENT, (HERE.session,), outboxes={HERE.session: shipped})
    assert read.trouble
    assert read.observations[HERE.session].sighting is Sighting.RUNNING
    assert read.observations[HERE.session].status is not None


def test_what_was_shipped_is_taken_without_a_machine_that_does_not_answer(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    given = backends(tmp_path, store)
    perform(prepare(), given)
    given = replace(given, platforms={"here": SILENT})
    session = Session(tmp_path, store)
    first = session.saves(1)
    session.ships()
    report = perform(collect(), given)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.TRANSIENT
    report = perform(replace(collect(), forgone=True), given)
    assert isinstance(report, Done), report
    assert [each.name for each in report.checkpoints] == [first.name]


def test_all_pages_of_what_was_not_shipped_are_brought(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    given = backends(tmp_path, store)
    perform(prepare(), given)
    session = Session(tmp_path / "there", store)
    names = [session.saves(step).name for step in range(1, bounds.COLLECT_CHECKPOINTS_MAX + 2)]
    session.uplink.beat()
    session.ends()
    os.rename(session.local, tmp_path / "sessions" / HERE.session / "outbox")  # noqa: PTH104
    known: frozenset[str] = frozenset()
    more = True
    while more:
        report = perform(replace(collect(), known=known), given)
        assert isinstance(report, Done), report
        known |= {each.name for each in report.checkpoints}
        more = report.more
    assert sorted(known) == names


def test_a_session_that_left_nothing_anywhere_is_waited_for(tmp_path: Path) -> None:
    """Its agent was seen, so the store must have more than this: a disk may be missing."""
    given = backends(tmp_path, FolderStore(tmp_path / "store"))
    report = perform(collect(), given)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.TRANSIENT
