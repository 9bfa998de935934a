"""The order in which a commit reaches the disk. The outbox never shows an incomplete checkpoint, and a power
loss never leaves a manifest without its blobs. A planted bug shows that the watcher would notice."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

from orchestrator.agent import folder
from orchestrator.agent.folder import Folder
from orchestrator.clock import SystemClock
from orchestrator.core.checkpoint import decode
from orchestrator.core.job import Keep
from orchestrator.session import committing
from orchestrator.session.committing import Outbox
from orchestrator.session.outbox import FolderOutbox, bring
from tests.agent.sessions import new_order

CHANGES = frozenset({"open", "os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"})
_watching: list[Callable[[str, tuple[object, ...]], None]] = []


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    """Python calls this before every change to a folder. A hook cannot be removed, so it does nothing unless
    a watcher is set."""
    if _watching and event in CHANGES:
        watcher = _watching.pop()  # the watcher opens files, too, which must not call it again
        try:
            watcher(event, arguments)
        finally:
            _watching.append(watcher)


sys.addaudithook(_audit)


def _within(descriptor: object, name: object) -> Path:
    """The path of a name in an open folder."""
    return Path(f"/proc/self/fd/{descriptor}").readlink() / str(name)


class Disk:
    """Looks at an outbox before each change to it, in two ways: as a reader at that moment, and as a reader
    after a power loss, who sees only what was synced."""

    def __init__(self, outbox: Path, scratch: Path, patch: pytest.MonkeyPatch) -> None:
        self._outbox = outbox
        self._scratch = scratch
        self._synced: set[int] = set()  # inodes
        self._names_synced: dict[Path, set[str]] = {}
        self.faults: list[str] = []
        self.looks = 0
        real = os.fsync

        def fsync(descriptor: int) -> None:
            real(descriptor)
            self._note_sync(descriptor)

        patch.setattr(os, "fsync", fsync)

    def _note_sync(self, descriptor: int) -> None:
        found = os.fstat(descriptor)
        self._synced.add(found.st_ino)
        if stat.S_ISDIR(found.st_mode):
            folder = Path(f"/proc/self/fd/{descriptor}").readlink()
            self._names_synced[folder] = {entry.name for entry in folder.iterdir()}

    @contextmanager
    def watched(self) -> Iterator[None]:
        _watching.append(self._before)
        try:
            yield
        finally:
            _watching.pop()
        self.look("at the end")

    def _before(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and not self._writes(arguments):
            return
        self.look(f"before {event} of {Path(str(arguments[0])).name}")
        if event == "os.rename" and str(arguments[1]).endswith("manifest.json"):
            draft, target = _within(arguments[2], arguments[0]), _within(arguments[3], arguments[1])
            self._look_after_a_loss_of_power(draft, target.parent.name)

    @staticmethod
    def _writes(arguments: tuple[object, ...]) -> bool:
        flags = arguments[2]
        return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))

    def look(self, when: str) -> None:
        self.looks += 1
        into = self._scratch / str(self.looks)
        found = bring(FolderOutbox(self._outbox), into, sync=False)
        self.faults += [f"{when}: {name} {reason}" for name, reason in found.corrupt]
        shutil.rmtree(into)

    def _look_after_a_loss_of_power(self, manifest: Path, name: str) -> None:
        blobs = self._outbox / "blobs"
        lasting = self._names_synced.get(blobs, set())
        for sha256 in decode(name, manifest.read_bytes()).blobs():
            if sha256 not in lasting:
                self.faults.append(f"{name}: the name of blob {sha256[:12]} was not synced")
            elif (blobs / sha256).stat().st_ino not in self._synced:
                self.faults.append(f"{name}: the bytes of blob {sha256[:12]} were not synced")


def commit_three(tmp_path: Path, patch: pytest.MonkeyPatch) -> Disk:
    """Three commits, of whole files and of files in parts, in an outbox that keeps two."""
    folder = Folder(tmp_path / "session")
    folder.root.mkdir()
    folder.lay_out()
    order = new_order("train.py", keep=Keep(last=1))
    outbox = Outbox(folder, order, "abc", {}, SystemClock(), 1000)
    disk = Disk(folder.outbox, tmp_path / "scratch", patch)
    for step in (1, 2, 3):
        saved = folder.checkpoints / f"step-{step}"
        saved.mkdir()
        (saved / "frozen").write_bytes(b"the same")
        (saved / "small").write_bytes(b"%d" % step)
        (saved / "large").write_bytes(b"%d" % step * 2500)
        with disk.watched():
            assert outbox.commit(saved) is not None
    return disk


def test_at_no_moment_is_there_a_checkpoint_that_is_not_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = commit_three(tmp_path, monkeypatch)
    assert disk.faults == []
    assert disk.looks > 30  # so many changes were watched


def manifest_first(patch: pytest.MonkeyPatch) -> None:
    """The planted bug: blobs are linked after the manifest."""
    link, write = Outbox._link, folder.write_whole
    late: list[tuple[Outbox, FileIO, str]] = []

    def remember(self: Outbox, file: FileIO, digest: str) -> None:
        late.append((self, FileIO(os.dup(file.fileno())), digest))

    patch.setattr(Outbox, "_link", remember)

    def write_then_link(path: Path, data: bytes) -> None:
        write(path, data)
        for self, file, digest in late:
            with file:
                link(self, file, digest)
        late.clear()

    patch.setattr(committing, "write_whole", write_then_link)


def nothing_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committing, "sync_folder", lambda _folder: None)


@pytest.mark.parametrize(
    ("plant", "told"), [(manifest_first, "is missing"), (nothing_synced, "was not synced")]
)
def test_a_commit_in_another_order_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert any(told in fault for fault in commit_three(tmp_path, monkeypatch).faults)
