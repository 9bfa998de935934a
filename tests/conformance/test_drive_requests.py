"""How many requests an operation costs in Drive, where each takes half a second. A listing is one request
here: in a folder of thousands of files, each page costs one more."""

from __future__ import annotations

import hashlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Done
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.offer import Uplink
from orchestrator.engine.perform import Backends, perform
from orchestrator.home import Folders
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.drive.store import DriveStore
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import snapshot
from orchestrator.uplink import outbox as uplinked
from orchestrator.uplink.registers import raise_fence
from tests.conformance.drives import configured, drive, home, store
from tests.conformance.store_suite import Source, source
from tests.core.runs import RUN
from tests.stand_ins.drive import LocalDrive
from tests.test_uplink import KEYS, ORDER, Session

__all__ = ["drive", "home", "source", "store"]  # fixtures

BLOBS = 12


def asked(drive: LocalDrive) -> Counter[str]:
    """The requests since the last call, by kind."""
    found = Counter(drive.requests)
    drive.requests.clear()
    return found


def checkpoint(folder: Path, step: int) -> Manifest:
    parts = []
    for number in range(BLOBS):
        data = f"{step} {number}".encode()
        parts.append(Part(hashlib.sha256(data).hexdigest(), len(data)))
        path = folder / "blobs" / parts[-1].sha256
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    file = FileEntry("state", sum(part.size for part in parts), tuple(parts))
    made = Manifest(RUN, CheckpointRef(step, 1, "aaaa"), 16, (file,))
    path = folder / "checkpoints" / made.name / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(made.encode())
    return made


def test_a_checkpoint_costs_one_listing_to_publish_and_two_to_retire(
    drive: LocalDrive, home: Path, tmp_path: Path
) -> None:
    """Without a snapshot, each blob cost two listings to publish and one to retire, and each manifest two."""
    store = RetryingStore(configured(drive, home))
    manifest = checkpoint(tmp_path, 10)
    stored.publish(store, RUN, manifest, tmp_path)
    assert asked(drive)["list"] == 1
    stored.publish(store, RUN, checkpoint(tmp_path, 20), tmp_path)
    asked(drive)
    stored.retire(store, RUN, [manifest.name], [])
    cost = asked(drive)
    assert (cost["list"], cost["delete"]) == (2, BLOBS + 1)
    assert len(stored.names(store, RUN)) == 1
    assert len(list(store.list(f"runs/{RUN}/blobs/"))) == BLOBS


def test_an_idle_collect_costs_one_listing(drive: LocalDrive, home: Path, tmp_path: Path) -> None:
    """It happens every ten seconds. Without a snapshot it cost three listings, and each register twice as
    much."""
    theirs, mine = configured(drive, home), configured(drive, home)
    raise_fence(theirs, RUN, 1)
    session = Session(tmp_path / "session", theirs)
    session.saves(1)
    session.logs("hello\n")
    session.ships()
    session.uplink.beat()
    backends = Backends({}, {"home": mine}, "home", Folders(tmp_path / "home"), str)

    def collected(known: frozenset[str]) -> Done:
        wanted = Collect(RUN, ORDER.session, "here", 1, "aaaa", known, False, uplink=Uplink.STORE, kept=known)
        done = perform(wanted, backends)
        assert isinstance(done, Done), done
        return done

    first = collected(frozenset())
    [accepted] = first.checkpoints
    asked(drive)
    assert collected(frozenset({accepted.name})).checkpoints == ()
    cost = asked(drive)
    assert (cost["list"], cost["media"], cost["get"]) == (1, 0, 8)


def test_new_pieces_of_log_and_progress_cost_one_listing(
    drive: LocalDrive, store: DriveStore, tmp_path: Path
) -> None:
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    session.ships()
    for segment in (1, 2, 3):
        session.logs("hello\n", segment)
    asked(drive)
    session.ships()
    cost = asked(drive)
    assert (cost["list"], cost["chunk"]) == (1, 3)


def test_what_a_session_said_costs_one_listing_and_a_request_for_each_piece(
    drive: LocalDrive, store: DriveStore, home: Path, tmp_path: Path
) -> None:
    """Without a snapshot, each piece cost a listing and three requests."""
    raise_fence(store, RUN, 1)
    for number in range(BLOBS):
        data = f"{number}".encode()
        sha256 = hashlib.sha256(data).hexdigest()
        (tmp_path / "piece").write_bytes(data)
        store.put(KEYS.piece("progress.jsonl", number, sha256), tmp_path / "piece", sha256)
    again = configured(drive, home)  # as a controller that has just been started
    asked(drive)
    uplinked.remove(again, RUN, ORDER.session)
    cost = asked(drive)
    assert (cost["list"], cost["delete"]) == (1, BLOBS)
    assert list(store.list("")) == []


# --- What a snapshot shows --------------------------------------------------------------------------------


def test_a_snapshot_shows_our_own_changes_and_ends(
    drive: LocalDrive, store: DriveStore, home: Path, source: Source
) -> None:
    """What others change meanwhile is seen afterwards, or in a snapshot that begins later."""
    other = configured(drive, home)
    other.put("theirs", *source(b"theirs"))
    with snapshot(store):
        assert [stat.key for stat in store.list("")] == ["theirs"]
        store.put("ours", *source(b"ours"))
        assert store.stat("ours") is not None
        assert [stat.key for stat in store.list("")] == ["ours", "theirs"]
        store.delete("ours")
        assert store.stat("ours") is None
        other.put("later", *source(b"later"))
        assert store.stat("later") is None
        with snapshot(store):
            assert store.stat("later") is not None
        other.put("latest", *source(b"latest"))
        assert store.stat("latest") is None
        assert "latest" not in [stat.key for stat in store.list("")]
    assert [stat.key for stat in store.list("")] == ["later", "latest", "theirs"]


def test_a_snapshot_is_of_one_thread(
    drive: LocalDrive, store: DriveStore, home: Path, source: Source
) -> None:
    """A thread that waits in a snapshot makes no other one blind."""
    with snapshot(store), ThreadPoolExecutor(1) as pool:
        assert store.stat("theirs") is None
        configured(drive, home).put("theirs", *source(b"theirs"))
        assert pool.submit(store.stat, "theirs").result() is not None
        assert store.stat("theirs") is not None, "its id is known now"


def test_a_snapshot_trusts_no_listing_about_a_file_that_is_gone(
    drive: LocalDrive, store: DriveStore, home: Path, source: Source
) -> None:
    """A blob that another process has deleted is stored again, not taken for present."""
    other = configured(drive, home)
    other.put("theirs", *source(b"theirs"))
    with snapshot(store):
        assert store.stat("theirs") is not None
        other.delete("theirs")
        assert store.stat("theirs") is None
        store.put("theirs", *source(b"theirs"))
    assert configured(drive, home).stat("theirs") is not None


@pytest.mark.parametrize("kept", [True, False])
def test_what_is_deleted_before_it_is_pinned_is_not_accepted(
    drive: LocalDrive, home: Path, tmp_path: Path, kept: bool
) -> None:
    """The collect lists before it pins a checkpoint, and looks for its blobs in a newer listing."""
    theirs, mine = configured(drive, home), configured(drive, home)
    raise_fence(theirs, RUN, 1)
    session = Session(tmp_path / "session", theirs)
    manifest = session.saves(1)
    session.ships()
    session.uplink.beat()
    [blob] = [stat.key for stat in theirs.list(f"runs/{RUN}/blobs/")]

    class Deletes(type(mine.registers)):  # type: ignore[misc]
        """Somebody deletes the blob just before the pin."""

        def swap(self, key: str, value: bytes, version: str | None) -> str:
            if key == KEYS.pins and not kept:
                theirs.delete(blob)
            return str(super().swap(key, value, version))

    mine.registers = Deletes(mine._copies)
    backends = Backends({}, {"home": mine}, "home", Folders(tmp_path / "home"), str)
    wanted = Collect(RUN, ORDER.session, "here", 1, "aaaa", frozenset(), False, uplink=Uplink.STORE)
    done = perform(wanted, backends)
    assert isinstance(done, Done), done
    assert [each.name for each in done.checkpoints] == ([manifest.name] if kept else [])
    assert bool(done.late) is not kept
