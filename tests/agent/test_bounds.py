"""An agent whose script floods the log, damages files and fills the disk: its output stays within bounds."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent.folder import Folder
from orchestrator.agent.log import Log
from orchestrator.agent.progress import Progress
from orchestrator.agent.report import Report
from orchestrator.clock import SystemClock
from orchestrator.core import bounds, wire
from orchestrator.core.order import AgentStatus, Outcome, Result
from tests.agent.sessions import PATIENCE, QUICK, session

FILL = """
import os, signal, threading
def leave(*_):
    os._exit(143)
signal.signal(signal.SIGTERM, leave)
with open("filler", "wb") as file:
    file.truncate(1 << 40)
    while True:
        file.write(bytes(1 << 20))
        file.flush()
        threading.Event().wait(0.05)
"""


def test_a_script_that_fills_the_disk_is_ended_with_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "fill.py").write_text(FILL)
    with session(tmp_path / "session", "fill.py", source=source) as stay:
        result = stay.live(replace(QUICK, disk_bytes=20_000_000, disk_period=0.1))
    assert result.outcome is Outcome.CRASHED
    assert (
        "GB of disk, and its limit is 0.02 GB: raise the job's needs.disk_gb or the platform's disk_gb"
        in result.message
    )
    filled = (tmp_path / "session" / "work" / "source" / "filler").stat().st_blocks * 512
    assert filled < 2_000_000_000


def _read(path: Path, *lines: bytes) -> Progress:
    progress = Progress(path, 30.0)
    for second, line in enumerate(lines):
        with path.open("ab") as file:
            file.write(line + b"\n")
        progress.read(float(second))
    return progress


@pytest.mark.parametrize("step", [b"1" + b"0" * 308, b"9223372036854775808", b"1" + b"0" * 5000, b"1e400"])
def test_an_impossible_step_is_no_report(tmp_path: Path, step: bytes) -> None:
    progress = _read(tmp_path / "progress.jsonl", b'{"step": 1}', b'{"step": %s}' % step, b'{"step": 3}')
    assert (progress.step, progress.unreadable) == (3, 1)
    assert progress.rate() == 1.0


def test_the_highest_steps_have_a_rate_within_bounds_or_none(tmp_path: Path) -> None:
    progress = _read(tmp_path / "progress.jsonl", b'{"step": 1}', b'{"step": 9223372036854775807}')
    assert progress.step == bounds.STEP_MAX
    assert progress.rate() is None


def test_something_else_in_the_place_of_progress_is_said(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "progress.jsonl")
    progress = Progress(tmp_path / "progress.jsonl", 30.0)
    assert not progress.read(1.0)
    assert progress.odd == "progress.jsonl is a FIFO"


def test_a_line_without_an_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "progress.jsonl").write_bytes(b'{"step": ' + b"1" * (3 << 20))
    progress = Progress(tmp_path / "progress.jsonl", 30.0)
    for second in range(5):
        assert not progress.read(float(second))
    assert progress.unreadable >= 1


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "outbox").mkdir()
    return Folder(tmp_path)


def test_a_status_is_never_larger_than_what_is_read(folder: Folder) -> None:
    report = Report(folder, "abc", SystemClock(), 0.0)
    for number in range(30):
        assert report.warn(f"{number} " + "\x01" * 5000)
    report.beat("training")
    data = (folder.outbox / "status.json").read_bytes()
    assert len(data) <= bounds.STATUS_BYTES_MAX
    status = wire.decode(AgentStatus, data)
    assert 5 < len(status.warnings) <= bounds.WARNINGS_MAX
    assert status.warnings[-1].startswith("29 ")


@pytest.mark.parametrize("name", ["status.json", "result.json", ".tmp-status.json"])
def test_what_lies_in_the_way_of_the_agents_word_is_moved_aside(folder: Folder, name: str) -> None:
    if name.startswith(".tmp-"):
        os.mkfifo(folder.outbox / name)
    else:
        (folder.outbox / name).mkdir()
        (folder.outbox / name / "kept").write_text("theirs")
    report = Report(folder, "abc", SystemClock(), 0.0)
    report.beat("training")
    assert report.end(Result("abc", Outcome.COMPLETED, 0, 1, "m" * 10_000, "t" * 100_000))
    found = wire.decode(Result, (folder.outbox / "result.json").read_bytes())
    assert len(found.message.encode()) <= bounds.MESSAGE_BYTES_MAX
    assert wire.decode(AgentStatus, (folder.outbox / "status.json").read_bytes()).state == "ended"
    if not name.startswith(".tmp-"):
        assert (folder.outbox / f".tmp-aside-{name}" / "kept").read_text() == "theirs"


def test_a_log_beyond_its_bound_says_so_and_waits_for_nobody(tmp_path: Path) -> None:
    log = Log(tmp_path, SystemClock(), segment_bytes=1000, total_bytes=8000)
    os.mkfifo(tmp_path / "000002.log")

    def flood() -> None:
        for _ in range(300):
            log.write(b"x" * 99 + b"\n")

    writer = threading.Thread(target=flood, daemon=True)
    writer.start()
    writer.join(PATIENCE)
    assert not writer.is_alive()
    assert log.lost > 0
    kept = [path for path in sorted(tmp_path.iterdir()) if path.is_file()]
    text = b"".join(path.read_bytes() for path in kept)
    assert text.count(b"the log is longer than 8 kB: some earlier lines were dropped") > 1
    assert len(text) < 12_000
