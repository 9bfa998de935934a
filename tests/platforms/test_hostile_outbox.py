"""What a hostile script may put into its outbox: odd files, floods and holes affect only that session."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator import files
from orchestrator.clock import SystemClock
from orchestrator.core import bounds, wire
from orchestrator.core.action import Collect, Done
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.order import AgentStatus, Order, Outcome
from orchestrator.core.session import Sighting
from orchestrator.engine.perform import Backends, perform
from orchestrator.files import Odd, read_small
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Platform
from orchestrator.session import saying
from orchestrator.session.folder import SessionFolder
from orchestrator.session.outbox import Collected, FolderOutbox, bring, collect
from orchestrator.stores.memory import MemoryStore
from tests.conformance.test_platforms import any_order
from tests.odd_files import (
    Shape,
    a_folder,
    a_link_to_a_device,
    a_link_to_itself,
    a_pipe,
    a_socket,
    not_to_be_read,
)
from tests.platforms.test_outbox import commit
from tests.seen import observed, reading

STATUS = AgentStatus("abc", 3, 1.0, "training", step=7, steps_per_second=2.0)
RESULT = b'{"incarnation": "abc", "outcome": "completed", "exit_code": 0, "step": 7, "message": "done"}'
SECRET = "the key of the home"


def a_link(path: Path) -> None:
    target = path.parents[3] / "secret"
    target.write_text(SECRET)
    path.symlink_to(target)


SHAPES: tuple[Shape, ...] = (
    a_folder, a_link, a_pipe, a_socket, a_link_to_a_device, a_link_to_itself, not_to_be_read,
)  # fmt: skip


@pytest.fixture
def session(tmp_path: Path) -> SessionFolder:
    """A session as its agent left it."""
    found = SessionFolder(tmp_path / "sessions" / "a-s01")
    (found.outbox / "log").mkdir(parents=True)
    (found.outbox / "log" / "000001.log").write_text("a line\n")
    (found.outbox / "incarnation").write_text("abc\n")
    (found.outbox / "progress.jsonl").write_text('{"step": 7}\n')
    (found.outbox / "status.json").write_bytes(wire.encode(STATUS))
    (found.outbox / "result.json").write_bytes(RESULT)
    return found


@pytest.mark.parametrize(
    "name", ["status.json", "result.json", "progress.jsonl", "log/000001.log", "incarnation"]
)
def test_a_second_name_of_the_ledger_is_not_opened(session: SessionFolder, tmp_path: Path, name: str) -> None:
    """Opening and closing it drops SQLite's locks (see test_inputs)."""
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}"):
        wal = tmp_path / "ledger.sqlite-wal"
        before = wal.stat().st_ino
        place = session.outbox / name
        place.unlink(missing_ok=True)
        place.hardlink_to(tmp_path / "ledger.sqlite")
        with pytest.raises(Odd, match="ledger's own file"):
            files.read(session.outbox, name, 1 << 30)
        assert read_small(place, 1 << 30) is None
        collect(FolderOutbox(session.outbox), tmp_path / "into")
        glance = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('SELECT * FROM events')"
        subprocess.run([sys.executable, "-c", glance, str(tmp_path / "ledger.sqlite")], check=True)
        assert wal.stat().st_ino == before


def replaced(session: SessionFolder, name: str, shape: Shape) -> None:
    path = session.outbox / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    shape(path)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("name", ["incarnation", "status.json", "result.json"])
def test_a_session_is_read_beside_an_odd_file(session: SessionFolder, name: str, shape: Shape) -> None:
    replaced(session, name, shape)
    found = reading(session)
    assert found.sighting is Sighting.ENDED
    assert any(name in note for note in found.notes), found
    assert found == reading(session), "the same words each time"
    assert SECRET not in repr(found)
    if name != "result.json":
        assert found.result is not None
    else:
        assert found.ending is Outcome.LOST


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize(
    "name",
    ["incarnation", "status.json", "result.json", "progress.jsonl", "log/000001.log", "log/000002.log"],
)
def test_the_rest_is_collected_beside_an_odd_file(
    session: SessionFolder, tmp_path: Path, name: str, shape: Shape
) -> None:
    good = commit(session.outbox, 7, b"seven")
    replaced(session, name, shape)
    into = tmp_path / "into"
    found = collect(FolderOutbox(session.outbox), into)
    assert [manifest.name for manifest in found.manifests] == [good.name]
    assert any(name in note for note in found.notes), found.notes
    kept = {path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()}
    expected = {"incarnation", "status.json", "result.json", "progress.jsonl", "log/000001.log"} - {name}
    assert expected <= kept
    assert name not in kept
    assert not any(SECRET in path.read_text(errors="replace") for path in into.rglob("*") if path.is_file())


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
@pytest.mark.parametrize("which", ["manifest", "blob"])
def test_an_odd_checkpoint_is_one_that_is_left_out(
    session: SessionFolder, tmp_path: Path, which: str, shape: Shape
) -> None:
    bad, good = commit(session.outbox, 7, b"seven"), commit(session.outbox, 8, b"eight")
    [sha256] = bad.blobs()
    name = f"checkpoints/{bad.name}/manifest.json" if which == "manifest" else f"blobs/{sha256}"
    replaced(session, name, shape)
    found = bring(FolderOutbox(session.outbox), tmp_path / "into")
    assert [manifest.name for manifest in found.manifests] == [good.name]
    assert [name for name, _ in found.corrupt] == [bad.name]


@pytest.mark.parametrize("name", ["outbox", "outbox/log", "outbox/checkpoints", "outbox/blobs"])
def test_a_folder_that_leads_elsewhere_is_not_followed(
    session: SessionFolder, tmp_path: Path, name: str
) -> None:
    commit(session.outbox, 7, b"seven")
    path = session.root / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    into = tmp_path / "into"
    found = collect(FolderOutbox(session.outbox), into)
    assert len(found.manifests) == (name == "outbox/log")
    assert found.notes or found.corrupt
    if name == "outbox":
        assert not (into / "status.json").exists()
        assert any("outbox is a link" in note for note in reading(session).notes)


@pytest.mark.parametrize("name", ["status.json", "result.json", "progress.jsonl", "log/000001.log"])
def test_a_device_is_not_opened(session: SessionFolder, tmp_path: Path, name: str) -> None:
    """A real device, such as a session that runs as root can make. It has no driver, so opening it fails."""
    try:
        replaced(session, name, lambda path: os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(240, 0)))
    except PermissionError as error:
        pytest.skip(f"this user cannot create a device: {error}")
    notes = collect(FolderOutbox(session.outbox), tmp_path / "into").notes
    assert [note for note in notes if f"{name} is a device" in note]
    assert not (tmp_path / "into" / name).exists()
    assert reading(session).sighting is Sighting.ENDED


def test_one_odd_session_hides_no_other(tmp_path: Path) -> None:
    platform = catalog.build("here", "process", {}, folder=tmp_path / "sessions", clock=SystemClock())
    for name in ("a-s01", "b-s01", "c-s01"):
        folder = tmp_path / "sessions" / name
        (folder / "outbox").mkdir(parents=True)
        (folder / "outbox" / "incarnation").write_text("abc")
        (folder / "order.json").write_bytes(wire.encode(any_order(name, 10, 1)))
    (tmp_path / "sessions" / "b-s01" / "order.json").unlink()
    os.mkfifo(tmp_path / "sessions" / "b-s01" / "order.json")
    for name in ("lock", "killed", "launched"):
        os.mkfifo(tmp_path / "sessions" / "b-s01" / name)
    (tmp_path / "sessions" / "c-s01" / "lock").symlink_to("lock")
    seen = observed(platform, ["a-s01", "b-s01", "c-s01", "d-s01"])
    assert set(seen) == {"a-s01", "b-s01", "c-s01", "d-s01"}
    assert seen["a-s01"].sighting is Sighting.ENDED
    assert seen["c-s01"].sighting is Sighting.ENDED, "a link is not a lock"
    assert seen["d-s01"].sighting is Sighting.ABSENT


# --- Numbers and sizes ------------------------------------------------------------------------------------


def test_a_status_of_megabytes_is_never_read(session: SessionFolder) -> None:
    (session.outbox / "status.json").write_bytes(b" " * (14 << 20))
    [note] = reading(session).notes
    assert note == "outbox/status.json is larger than 64 kB: it was not read"


def test_a_result_beyond_its_bound_is_never_read(session: SessionFolder, tmp_path: Path) -> None:
    padded = RESULT + b" " * (bounds.RESULT_BYTES_MAX - len(RESULT))
    (session.outbox / "result.json").write_bytes(padded)
    assert reading(session).result is not None
    (session.outbox / "result.json").write_bytes(padded + b" ")
    found = reading(session)
    assert found.ending is Outcome.LOST
    assert any("result.json is larger than 256 kB" in note for note in found.notes)
    assert any("256 kB" in note for note in collect(FolderOutbox(session.outbox), tmp_path / "into").notes)
    assert not (tmp_path / "into" / "result.json").exists()


def test_a_manifest_beyond_its_bound_is_one_that_is_left_out(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large, good = commit(session.outbox, 7, b"seven", b"more"), commit(session.outbox, 8, b"eight")
    monkeypatch.setattr(bounds, "MANIFEST_BYTES_MAX", len(large.encode()) - 1)
    found = bring(FolderOutbox(session.outbox), tmp_path / "into")
    assert [manifest.name for manifest in found.manifests] == [good.name]
    [(name, reason)] = found.corrupt
    assert name == large.name
    assert "manifest.json is larger than" in reason, "it is not read at all"


def test_what_a_status_says_is_within_bounds_and_what_was_left_out_is_named() -> None:
    wild = {
        "incarnation": "abc", "heartbeat": 5, "written_at": 1e300, "state": "x" * 500, "step": 2**63,
        "steps_per_second": 5e-324, "loss": 1e308, "checkpoint": "9999999999999999999-g01-abc",
        "checkpoint_step": 9999999999999999999, "save_seconds": -1.0, "deadline": 1e17,
        "warnings": [f"{i}" + "w" * 5000 for i in range(30)],
    }  # fmt: skip
    found = saying.status(json.dumps(wild | {"warnings": []}).encode())
    assert found is not None
    assert (found.heartbeat, found.written_at, found.loss) == (5, 0.0, 1e308)
    assert (found.step, found.steps_per_second, found.checkpoint) == (None, None, None)
    assert (found.checkpoint_step, found.save_seconds, found.deadline) == (None, None, None)
    for name in ("step", "steps_per_second", "checkpoint", "written_at", "deadline"):
        assert f"its status has an impossible {name}, which is left out" in found.warnings
    flooded = saying.within_bounds(AgentStatus("abc", 1, 1.0, "x", warnings=("w" * 5000,) * 30))
    assert len(flooded.warnings) == 20
    assert all(len(each.encode()) <= 1024 for each in flooded.warnings)
    assert saying.status(json.dumps(wild).encode()) is None, "150 kB are too large for a status"


@pytest.mark.parametrize("step", ["1" + "0" * 400, "1" + "0" * 5000, "9223372036854775808"])
def test_a_result_with_an_impossible_step_ends_the_session_all_the_same(
    session: SessionFolder, step: str
) -> None:
    session.outbox.joinpath("result.json").write_bytes(RESULT.replace(b"7", step.encode()))
    found = reading(session)
    assert found.sighting is Sighting.ENDED
    assert found.result.step is None if found.result else found.ending is Outcome.CRASHED


# --- Floods -----------------------------------------------------------------------------------------------


def test_a_flood_of_checkpoints_comes_a_page_at_a_time(session: SessionFolder, tmp_path: Path) -> None:
    made = [commit(session.outbox, step, b"tiny") for step in range(1, 150)]
    outbox, into = FolderOutbox(session.outbox), tmp_path / "into"
    pages: list[Collected] = []
    while not pages or pages[-1].more:
        pages.append(bring(outbox, into, sync=False))
        for blob in (into / "blobs").iterdir():
            blob.unlink()
    assert [len(page.manifests) for page in pages] == [64, 64, 21]
    assert [m.name for page in pages for m in page.manifests] == [m.name for m in made]
    assert bring(outbox, into).manifests == ()


def test_what_is_never_whole_keeps_nothing_waiting(session: SessionFolder, tmp_path: Path) -> None:
    for step in range(1, 100):
        bad = commit(session.outbox, step, b"bad")
        (session.outbox / "checkpoints" / bad.name / "manifest.json").write_bytes(b"{}")
    good = commit(session.outbox, 500, b"good")
    outbox, into = FolderOutbox(session.outbox), tmp_path / "into"
    first, second = bring(outbox, into, sync=False), bring(outbox, into, sync=False)
    assert (len(first.corrupt), first.more) == (64, True)
    assert [manifest.name for manifest in second.manifests] == [good.name]
    assert not second.more
    third = bring(outbox, into, sync=False)
    assert not third.more
    assert 0 < len(third.corrupt) <= 64


def test_beyond_a_sessions_bound_only_the_newest_comes(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "SESSION_CHECKPOINTS_MAX", 3)
    made = [commit(session.outbox, step, b"tiny") for step in range(1, 8)]
    outbox, into = FolderOutbox(session.outbox), tmp_path / "into"
    first = bring(outbox, into, sync=False)
    assert [m.name for m in first.manifests] == [m.name for m in made[:3]]
    second = bring(outbox, into, sync=False)
    assert made[-1].name in [manifest.name for manifest in second.manifests]
    assert made[-2].name not in [manifest.name for manifest in second.manifests]
    assert not second.more
    assert second.notes == ("it has more than 3 checkpoints: only the newest is copied",)


def test_a_collect_reports_its_page_and_that_there_is_more(tmp_path: Path) -> None:
    folder = tmp_path / "home" / "platforms" / "here"
    platform: Platform = catalog.build("here", "process", {}, folder=folder, clock=SystemClock())
    order: Order = any_order("a-s01", 10, 1)
    (folder / "a-s01").mkdir(parents=True)
    (folder / "a-s01" / "order.json").write_bytes(wire.encode(order))
    made = [commit(folder / "a-s01" / "outbox", step, b"tiny") for step in range(1, 101)]
    backends = Backends({"here": platform}, {"home": MemoryStore()}, "home", Folders(tmp_path / "home"), str)
    known: frozenset[str] = frozenset()
    pages: list[Done] = []
    while not pages or pages[-1].more:
        done = perform(Collect("a", "a-s01", "here", 1, "abc", known, last=True), backends)
        assert isinstance(done, Done), done
        known |= {each.name for each in done.checkpoints}
        pages.append(done)
    assert [len(page.checkpoints) for page in pages] == [64, 36]
    assert known == {manifest.name for manifest in made}


def test_a_sparse_checkpoint_and_a_sparse_progress_are_not_read(
    session: SessionFolder, tmp_path: Path
) -> None:
    with (session.outbox / "progress.jsonl").open("wb") as file:
        file.truncate(1 << 40)
    sparse = session.outbox / "blobs" / ("0" * 64)
    sparse.parent.mkdir()
    with sparse.open("wb") as file:
        file.truncate(256 << 20)
    files_ = tuple(FileEntry(f"f{i}", 256 << 20, (Part(f"{i:064}", 256 << 20),)) for i in range(5))
    manifest = Manifest("a", CheckpointRef(1, 1, "abc"), 8, files_)
    (session.outbox / "checkpoints" / manifest.name).mkdir(parents=True)
    (session.outbox / "checkpoints" / manifest.name / "manifest.json").write_bytes(manifest.encode())
    outbox = FolderOutbox(session.outbox)
    with pytest.raises(Odd, match="sparse files"):  # before it has asked for the fifth of its blobs
        for number in range(5):
            assert outbox.blob("0" * 64, tmp_path / f"target-{number}")
    found = collect(FolderOutbox(session.outbox), tmp_path / "into")
    assert any("progress.jsonl is a sparse file" in note for note in found.notes)
    assert not (tmp_path / "into" / "progress.jsonl").exists()


def test_names_beyond_their_bound_are_not_looked_at_and_a_note_says_so(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LISTED_MAX", 5)
    for step in range(1, 10):
        commit(session.outbox, step, b"tiny")
    for number in range(2, 10):
        (session.outbox / "log" / f"{number:06d}.log").write_text("a line\n")
    into = tmp_path / "into"
    found = collect(FolderOutbox(session.outbox), into)
    assert len(found.manifests) == len(list((into / "log").iterdir())) == 5
    assert found.notes == (
        "outbox/checkpoints has 5 names or more: the others were not read",
        "outbox/log has 5 names or more: the others were not read",
    )
    assert (into / "result.json").exists()


def test_a_flood_of_log_comes_in_pieces_and_of_the_whole_the_middle_goes(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "COLLECT_LOG_BYTES_MAX", 4000)
    monkeypatch.setattr(bounds, "SESSION_LOG_BYTES_MAX", 16_000)
    for number in range(1, 41):
        (session.outbox / "log" / f"{number:06d}.log").write_bytes(b"x" * 1000)
    into = tmp_path / "into"
    sizes, notes = [], set()
    for _ in range(12):
        before = _bytes(into / "log")
        notes |= set(collect(FolderOutbox(session.outbox), into).notes)
        sizes.append(_bytes(into / "log") - before)
    assert max(sizes) <= 4000
    assert _bytes(into / "log") <= 16_000
    kept = sorted(path.stem for path in (into / "log").iterdir())
    assert kept[:2] == ["000001", "000002"]
    assert kept[-1] == "000040"
    assert any("the middle of it is left out" in note for note in notes)


@pytest.mark.parametrize(
    ("bound", "most"), [("COLLECT_LOG_BYTES_MAX", 2500), ("COLLECT_LOG_SEGMENTS_MAX", 3)]
)
def test_of_a_long_log_the_end_comes_with_a_later_collect(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(bounds, bound, most)
    for number in range(1, 9):
        (session.outbox / "log" / f"{number:06d}.log").write_bytes(b"x" * 1000)
    (session.outbox / "log" / "000009.log").write_text("Traceback")
    into = tmp_path / "into"
    pages: list[Collected] = []
    while not pages or pages[-1].more:
        assert len(pages) < 20
        pages.append(collect(FolderOutbox(session.outbox), into))
    assert len(pages) > 2
    assert (into / "log" / "000009.log").read_text() == "Traceback"
    assert _bytes(into / "log") == 8009
    assert not any(page.notes for page in pages)


def test_a_log_of_nothing_but_odd_segments_ends_the_collecting(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "COLLECT_LOG_SEGMENTS_MAX", 3)
    for number in range(2, 9):
        (session.outbox / "log" / f"{number:06d}.log").mkdir()
    into = tmp_path / "into"
    first, second = (collect(FolderOutbox(session.outbox), into) for _ in range(2))
    assert first.more, "the first segment came"
    assert not second.more
    assert "the log has too many unreadable segments: not all of it was copied" in second.notes


def test_of_a_segment_beyond_its_bound_the_beginning_comes(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "LOG_SEGMENT_BYTES_MAX", 1000)
    (session.outbox / "log" / "000001.log").write_bytes(b"x" * 1001)
    (session.outbox / "log" / "000002.log").write_bytes(b"y" * 1000)
    found = collect(FolderOutbox(session.outbox), tmp_path / "into")
    kept = [path.stat().st_size for path in sorted((tmp_path / "into" / "log").iterdir())]
    assert kept == [1000, 1000]
    assert found.notes == ("a log segment is larger than 1000 bytes: the rest was not copied",)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir()) if folder.is_dir() else 0


def test_a_flood_of_progress_comes_in_pieces_up_to_its_bound(
    session: SessionFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "COLLECT_PROGRESS_BYTES_MAX", 1000)
    monkeypatch.setattr(bounds, "SESSION_PROGRESS_BYTES_MAX", 2500)
    (session.outbox / "progress.jsonl").write_bytes(b'{"step": 1}\n' * 1000)
    into = tmp_path / "into"
    found = [collect(FolderOutbox(session.outbox), into) for _ in range(3)]
    assert [each.more for each in found] == [True, True, False]
    assert (into / "progress.jsonl").stat().st_size == 2500
    assert any("the rest was not copied" in note for note in found[-1].notes)


def test_no_more_descriptors_are_open_than_before(session: SessionFolder, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for shape in SHAPES:
        (session.outbox / "status.json").rename(tmp_path / "aside")
        shape(session.outbox / "status.json")
        reading(session)
        with suppress(Odd):
            files.read(session.root, "outbox/status.json/x", 10)
        (session.outbox / "status.json").rename(tmp_path / f"odd-{shape.__name__}")
        (tmp_path / "aside").rename(session.outbox / "status.json")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
