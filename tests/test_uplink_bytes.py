"""How often an uplink reads what it ships, and what happens if that changes on its way."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.core.bounds import MIB
from orchestrator.core.checkpoint import FileEntry, Manifest, Part
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.store import Store
from orchestrator.uplink.registers import raise_fence
from tests.conformance.test_s3 import configured
from tests.core.runs import RUN
from tests.stand_ins.seaweed import Seaweed
from tests.test_uplink import Session

SIZE = 20 * MIB + 17  # two parts for a store in a bucket
Change = Callable[[Path], object]


def bytes_read() -> int:
    """What this process has read from files so far."""
    told = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(told["rchar"])


def saves(session: Session, step: int, **files: bytes) -> Manifest:
    """The agent commits a checkpoint with these files."""
    entries = []
    for name, data in files.items():
        sha256 = hashlib.sha256(data).hexdigest()
        entries.append(FileEntry(name, len(data), (Part(sha256, len(data)),)))
        if not (session.local / "blobs" / sha256).exists():
            (session.local / "blobs").mkdir(exist_ok=True)
            (session.local / "blobs" / sha256).write_bytes(data)
    return session.saves(step, files=tuple(entries))


def content(seed: int) -> bytes:
    return random.Random(seed).randbytes(SIZE)


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made: Store = FolderStore(tmp_path / "store")
    if request.param == "s3":
        server: Seaweed = request.getfixturevalue("seaweedfs")
        made = configured(server.endpoint, tmp_path, prefix=server.prefix())
    raise_fence(made, RUN, 1)
    return made


def test_a_blob_is_read_once_and_not_at_all_if_the_store_has_it(tmp_path: Path, store: Store) -> None:
    session = Session(tmp_path, store)
    first = saves(session, 1, frozen=content(1), trained=content(2))
    before = bytes_read()
    session.ships()
    assert 2 * SIZE <= bytes_read() - before < 2.2 * SIZE
    second = saves(session, 2, frozen=content(1), trained=content(3))
    before = bytes_read()
    session.ships()
    assert SIZE <= bytes_read() - before < 1.2 * SIZE
    for made in (first, second):
        assert stored.verify(store, RUN, made.name) == made
    assert list((session.local.parent / "scratch" / "blobs").iterdir()) == []


class Meddled(FolderStore):
    """A store during whose first put of a blob the session's blob changes."""

    def __init__(self, root: Path, change: Change) -> None:
        super().__init__(root)
        self._change: Change | None = change

    def put(self, key: str, source: Path, sha256: str) -> None:
        if self._change is not None and "/blobs/" in key:
            change, self._change = self._change, None
            change(source)
        super().put(key, source, sha256)


def altered(blob: Path) -> None:
    with blob.open("r+b") as file:
        file.write(b"other")


CHANGES: dict[str, Change] = {
    "altered": altered,
    "cut": lambda blob: os.truncate(blob, 5),
    "grown": lambda blob: os.truncate(blob, 2 * SIZE),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_while_it_is_sent_is_not_published(tmp_path: Path, change: Change) -> None:
    store = Meddled(tmp_path / "store", change)
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    made = saves(session, 1, trained=content(1))
    session.ships(3)
    assert list(store.list("runs/")) == []
    [sha256] = made.blobs()
    (session.local / "blobs" / sha256).write_bytes(content(1))  # and it is whole again
    session.uplink = session.restarted("other")
    session.ships()
    assert stored.verify(store, RUN, made.name) == made


def test_a_checkpoint_that_the_agent_removes_while_it_is_sent_arrives_whole(tmp_path: Path) -> None:
    """Otherwise a slow connection would never finish one. It costs no disk space: nothing is copied."""
    links = []

    def removed(blob: Path) -> None:
        links.append(blob.stat().st_nlink)
        for path in (session.local / "blobs").iterdir():
            path.unlink()

    store = Meddled(tmp_path / "store", removed)
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    made = saves(session, 1, frozen=content(1), trained=content(2))
    session.ships()
    assert links == [2]
    assert stored.verify(store, RUN, made.name) == made


def test_a_scratch_folder_on_another_disk_gets_copies(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    made = saves(session, 1, trained=b"on another disk")
    with TemporaryDirectory(dir="/dev/shm") as scratch:
        session.uplink = session.restarted(scratch)
        session.ships()
    assert stored.verify(store, RUN, made.name) == made
