"""Fetching an outbox while its agent still writes: superseded checkpoints, growing logs, damage."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core import bounds
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.errors import Transient
from orchestrator.session.outbox import FolderOutbox, Forgone, bring, collect, refuse


def commit(outbox: Path, step: int, *contents: bytes) -> Manifest:
    """Commits a checkpoint as an agent does: blobs first, then the manifest."""
    (outbox / "blobs").mkdir(parents=True, exist_ok=True)
    files = []
    for number, data in enumerate(contents):
        sha256 = hashlib.sha256(data).hexdigest()
        (outbox / "blobs" / sha256).write_bytes(data)
        files.append(FileEntry(f"file-{number}", len(data), (Part(sha256, len(data)),)))
    manifest = Manifest("a", CheckpointRef(step, 1, "abc"), 8, tuple(files))
    folder = outbox / "checkpoints" / manifest.name
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_bytes(manifest.encode())
    return manifest


def supersede(outbox: Path, manifest: Manifest, kept: frozenset[str] = frozenset()) -> None:
    (outbox / "checkpoints" / manifest.name / "manifest.json").unlink()
    for sha256 in manifest.blobs().keys() - kept:
        (outbox / "blobs" / sha256).unlink()


class Meddled(FolderOutbox):
    """An outbox that changes right before a blob is read."""

    def __init__(self, folder: Path, meddle: Callable[[], None]) -> None:
        super().__init__(folder)
        self._meddle: Callable[[], None] | None = meddle

    def blob(self, sha256: str, target: Path) -> bool:
        if self._meddle is not None:
            meddle, self._meddle = self._meddle, None
            meddle()
        return super().blob(sha256, target)


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "into"


def test_an_empty_outbox_brings_nothing(outbox: Path, into: Path) -> None:
    assert bring(FolderOutbox(outbox), into).manifests == ()


def test_a_checkpoint_superseded_while_it_is_read_is_left_out(outbox: Path, into: Path) -> None:
    old = commit(outbox, 1, b"one", b"frozen")
    new = commit(outbox, 2, b"two", b"frozen")
    kept = frozenset(new.blobs())
    collected = bring(Meddled(outbox, lambda: supersede(outbox, old, kept)), into)
    assert [manifest.name for manifest in collected.manifests] == [new.name]
    assert collected.corrupt == ()


def test_a_missing_blob_is_corruption(outbox: Path, into: Path) -> None:
    good, bad = commit(outbox, 1, b"one"), commit(outbox, 2, b"two")
    for sha256 in bad.blobs():
        (outbox / "blobs" / sha256).unlink()
    collected = bring(FolderOutbox(outbox), into)
    assert [manifest.name for manifest in collected.manifests] == [good.name]
    [(name, reason)] = collected.corrupt
    assert name == bad.name
    assert "missing" in reason


def test_a_torn_blob_never_arrives(outbox: Path, into: Path) -> None:
    bad = commit(outbox, 1, b"a long content")
    for sha256 in bad.blobs():
        (outbox / "blobs" / sha256).write_bytes(b"a long con")
    assert [name for name, _ in bring(FolderOutbox(outbox), into).corrupt] == [bad.name]
    assert list((into / "blobs").iterdir()) == []


def test_an_unreadable_manifest_is_named(outbox: Path, into: Path) -> None:
    manifest = commit(outbox, 1, b"one")
    (outbox / "checkpoints" / manifest.name / "manifest.json").write_bytes(b"{}")
    assert [name for name, _ in bring(FolderOutbox(outbox), into).corrupt] == [manifest.name]


def test_what_was_never_whole_is_tried_a_few_times_and_in_the_last_look(outbox: Path, into: Path) -> None:
    manifest = commit(outbox, 1, b"one")
    path = outbox / "checkpoints" / manifest.name / "manifest.json"
    path.write_bytes(b"{}")
    tries = [len(bring(FolderOutbox(outbox), into).corrupt) for _ in range(5)]
    assert tries == [1, 1, 1, 0, 0]
    assert [name for name, _ in bring(FolderOutbox(outbox), into, last=True).corrupt] == [manifest.name]
    path.write_bytes(manifest.encode())
    assert bring(FolderOutbox(outbox), into).manifests == ()
    assert bring(FolderOutbox(outbox), into, last=True).manifests == (manifest,)


def test_the_last_look_tries_again_what_had_no_room_beside_the_new(outbox: Path, into: Path) -> None:
    corrected = commit(outbox, 1, b"one")
    path = outbox / "checkpoints" / corrected.name / "manifest.json"
    path.write_bytes(b"{}")
    bring(FolderOutbox(outbox), into)
    path.write_bytes(corrected.encode())
    new = [commit(outbox, step, b"new") for step in range(2, 2 + bounds.COLLECT_CHECKPOINTS_MAX)]
    first = bring(FolderOutbox(outbox), into, last=True)
    assert (first.manifests, first.more) == (tuple(new), True)
    second = bring(FolderOutbox(outbox), into, last=True)
    assert corrected in second.manifests
    assert not second.more


def test_the_last_look_ends_however_much_is_never_whole(outbox: Path, into: Path) -> None:
    for step in range(2 * bounds.COLLECT_CHECKPOINTS_MAX + 2):
        made = commit(outbox, step, b"data")
        (outbox / "checkpoints" / made.name / "manifest.json").write_bytes(b"{}")
    looks = [bring(FolderOutbox(outbox), into, last=True).more for _ in range(12)]
    assert looks[0]
    assert not looks[-1]


def test_the_last_look_finds_what_became_whole_behind_a_page_of_others(outbox: Path, into: Path) -> None:
    made = [commit(outbox, step, b"%d" % step) for step in range(1, bounds.COLLECT_CHECKPOINTS_MAX + 3)]
    paths = [outbox / "checkpoints" / each.name / "manifest.json" for each in made]
    for path in paths:
        path.write_bytes(b"{}")
    for _ in range(4):
        bring(FolderOutbox(outbox), into)
    paths[-1].write_bytes(made[-1].encode())
    found: list[str] = []
    while (look := bring(FolderOutbox(outbox), into, last=True)).more:
        found += [manifest.name for manifest in look.manifests]
    assert made[-1].name in (*found, *(manifest.name for manifest in look.manifests))


def test_the_last_look_ends_where_whole_checkpoints_are_refused_later(outbox: Path, into: Path) -> None:
    """The engine refuses those of another run after each look."""
    for step in range(bounds.COLLECT_CHECKPOINTS_MAX + 2):
        commit(outbox, step, b"data")
    for _ in range(12):
        look = bring(FolderOutbox(outbox), into, last=True)
        for manifest in look.manifests:
            refuse(into / "checkpoints" / manifest.name)
        shutil.rmtree(into / "blobs")
    assert not look.more


def test_folders_without_a_manifest_keep_no_checkpoint_waiting(outbox: Path, into: Path) -> None:
    """A script can write here, and an agent may fail to remove a folder after it took its manifest away."""
    for step in range(2 * bounds.COLLECT_CHECKPOINTS_MAX):
        (outbox / "checkpoints" / CheckpointRef(step, 1, "abc").name).mkdir(parents=True)
    whole = commit(outbox, 1000, b"whole")
    collected = bring(FolderOutbox(outbox), into, last=True)
    assert collected.manifests == (whole,)
    assert not collected.more


def test_what_is_not_a_checkpoint_is_ignored(outbox: Path, into: Path) -> None:
    (outbox / "checkpoints" / "notes").mkdir(parents=True)
    (outbox / "checkpoints" / ".tmp-0000000001-g01-abc").mkdir()
    collected = bring(FolderOutbox(outbox), into)
    assert (collected.manifests, collected.corrupt) == ((), ())


def test_a_checkpoint_stays_returned_until_its_blobs_are_taken_away(outbox: Path, into: Path) -> None:
    manifest = commit(outbox, 1, b"one")
    assert bring(FolderOutbox(outbox), into).manifests == (manifest,)
    supersede(outbox, manifest)  # retired by the agent; the engine has not published it yet
    assert bring(FolderOutbox(outbox), into).manifests == (manifest,)
    for blob in (into / "blobs").iterdir():
        blob.unlink()
    assert bring(FolderOutbox(outbox), into).manifests == ()


def test_a_blob_that_two_checkpoints_share_is_brought_again_for_the_second(outbox: Path, into: Path) -> None:
    commit(outbox, 1, b"one", b"frozen")
    bring(FolderOutbox(outbox), into)
    for blob in (into / "blobs").iterdir():
        blob.unlink()
    second = commit(outbox, 2, b"two", b"frozen")
    assert bring(FolderOutbox(outbox), into).manifests == (second,)
    assert {blob.name for blob in (into / "blobs").iterdir()} == set(second.blobs())


def test_growing_files_are_continued_and_whole_ones_replaced(outbox: Path, into: Path) -> None:
    (outbox / "log").mkdir(parents=True)
    (outbox / "log" / "000001.log").write_bytes(b"first\n")
    (outbox / "status.json").write_bytes(b"1")
    collect(FolderOutbox(outbox), into)
    (into / "log" / "000001.log").write_bytes(b"FIRST\n")  # proves that an existing file is not fetched again
    with (outbox / "log" / "000001.log").open("ab") as log:
        log.write(b"second\n")
    (outbox / "log" / "000002.log").write_bytes(b"third\n")
    (outbox / "status.json").write_bytes(b"2")
    collect(FolderOutbox(outbox), into)
    assert (into / "log" / "000001.log").read_bytes() == b"FIRST\nsecond\n"
    assert (into / "log" / "000002.log").read_bytes() == b"third\n"
    assert (into / "status.json").read_bytes() == b"2"
    assert not (into / "result.json").exists()


def test_what_a_session_writes_after_the_verification_reaches_nobody(outbox: Path, into: Path) -> None:
    """It keeps its blob open and changes the bytes after they were fetched."""
    manifest = commit(outbox, 5, b"weights")
    [sha256] = manifest.blobs()
    with (outbox / "blobs" / sha256).open("r+b") as kept_open:
        assert bring(FolderOutbox(outbox), into).manifests == (manifest,)
        kept_open.write(b"altered")
        kept_open.flush()
    assert (into / "blobs" / sha256).read_bytes() == b"weights"


@pytest.mark.parametrize("shape", ["link", "pipe", "folder", "sparse"])
def test_what_is_no_plain_file_of_a_blobs_size_is_no_blob(outbox: Path, into: Path, shape: str) -> None:
    manifest = commit(outbox, 5, b"weights")
    blob = outbox / "blobs" / next(iter(manifest.blobs()))
    blob.rename(outbox / "weights")
    match shape:
        case "link":
            blob.symlink_to(outbox / "weights")
        case "pipe":
            os.mkfifo(blob)
        case "folder":
            blob.mkdir()
        case "sparse":
            with blob.open("wb") as file:
                file.truncate(1 << 40)
    found = bring(FolderOutbox(outbox), into)
    assert found.manifests == ()
    assert [name for name, _ in found.corrupt] == [manifest.name]
    assert list((into / "blobs").iterdir()) == []


class Late(FolderOutbox):
    """An outbox one blob of which cannot be downloaded yet."""

    def __init__(self, folder: Path, late: str) -> None:
        super().__init__(folder)
        self._late = late

    def blob(self, sha256: str, target: Path) -> bool:
        found = super().blob(sha256, target)
        if sha256 == self._late:
            raise Transient("it cannot be downloaded yet")
        return found


def test_of_an_outbox_that_was_given_up_the_rest_is_brought(outbox: Path, into: Path) -> None:
    whole = commit(outbox, 1, b"one", b"frozen")
    partial = commit(outbox, 2, b"two", b"frozen")
    late = Late(outbox, hashlib.sha256(b"two").hexdigest())
    with pytest.raises(Transient):
        collect(late, into, last=True)
    found = collect(Forgone(late), into, last=True)
    assert found.manifests == (whole,)
    assert [name for name, _ in found.corrupt] == [partial.name]
    assert len(list((into / "blobs").iterdir())) == 2, "nothing half-written is left"
