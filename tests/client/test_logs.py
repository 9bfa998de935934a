"""The newest lines of a run's logs, read from their end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import live
from orchestrator.client.logs import _TAIL_BYTES
from orchestrator.home import Folders
from tests.client.homes import append, run_after
from tests.core.runs import RUN, running, seen


def write(home: Path, session: int, segment: int, text: str) -> Path:
    path = home / "runs" / RUN / f"{RUN}-s{session:02d}" / "log" / f"{segment:06d}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def tail(home: Path, lines: int) -> list[str]:
    return [line.text for line in Client(home).run(RUN).logs(tail=lines)]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    run_after(tmp_path)
    write(tmp_path, 1, 1, "one\ntwo\n")
    write(tmp_path, 1, 2, "three\n")
    write(tmp_path, 2, 1, "four\n\nsix")
    return tmp_path


@pytest.mark.parametrize("lines", range(9))
def test_the_newest_lines_over_all_sessions(home: Path, lines: int) -> None:
    whole = ["one", "two", "three", "four", "", "six"]
    assert tail(home, lines) == (whole[-lines:] if lines else [])


def test_no_more_is_read_of_a_large_log_than_its_end(tmp_path: Path) -> None:
    run_after(tmp_path)
    path = write(tmp_path, 1, 1, "")
    with path.open("r+b") as stream:
        stream.truncate(1 << 40)  # a terabyte of nothing: reading it would take hours
        stream.seek(0, 2)
        stream.write(b"\nlast but one\n" + b"x" * (3 * _TAIL_BYTES) + b"\n")
    assert tail(tmp_path, 2) == ["last but one", "x" * (3 * _TAIL_BYTES)]


def test_what_a_platform_shows_of_the_present_session_is_the_newest(home: Path) -> None:
    append(home, running())
    (home / "runs" / RUN / f"{RUN}-s02").rename(home / "runs" / RUN / f"{RUN}-s00")
    (home / "runs" / RUN / f"{RUN}-s01").rename(home / "runs" / RUN / "elsewhere")
    record = Client(home).run(RUN).record()
    live.Writer(Folders(home)).reading(record, replace(seen(), log="seven\neight\nnine"), 5.0)
    assert tail(home, 2) == ["eight", "nine"]
    assert tail(home, 4) == ["six", "seven", "eight", "nine"]
