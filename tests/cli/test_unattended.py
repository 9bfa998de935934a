"""What views say when nobody looks after the runs: that first, and how old their numbers are."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli import runs_table
from orchestrator.cli.running import run as call
from orchestrator.client import live
from orchestrator.client.attendance import Attendance
from orchestrator.client.health import State, Tick
from orchestrator.client.status import RunStatus
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.event import Completed
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.home import Folders
from tests.client.homes import ledger_of, run_after
from tests.core.runs import RUN, ended, running, seen
from tests.core.runs import record as record_after

AGO = 720.0


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A home whose controller trained a run until 12 minutes ago, and was killed then."""
    (tmp_path / "config.yaml").write_text("platforms:\n  here: {type: process, accelerator: cpu}\n")
    run_after(tmp_path, *running())
    then = SystemClock().now() - AGO
    with ledger_of(tmp_path) as ledger:
        with ledger.take_over("up", now=then) as takeover:
            since = takeover.owner.since
        record = ledger.record(RUN)
    note = Folders(tmp_path).tick
    note.write_bytes(wire.encode(Tick(since, 0.0)))
    os.utime(note, (then, then))
    trains(tmp_path, record, then)
    return tmp_path


def trains(home: Path, record: RunRecord, at: float, *, step: int = 40) -> None:
    observation = seen(1)
    assert observation.status is not None
    status = replace(observation.status, state="training", step=step, steps_per_second=2.0, loss=0.25)
    live.Writer(Folders(home)).reading(record, replace(observation, status=status), at)


@pytest.mark.parametrize("words", [("ps",), ("show", RUN)])
def test_the_first_line_says_that_nobody_looks_after_the_runs(
    left: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(["--home", str(left), *words]) == 0
    out, err = capsys.readouterr()
    first = out.splitlines()[0]
    assert first.startswith("no controller is running since ")
    assert "(12 min ago)" in first
    assert "nothing moves until" in first
    assert "12 min ago" in out.split("\n", 1)[1], "the numbers are marked as old"
    assert "of training left" not in out
    assert err == ""
    assert call(["--home", str(left), *words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["controller"], told["controller_state"]) == (None, "absent")
    assert told["unattended_since"] == pytest.approx(SystemClock().now() - AGO, abs=60)


def test_nothing_is_said_once_every_run_is_over(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ledger_of(left) as ledger:
        over = (ended(Outcome.COMPLETED), Completed(SystemClock().now(), "at its last step"))
        ledger.append(ledger.record(RUN), over, due_at=None)
    assert call(["--home", str(left), "ps", "--all"]) == 0
    out = capsys.readouterr().out
    assert "no controller" not in out
    assert "0.25" in out, "a run that is over keeps its last loss"


def test_a_note_of_another_controller_dates_nothing(left: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Folders(left).tick.write_bytes(wire.encode(Tick(5.0, 0.0)))
    assert call(["--home", str(left), "ps"]) == 0
    assert capsys.readouterr().out.startswith("no controller is running; nothing moves until")


def test_a_training_that_stands_still_is_told_from_one_that_moves(tmp_path: Path) -> None:
    record = record_after(*running())
    for at, step in ((0.0, 40), (100.0, 41), (190.0, 41)):
        trains(tmp_path, record, at, step=step)
    found = live.read(Folders(tmp_path), RUN, f"{RUN}-s01")
    assert found is not None
    assert found.stalled_seconds is None
    trains(tmp_path, record, 280.0, step=41)
    found = live.read(Folders(tmp_path), RUN, f"{RUN}-s01")
    assert found is not None
    assert found.stalled_seconds == 180.0
    trains(tmp_path, record, 281.0, step=42)
    found = live.read(Folders(tmp_path), RUN, f"{RUN}-s01")
    assert found is not None
    assert found.stalled_seconds is None


def status_of(**changes: object) -> RunStatus:
    values: dict[str, object] = {
        "run": RUN, "name": "tiny", "phase": Phase.RUNNING, "version": 3, "due_at": None, "submitted_at": 0.0,
        "platform": "here", "accelerator": "cpu", "session": f"{RUN}-s01", "reason": "", "until": None,
        "steps_total": 1000, "accepted_step": None, "ended_at": None, "step": 41,
    }  # fmt: skip
    return RunStatus(**(values | changes))  # type: ignore[arg-type]


def test_a_table_tells_durations_and_whole_reasons() -> None:
    long = "the disk of the machine is full " * 20 + "and that is all"
    shown = runs_table.table(
        [
            status_of(launched_at=3600.0, stalled_seconds=180.0, read_at=7195.0),
            status_of(phase=Phase.FAILED, ended_at=1800.0, reason=f"{long}\nTraceback"),
        ],
        Attendance(State.TICKS),
        7200.0,
    )
    under_way, over = (dict(zip(shown.headers, row, strict=True)) for row in shown.rows)
    assert (under_way["AGE"], under_way["TOOK"], under_way["SESSION"]) == ("2.0 h", "2:00:00", "1:00:00")
    assert (over["AGE"], over["TOOK"], over["SESSION"]) == ("2.0 h", "30:00", "–")
    assert "READ" not in shown.headers, "5 s is not old"
    notes = [note for _, note in shown.notes]
    assert notes[0] == "no step for 3 min: it stands at step 41"
    assert notes[1].startswith(long)
    assert f"orchestrator why {RUN}" in notes[1]
