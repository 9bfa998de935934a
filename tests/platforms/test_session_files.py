"""A session's files by themselves: files that grow while they are read, holes, and missing files."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from orchestrator import files
from orchestrator.errors import Rejected
from orchestrator.files import Odd
from orchestrator.files.hashing import digest_file as digest
from orchestrator.stores.folder import FolderStore, _as_it_is_now


def test_a_file_that_grows_while_it_is_read_ends_at_its_bound(tmp_path: Path) -> None:
    (tmp_path / "grows").write_bytes(b"x" * 100)
    with files.opened(tmp_path, "grows") as file, (tmp_path / "grows").open("ab") as writer:
        assert file is not None
        writer.write(b"y" * 1000)
        writer.flush()
        with (tmp_path / "target").open("wb") as target:
            assert files.copy(file, target, 100) == 100
    with pytest.raises(Odd, match="larger than 50 bytes"):
        files.read(tmp_path, "grows", 50)


def test_a_blob_that_grows_after_it_was_brought_is_not_read_to_its_end(tmp_path: Path) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"verified")
    sha256, store = digest(source), FolderStore(tmp_path / "store")
    stop = threading.Event()

    def append() -> None:
        with source.open("ab") as file:
            while not stop.is_set() and file.tell() < 64 << 20:
                file.write(bytes(1 << 20))

    writer = threading.Thread(target=append, daemon=True)
    writer.start()
    try:
        with pytest.raises(Rejected):
            while True:  # until the file grew before it was opened; otherwise the verified bytes are stored
                store.put("runs/a/blob", source, sha256)
                store.delete("runs/a/blob")
    finally:
        stop.set()
        writer.join()


def test_a_store_reads_a_file_as_it_is_when_it_begins(tmp_path: Path) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"verified")
    with source.open("rb", buffering=0) as stream, source.open("ab", buffering=0) as writer:
        read = _as_it_is_now(stream)
        writer.write(b"x" * 1000)
        buffer = memoryview(bytearray(5))
        found = [bytes(buffer[: read(buffer)]) for _ in range(3)]
    assert found == [b"verif", b"ied", b""]


def test_holes_are_copied_as_holes(tmp_path: Path) -> None:
    with (tmp_path / "source").open("wb") as file:
        file.write(b"begin")
        file.truncate(64 << 20)
        file.seek(0, os.SEEK_END)
        file.write(b"end")
    with files.opened(tmp_path, "source") as source, (tmp_path / "target").open("wb") as target:
        assert source is not None
        assert files.copy(source, target, 1 << 40) == (64 << 20) + 3
    found = (tmp_path / "target").stat()
    assert found.st_size == (64 << 20) + 3
    assert files.on_disk(found) < 8 << 20
    assert digest(tmp_path / "target") == digest(tmp_path / "source")


def test_what_is_not_there_is_nothing(tmp_path: Path) -> None:
    assert files.read(tmp_path, "a/b/c", 10) is None
    assert files.read(tmp_path / "gone", "a", 10) is None
    assert files.names(tmp_path, "gone") == []
    with pytest.raises(Odd, match="is a file"):
        (tmp_path / "file").write_text("x")
        files.names(tmp_path, "file")
