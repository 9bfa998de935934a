"""The log and the progress file, with input written by the tests."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.agent.log import Log
from orchestrator.agent.progress import Progress
from orchestrator.agent.relay import Relay
from orchestrator.clock import SystemClock
from orchestrator.core import bounds
from orchestrator.core.mask import Mask


def text(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.log")))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
def test_a_secret_is_hidden_however_it_is_torn(tmp_path: Path, size: int) -> None:
    log = Log(tmp_path, SystemClock(), 1 << 20, 1 << 26)
    log.hide(Mask(["secret-one", "secret-two!", "abc"]))
    said = b"x secret-one secret-on secret-two!secret-one\nabc secret-tw"
    for at in range(0, len(said), size):
        log.write(said[at : at + size])
    log.write(b"", last=True)
    assert text(tmp_path) == b"x *** secret-on ******\nabc secret-tw"
    assert log.tail() == "x *** secret-on ******\nabc secret-tw"


def test_segments_are_whole_lines_and_a_line_of_the_agent_stands_alone(tmp_path: Path) -> None:
    log = Log(tmp_path, SystemClock(), 100, 1000)
    for number in range(30):
        log.write(f"line {number:02d} of thirty\n".encode())
    log.write(b"unfinished")
    log.say("a word of the agent's own")
    for path in tmp_path.glob("*.log"):
        assert path.stat().st_size <= 100
    lines = text(tmp_path).decode().splitlines()
    assert lines[:30] == [f"line {number:02d} of thirty" for number in range(30)]
    assert lines[30] == "unfinished"
    assert lines[31].endswith("] a word of the agent's own")


def test_the_tail_is_the_commands_last_lines_within_bounds(tmp_path: Path) -> None:
    log = Log(tmp_path, SystemClock(), 1 << 20, 1 << 26)
    log.write(b"".join(b"%d\n" % number for number in range(1000)))
    log.say("not part of it")
    assert log.tail().splitlines() == [str(number) for number in range(950, 1000)]
    log.write(b"".join(b"%d" % number * 100 + b"\n" for number in range(1000)))
    assert len(log.tail()) <= 8192
    assert log.tail().splitlines()[-1] == "999" * 100


def test_a_folder_that_takes_no_more_costs_lines_not_the_training(tmp_path: Path) -> None:
    log = Log(tmp_path / "missing", SystemClock(), 100, 1000)
    log.write(b"lost\n")
    assert log.lost == 5
    assert log.tail() == "lost"


@given(pieces=st.lists(st.binary(max_size=40)))
def test_any_bytes_are_progress_or_skipped(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("progress") / "progress.jsonl"
    progress = Progress(path, 30.0)
    for at, piece in enumerate(pieces):
        with path.open("ab") as file:
            file.write(piece)
        progress.read(float(at))
    with path.open("ab") as file:
        file.write(b'\n{"step": 7, "metrics": {"loss": 0.5}}\n')
    assert progress.read(99.0)
    assert (progress.step, progress.loss) == (7, 0.5)


def test_the_rate_is_that_of_the_last_window(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 10.0)
    assert not progress.read(0.0)
    for second in range(100):
        with path.open("a") as file:
            file.write(json.dumps({"step": second if second < 50 else 50 + 4 * (second - 50)}) + "\n")
        progress.read(float(second))
    assert progress.rate() == pytest.approx(4.0)


def test_a_torn_line_waits_for_its_end_and_a_file_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "progress.jsonl"
    progress = Progress(path, 10.0)
    path.write_text('{"step": 1, "metrics": {"loss"')
    assert not progress.read(0.0)
    with path.open("a") as file:
        file.write(": -Infinity}}\n")
    assert progress.read(1.0)
    assert (progress.step, progress.loss, progress.not_finite) == (1, None, (-math.inf, 1))
    path.write_text('{"step": 2}\n')
    assert progress.read(2.0)
    assert (progress.step, progress.unreadable) == (2, 0)


def test_reports_leave_without_the_secrets_up_to_a_bound(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    relay = Relay(source, target, Mask(["hunter2-hunter2"]))
    assert not relay.copy()
    for piece in ('{"step": 1, "note": "hunter2-', 'hunter2"}\n', '{"step": 2}\nhunter2'):
        with source.open("a") as file:
            file.write(piece)
        assert not relay.copy()
    assert target.read_text() == '{"step": 1, "note": "***"}\n{"step": 2}\n'
    relay.finish()
    assert target.read_text().endswith("\nhunter2")
    with source.open("wb") as file:  # started again
        file.write(b"anew")
    relay.finish()
    assert target.read_text().endswith("\nhunter2anew")
    with source.open("wb") as file:
        file.truncate(1 << 40)
    relay.finish()
    assert target.stat().st_size == bounds.RELAYED_PROGRESS_BYTES_MAX - len("hunter2-hunter2") + len("***")


@pytest.mark.parametrize("which", ["source", "target"])
def test_reports_that_are_a_pipe_or_a_link_hold_nobody_up(tmp_path: Path, which: str) -> None:
    for name in ("source", "target"):
        (tmp_path / name).write_text("there\n")
    (tmp_path / which).unlink()
    os.mkfifo(tmp_path / which)
    Relay(tmp_path / "source", tmp_path / "target", Mask()).finish()
    (tmp_path / which).unlink()
    (tmp_path / which).symlink_to(tmp_path / "elsewhere")
    Relay(tmp_path / "source", tmp_path / "target", Mask()).finish()
    assert not (tmp_path / "elsewhere").exists()
