"""Views and the controller's queries survive any stored record: old, newer or not ours."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from orchestrator.cli.running import run as call
from orchestrator.core.event import Noted
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger
from orchestrator.pruning import needs
from tests.walks import NOW, assigned, submission

HUGE = "1" + "0" * 400
RUNS = ("good-1", "huge-2", "newer-3", "torn-4", "unknown-5")


def _live(run: str, step: str) -> str:
    status = (
        '{"incarnation": "abc", "heartbeat": 1, "written_at": 1e300, "state": "\\ud800\\u0000", '
        f'"step": {step}, "steps_per_second": 5e-324, "loss": -1e308, "deadline": 1e300}}'
    )
    observation = f'{{"sighting": "running", "status": {status}}}'
    return f'{{"session": "{run}-s01", "at": 1e300, "observation": {observation}, "trouble": "\\u001b[2J"}}'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Five runs, four of which hold something that today's readers do not expect."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path))
    url = tmp_path / "ledger.sqlite"
    (tmp_path / "config.yaml").write_text("platforms: {here: {type: process}}")
    with Ledger.open(f"sqlite:///{url}") as ledger:
        for run in RUNS:
            record = ledger.submit(submission(run, name=run[:-2], at=NOW))
            ledger.append(record, [assigned(record), Noted(NOW, "a note")], due_at=1.0)
    with sqlite3.connect(url) as database:
        database.execute("UPDATE events SET body = ? WHERE run = 'newer-3' AND seq = 2",
                         ('{"kind": "invented", "at": 1.0}',))  # fmt: skip
        database.execute(
            f"UPDATE events SET inputs = '{{\"route\": {HUGE}{HUGE * 12}}}' WHERE run = 'newer-3'"
        )
        database.execute("UPDATE events SET body = replace(body, '\"at\":', '\"at\":1e300,\"x\":')"
                         " WHERE run = 'huge-2' AND seq > 1")  # fmt: skip
        database.execute("UPDATE runs SET record = replace(record, '\"submitted_at\":',"
                         " '\"submitted_at\":-1e300,\"x\":') WHERE run = 'huge-2'")  # fmt: skip
        database.execute("UPDATE runs SET until = 9e999, accepted_step = 9223372036854775807,"
                         " submitted_at = 9e999, ended_at = -9e999 WHERE run = 'huge-2'")  # fmt: skip
        database.execute(f"UPDATE runs SET record = '{{\"run\": {HUGE}}}' WHERE run = 'torn-4'")
        database.execute("UPDATE runs SET phase = 'dreaming' WHERE run = 'unknown-5'")
    database.close()
    for run, step in (("good-1", "7"), ("huge-2", str(2**100)), ("torn-4", HUGE)):
        folder = tmp_path / "runs" / run
        (folder / f"{run}-s01" / "log").mkdir(parents=True)
        (folder / "live.json").write_text(_live(run, step))
        (folder / f"{run}-s01" / "log" / "000001.log").write_bytes(b"\xff\xfe\x00 torn\n")
        (folder / f"{run}-s01" / "log" / "000002.log").mkdir()
    return tmp_path


def _said(capsysbinary: pytest.CaptureFixture[bytes], *words: str, code: int = 0) -> str:
    found = call(words)
    out, err = (each.decode(errors="replace") for each in capsysbinary.readouterr())
    assert found == code, f"{words}: {found}\n{out}\n{err}"
    return out + err


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("more", [(), ("--json",)])
def test_ps_lists_every_run_that_is_there(
    capsysbinary: pytest.CaptureFixture[bytes], more: tuple[str, ...]
) -> None:
    said = _said(capsysbinary, "ps", "--all", *more)
    assert all(run in said for run in RUNS)
    assert "its phase is unreadable ('dreaming')" in said
    if more:
        rows = {row["run"]: row for row in json.loads(said)["runs"]}
        assert rows["unknown-5"]["phase"] is None
        assert rows["good-1"]["unreadable"] is None
    else:
        assert "unreadable" in said


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("run", ["good-1", "huge-2", "newer-3"])
def test_every_view_of_a_run_answers(
    capsysbinary: pytest.CaptureFixture[bytes], run: str, more: tuple[str, ...]
) -> None:
    for command in ("show", "why", "checkpoints"):
        said = _said(capsysbinary, command, run, *more)
        assert run in said or command == "checkpoints"
        if run == "newer-3" and command == "why":
            assert "cannot be read" in said
            assert "invented" in said
        if more:
            json.loads(said, parse_constant=lambda constant: pytest.fail(constant))
    _said(capsysbinary, "logs", run, *more)
    _said(capsysbinary, "quota", *more)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("command", ["show", "why"])
def test_a_record_that_cannot_be_read_is_said_of_that_run(
    capsysbinary: pytest.CaptureFixture[bytes], command: str
) -> None:
    said = _said(capsysbinary, command, "torn-4", code=4)
    assert "the ledger's record of torn-4 cannot be read" in said


def test_one_unreadable_record_takes_none_of_the_others_down(home: Path) -> None:
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        live = {record.run for record in ledger.live()}
        assert live == set(RUNS) - {"torn-4"}
        assert list(ledger.unreadable) == ["torn-4"]
        assert "cannot be read" in ledger.unreadable["torn-4"]
        due = ledger.due(NOW)
        assert {each.run for each in due if isinstance(each, RunRecord)} == set(RUNS) - {"torn-4"}
        assert "torn-4" not in due
        ledger.schedule([(r, None) for r in due if isinstance(r, RunRecord)], fence=_fence(ledger))
        assert ledger.next_due() is None, "else a controller would never rest"


def _fence(ledger: Ledger) -> int:
    return ledger.take_over("test", now=NOW).fence


def test_the_queue_is_read_beside_unreadable_records(home: Path) -> None:
    url = home / "queue.sqlite"
    with Ledger.open(f"sqlite:///{url}") as ledger:
        for number in range(6):
            ledger.submit(submission(f"tiny-{number}", name="tiny", at=NOW + number), due_at=None)
    with sqlite3.connect(url) as database:
        database.execute("UPDATE runs SET record = '{}' WHERE run IN ('tiny-0', 'tiny-1', 'tiny-3')")
    database.close()
    with Ledger.open(f"sqlite:///{url}") as ledger:
        found = [each for each in ledger.waiting({}) if not isinstance(each, str)]
        assert [each.run for each in found] == ["tiny-2", "tiny-4", "tiny-5"]
        assert set(ledger.unreadable) == {"tiny-0", "tiny-1", "tiny-3"}


def test_nothing_of_an_unreadable_run_is_removed_or_waited_for(home: Path) -> None:
    with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
        found = needs.read(ledger, keep=0)
        assert "torn-4" in found.unread
        assert not found.runs["torn-4"].over
        due = [each for each in ledger.due(NOW) if isinstance(each, RunRecord)]
        ledger.schedule([(record, None) for record in due], fence=_fence(ledger))
        assert ledger.anything_left()
        assert not ledger.anything_left(besides={record.run for record in due})
