"""What others put into a store, far larger than it can be: no reader fetches it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.bounds import MIB
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import Odd
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.s3 import transfers
from orchestrator.stores.s3.store import S3Store
from orchestrator.uplink import registers
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.outbox import StoreOutbox
from tests.conformance.test_s3 import configured
from tests.core.runs import RUN
from tests.stand_ins.fault_proxy import FaultProxy, fault_proxy
from tests.stand_ins.seaweed import Seaweed
from tests.test_uplink import KEYS, STATE, Session
from tests.test_uplink_bytes import bytes_read

SIZE = 512 * MIB
NAME = CheckpointRef(9, 1, "aaaa").name
SHA256 = hashlib.sha256(b"").hexdigest()


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def grow(tmp_path: Path, key: str) -> None:
    """The object under the key becomes huge, without taking that much of the disk."""
    path = tmp_path / "store" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, SIZE)


def manifest(store: FolderStore, tmp_path: Path) -> None:
    grow(tmp_path, stored.manifest_key(RUN, NAME))
    with pytest.raises(CorruptCheckpoint, match="manifest is larger than 16 MB"):
        stored.read(store, RUN, NAME)
    assert "larger" in stored.lacks(store, RUN, NAME)


def shipped_manifest(store: FolderStore, tmp_path: Path) -> None:
    grow(tmp_path, stored.manifest_key(RUN, NAME))
    with pytest.raises(CorruptCheckpoint, match="larger than 16 MB"):
        StoreOutbox(store, RUN, KEYS.session, 1).read(NAME)


def blob(store: FolderStore, tmp_path: Path) -> None:
    registers.raise_fence(store, RUN, 1)
    session = Session(tmp_path, store)
    made = session.saves(1)
    session.ships()
    [sha256] = made.blobs()
    grow(tmp_path, f"runs/{RUN}/blobs/g01-aaaa/{sha256}")
    with pytest.raises(CorruptCheckpoint, match="is larger than 1 bytes"):
        stored.fetch(store, RUN, made.name, tmp_path / "fetched")
    with pytest.raises(CorruptCheckpoint, match="is larger than 1 bytes"):
        stored.verify(store, RUN, made.name)


def deposit(store: FolderStore, tmp_path: Path) -> None:
    grow(tmp_path, f"runs/{RUN}/deposit/0000-0000000001-{SHA256}.json")
    said = deposits.said_of(store, RUN)
    assert said is not None
    assert "larger than 16 MB" in said.troubles[0]


def material(store: FolderStore, tmp_path: Path) -> None:
    for key, fetch in (
        (deposits.material_key(RUN, SHA256), deposits.fetch_material),
        (deposits.input_key(RUN, SHA256), deposits.fetch_input),
    ):
        grow(tmp_path, key)
        with pytest.raises(CorruptCheckpoint, match="larger than 256 MB"):
            fetch(store, RUN, SHA256, tmp_path / "fetched")


def result(store: FolderStore, tmp_path: Path) -> None:
    grow(tmp_path, SessionKeys(RUN, KEYS.session).result(SHA256))
    registers.beat(store, KEYS, registers.Heartbeat(STATE, SHA256))
    with pytest.raises(Odd, match="larger than 256 kB"):
        StoreOutbox(store, RUN, KEYS.session, 1).small("result.json")


READERS: list[Callable[[FolderStore, Path], None]] = [
    manifest, shipped_manifest, blob, deposit, material, result,
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS, ids=[each.__name__ for each in READERS])
def test_no_reader_fetches_what_is_far_too_large(
    store: FolderStore, tmp_path: Path, reader: Callable[[FolderStore, Path], None]
) -> None:
    before = bytes_read()
    reader(store, tmp_path)
    assert bytes_read() - before < MIB


@pytest.fixture
def proxy(seaweedfs: Seaweed) -> Iterator[FaultProxy]:
    with fault_proxy(seaweedfs.port) as made:
        yield made


def test_of_a_huge_manifest_in_a_bucket_no_second_part_is_asked_for(
    proxy: FaultProxy, seaweedfs: Seaweed, tmp_path: Path
) -> None:
    store = configured(proxy.endpoint, tmp_path, prefix=seaweedfs.prefix())
    assert isinstance(store, S3Store)
    key = stored.manifest_key(RUN, NAME)
    store._clients.now().sends.put(key, bytes(2 * transfers.PART_BYTES))
    proxy.seen.clear()
    with pytest.raises(CorruptCheckpoint, match="manifest is larger than 16 MB"):
        stored.read(store, RUN, NAME)
    assert [request.method for request in proxy.seen] == ["GET"]
