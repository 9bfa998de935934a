"""What a program learns about a run, as values: its status, its sessions, its log; and how long it waits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import orchestrator.client
from orchestrator import Client
from orchestrator.client import LogLine, Phase
from orchestrator.client.looking import looks
from orchestrator.core.event import Cancelled, Faulted, Requeued, StopRequested, Wished, Withdrawn
from orchestrator.core.job import Precision
from orchestrator.core.lifecycle import Wish
from orchestrator.core.order import Outcome
from orchestrator.core.speed import Measurement
from orchestrator.errors import BackendError, InputError
from orchestrator.ledger import Ledger
from tests.client.homes import append, ledger_of, run_after
from tests.core.runs import NOW, RUN, accept, assigned, ended, running

OVER = (Wished(NOW, Wish.CANCEL, False), Cancelled(NOW, "cancelled"))


def test_every_public_name_is_there_and_is_named_once() -> None:
    names = orchestrator.client.__all__
    assert set(names) == {*orchestrator.client._HOMES, "Client"}
    assert all(isinstance(getattr(orchestrator.client, name), type) for name in names)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        _ = orchestrator.client.Klient


def test_a_home_without_runs_lists_none_and_makes_nothing(tmp_path: Path) -> None:
    client = Client(tmp_path / "home")
    assert client.runs(all=True) == ()
    with pytest.raises(InputError, match="0 or more"):
        client.runs(limit=-1)
    with pytest.raises(InputError, match="there are no runs in"):
        client.run("tiny")
    assert not (tmp_path / "home").exists()


def test_a_status_is_a_row_of_plain_values(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running(), accept(40))
    status = run.status()
    assert (status.phase, status.step, status.steps_total, status.accepted_step) == (
        Phase.RUNNING,
        40,
        1000,
        40,
    )
    assert run.client.runs() == (status,)
    assert vars(status)["platform"] == "here"
    append(tmp_path, [ended(Outcome.CRASHED), Requeued(NOW, "it ended", 1, None, None, None)])
    append(tmp_path, OVER)
    assert run.client.runs() == ()
    assert [each.phase for each in run.client.runs(all=True)] == [Phase.CANCELLED]


def test_sessions_say_how_each_ended(tmp_path: Path) -> None:
    first = (
        *running(),
        accept(40),
        ended(Outcome.CRASHED, step=50),
        Requeued(NOW, "again", 1, None, None, None),
    )
    second = (assigned(2), Withdrawn(NOW, "no place"))
    third = (assigned(3), *running()[1:], StopRequested(NOW, Wish.HOLD))
    run = run_after(tmp_path, *first, *second, *third)
    found = run.sessions()
    assert [each.name for each in found] == [f"{RUN}-s{number:02d}" for number in (1, 2, 3)]
    assert [each.outcome for each in found] == [Outcome.CRASHED, None, None]
    assert [each.withdrawn for each in found] == [False, True, False]
    assert [each.message for each in found] == ["it ended", "no place", ""]
    assert [each.stop for each in found] == [None, None, Wish.HOLD]
    assert [each.to_step for each in found] == [40, None, None]
    assert [each.over_at for each in found] == [NOW, NOW, None]


# --- Waiting ----------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_run(tmp_path: Path) -> None:
    run = run_after(tmp_path, *OVER)
    assert run.wait(timeout=0.0).phase is Phase.CANCELLED
    assert [status.phase for status in run.watch()] == [Phase.CANCELLED]


def test_a_run_that_waits_for_a_person_is_not_waited_for(tmp_path: Path) -> None:
    run = run_after(tmp_path, Faulted(NOW, "look at it"))
    status = run.wait()
    assert (status.phase, status.reason) == (Phase.HELD, "look at it")


@pytest.mark.parametrize("wish", [Wish.CANCEL, Wish.HOLD, Wish.RELEASE])
def test_a_wish_that_cannot_be_granted_is_not_waited_for(tmp_path: Path, wish: Wish) -> None:
    run = run_after(tmp_path, *running(), Wished(NOW, wish, False), Faulted(NOW, "put it back"))
    with ledger_of(tmp_path) as ledger, ledger.take_over("test", now=NOW):
        status = run.wait(timeout=90.0)
    assert (status.phase, status.reason) == (Phase.HELD, "put it back")


def test_waiting_has_a_limit(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running())
    with ledger_of(tmp_path) as ledger, ledger.take_over("test", now=NOW):
        with pytest.raises(TimeoutError, match=f"{RUN} is running after 90 s"):
            run.wait(timeout=90.0)
        assert run.client.clock.now() == pytest.approx(NOW + 90.0, abs=1.0)


def test_nobody_waits_for_what_no_controller_will_do(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running())
    with pytest.raises(BackendError, match="no controller is running") as error:
        run.wait()
    assert error.value.backend == "controller"
    assert run.client.clock.now() == pytest.approx(NOW + 60.0, abs=1.0), "it waits for a restart"


def test_the_last_look_has_the_last_event(tmp_path: Path) -> None:
    """It may be appended between reading the record and reading its events."""
    run = run_after(tmp_path, *running())

    class Racing(Ledger):
        def history(self, run: str, after: int = 0):  # type: ignore[no-untyped-def]
            found = super().history(run, after)
            if not after:
                append(
                    tmp_path, [Wished(NOW, Wish.CANCEL, False), ended(Outcome.STOPPED), Cancelled(NOW, "so")]
                )
            return found

    client = Client(replace(run.client.home), clock=run.client.clock)
    client.ledgers.hold()
    client.ledgers._held = Racing.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}")
    *_, last = looks(client, RUN)
    client.ledgers.let_go()
    assert last.rests
    assert isinstance(last.events[-1].event, Cancelled)


# --- The log ----------------------------------------------------------------------------------------------


def test_a_log_is_lines_over_all_sessions(tmp_path: Path) -> None:
    run = run_after(tmp_path, *OVER)
    pieces = {
        "s01/log/000001.log": b"one\ntw",
        "s01/log/000002.log": b"o\nno end",
        "s02/log/000001.log": b"\xff\n",
        "s10/log/000001.log": b"last\n",
        "s02/status.json": b"{}",
    }
    for name, data in pieces.items():
        path = run.client.home.folders.run(RUN) / f"{RUN}-{name}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    expected = [("s01", "one"), ("s01", "two"), ("s01", "no end"), ("s02", "\ufffd"), ("s10", "last")]
    assert list(run.logs(follow=True)) == [LogLine(f"{RUN}-{session}", text) for session, text in expected]


# --- The ledger -------------------------------------------------------------------------------------------


def test_a_block_keeps_one_ledger_open(tmp_path: Path) -> None:
    client = run_after(tmp_path, *OVER).client
    with client:
        with client.ledgers.existing() as first, client.ledgers.runs() as second:
            assert first is second
        with client, client.ledgers.made() as third:
            assert third is first
        assert client.runs(all=True)[0].run == RUN
    with client.ledgers.runs() as later:
        assert later is not first


def test_a_ledger_that_is_kept_open_hears_of_new_rates(tmp_path: Path) -> None:
    client = run_after(tmp_path).client
    with client, client.ledgers.runs() as ledger:
        assert ledger.measurements("tiny") == ()
        with ledger_of(tmp_path) as controller:
            controller.add_measurement("tiny", Measurement("cpu", Precision.FP32, 8, 100.0, 60.0, NOW))
        assert len(ledger.measurements("tiny")) == 1
