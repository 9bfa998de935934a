"""What a session fetches from its home store: laid out as it was, verified, and continued after any stop."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.errors import CorruptCheckpoint, NoIdentity, NotFound, Rejected, Transient
from orchestrator.session.staging import Content
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.opening import only_for
from orchestrator.stores.store import Store, content
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.parcel import Entry, Parcel, Part
from tests.conformance.age_keys import encrypted
from tests.leaks import Leaks

KEYS = SessionKeys("demo-abcdefgh", "demo-abcdefgh-s01")
SMALL = 100  # bytes in a part


class Counting(MemoryStore):
    """Counts what is put and what comes, and fails once `left` readings are used up."""

    left = 1_000_000

    def __init__(self) -> None:
        super().__init__()
        self.put_keys: list[str] = []
        self.read_keys: list[str] = []

    def put(self, key: str, source: Path, sha256: str) -> None:
        self.put_keys.append(key)
        super().put(key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        if self.left == 0:
            raise Transient("the line is dead")
        self.left -= 1
        self.read_keys.append(key)
        super().get(key, target, sha256, bytes_max=bytes_max)


@pytest.fixture
def given(tmp_path: Path) -> list[Content]:
    """Source, a checkpoint and inputs: files smaller and larger than a part, and what has no bytes."""
    here, chance = tmp_path / "given", random.Random(7)
    sizes = {"data/large.bin": 1234, "data/näme with spaces": 99, "data/deep/down/exact": 100, "data/none": 0}
    sizes |= {f"data/many/{number:03}": chance.randrange(0, 30) for number in range(60)}
    for name, size in sizes.items():
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_bytes(chance.randbytes(size))
    (here / "data" / "empty" / "folder").mkdir(parents=True)
    (here / "data" / "run.sh").write_bytes(b"#!/bin/sh\n")
    (here / "data" / "run.sh").chmod(0o755)
    (here / "bundle").write_bytes(chance.randbytes(250))
    return [
        Content("bundle.tar.gz", here / "bundle"),
        Content("inputs", here / "data", read_only=True),
        Content("order.json", b"{}"),
    ]


def tree(folder: Path) -> dict[str, tuple[bytes | None, bool]]:
    """Path → what is in the file and whether it can be executed; folders have None."""
    found = {}
    for path in folder.rglob("*"):
        data = None if path.is_dir() else path.read_bytes()
        found[path.relative_to(folder).as_posix()] = (
            data,
            data is not None and bool(path.stat().st_mode & 0o100),
        )
    return found


def expected(given: list[Content]) -> dict[str, tuple[bytes | None, bool]]:
    source = given[1].content
    assert isinstance(source, Path)
    inside = {f"inputs/{name}": value for name, value in tree(source).items()}
    bundle = (source.parent / "bundle").read_bytes()
    return inside | {"inputs": (None, False), "bundle.tar.gz": (bundle, False), "order.json": (b"{}", False)}


def laid_out(store: Store, parcel: Parcel, folder: Path) -> dict[str, tuple[bytes | None, bool]]:
    root = folder / "session"
    root.mkdir(exist_ok=True)
    parcels.move(parcel, parcels.fetch(store, KEYS, parcel, folder / "scratch"), root)
    return tree(root)


@pytest.mark.parametrize("part_bytes", [37, SMALL, 1 << 20])
def test_a_session_finds_what_was_put_for_it(given: list[Content], tmp_path: Path, part_bytes: int) -> None:
    store = Counting()
    parcel = parcels.write(store, KEYS, given, part_bytes=part_bytes)
    arrived = wire.decode(Parcel, wire.encode(parcel))
    assert laid_out(store, arrived, tmp_path) == expected(given)
    if part_bytes == 1 << 20:
        assert len(store.put_keys) == 1, "many small files are one object"


def test_nobody_can_write_to_what_was_laid_out(given: list[Content], tmp_path: Path) -> None:
    store = Counting()
    laid_out(store, parcels.write(store, KEYS, given), tmp_path)
    for path in (tmp_path / "session").rglob("*"):
        assert path.stat().st_mode & 0o277 == 0, path


def test_it_goes_on_at_the_part_where_it_was_cut_off(given: list[Content], tmp_path: Path) -> None:
    store = Counting()
    parcel = parcels.write(store, KEYS, given, part_bytes=SMALL)
    for _ in parcel.parts[:-1]:
        store.left = 1
        with pytest.raises(Transient):
            laid_out(store, parcel, tmp_path)
    store.left = 1
    assert laid_out(store, parcel, tmp_path) == expected(given)
    assert len(store.read_keys) == len(parcel.parts), "nothing is fetched twice"
    (tmp_path / "session" / "inputs").chmod(0o700)
    (tmp_path / "session" / "inputs").rename(tmp_path / "scratch" / "content" / "inputs")
    assert laid_out(store, parcel, tmp_path) == expected(given), "as after a kill between two renames"


def test_a_part_that_was_half_laid_out_is_laid_out_again(given: list[Content], tmp_path: Path) -> None:
    """As a kill leaves it: bytes are in the files, and the note of how far it came is older."""
    store = Counting()
    parcel = parcels.write(store, KEYS, given, part_bytes=SMALL)
    store.left = 10
    with pytest.raises(Transient):
        laid_out(store, parcel, tmp_path)
    (tmp_path / "scratch" / "done").write_bytes(b"4")
    store.left = 1_000_000
    assert laid_out(store, parcel, tmp_path) == expected(given)


def test_what_is_there_is_not_put_again_unless_it_is_damaged(given: list[Content]) -> None:
    store = Counting()
    told: list[int] = []
    parcel = parcels.write(store, KEYS, given, part_bytes=SMALL)
    store.put_keys.clear()
    assert parcels.write(store, KEYS, given, put=told.append, part_bytes=SMALL) == parcel
    assert store.put_keys == []
    assert sum(told) == sum(part.size for part in parcel.parts)
    cut = KEYS.parcel_part(parcel.parts[3].sha256)
    store.delete(cut)
    put(store, cut, b"cut")
    assert parcels.write(store, KEYS, given, part_bytes=SMALL) == parcel
    assert store.put_keys[1:] == [cut]
    assert len(content(store, cut, SMALL)) == SMALL


def put(store: Store, key: str, data: bytes) -> None:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        (Path(folder) / "object").write_bytes(data)
        store.put(key, Path(folder) / "object", hashlib.sha256(data).hexdigest())


def test_altered_and_missing_parts_are_never_laid_out(given: list[Content], tmp_path: Path) -> None:
    store = Counting()
    parcel = parcels.write(store, KEYS, given, part_bytes=SMALL)
    key = KEYS.parcel_part(parcel.parts[2].sha256)
    store.delete(key)
    with pytest.raises(NotFound):
        laid_out(store, parcel, tmp_path)
    for data in (b"x" * SMALL, b"shorter", b"x" * (SMALL + 1)):
        put(store, key, data)
        with pytest.raises(CorruptCheckpoint):
            laid_out(store, parcel, tmp_path)
        store.delete(key)
    assert list((tmp_path / "session").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["../outside", "/etc/passwd", "inputs/../../outside", "", ".", "inputs//x", "a\0b", "../folder/"]
)
def test_a_parcel_that_leads_out_of_the_session_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="outside"):
        Parcel((Entry(path),))
    with pytest.raises(ValueError, match="outside"):
        wire.decode(Parcel, wire.encode({"entries": [{"path": path}]}))


@pytest.mark.parametrize(
    "parts", [(), (Part("a" * 64, 1),), (Part("x", 5),), (Part("a" * 64, 10), Part("b" * 64, -5))]
)
def test_a_parcel_that_does_not_add_up_is_refused(parts: tuple[Part, ...]) -> None:
    with pytest.raises(ValueError, match=r"add up|invalid"):
        Parcel((Entry("bundle.tar.gz", 5),), parts)


def test_an_encrypted_parcel_is_for_its_session_alone(given: list[Content], tmp_path: Path) -> None:
    inner = FolderStore(tmp_path / "store")
    store = encrypted(inner)
    key = store.new_key()
    parcel = parcels.write(store, KEYS, given, key, part_bytes=1000)
    assert all(stat.key.endswith(".age") for stat in inner.list(""))
    assert laid_out(store, parcel, tmp_path) == expected(given)
    part = KEYS.parcel_part(parcel.parts[0].sha256)
    for other in (store, only_for(store, store.new_key())):
        with pytest.raises(NoIdentity):
            content(other, part, 1000)
    put(store, "of/another", b"object of the store's owner")
    with pytest.raises(NoIdentity):
        content(only_for(store, key), "of/another", SMALL)
    assert key not in repr(parcel)
    assert Leaks({"key": key}).in_store(inner) == []


def test_a_plain_store_has_nothing_for_one_key_alone(given: list[Content]) -> None:
    parcel = parcels.write(MemoryStore(), KEYS, given)
    with pytest.raises(Rejected):
        only_for(MemoryStore(), "AGE-SECRET-KEY-1")
    assert replace(parcel, key="") == parcel
