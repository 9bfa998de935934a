"""What an interrupted submit leaves behind, and what it reports."""

from __future__ import annotations

import os
import signal
import weakref

import pytest

from orchestrator import Client
from orchestrator.client import Verdict
from orchestrator.client.home import Home
from orchestrator.core.event import Submitted
from orchestrator.core.run import RunRecord
from orchestrator.errors import InputError, NoRoute
from orchestrator.ledger import Ledger
from orchestrator.ledger.ledger import DUE_NOW, Check
from tests.cli.calls import Caller
from tests.cli.conftest import user

__all__ = ["user"]  # a fixture


class Cleaned:
    """Garbage-collected as soon as it is made."""


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass


def ctrl_c_in_a_callback() -> None:
    """Presses it in a finalizer: the interpreter drops exceptions that are raised there."""
    weakref.finalize(Cleaned(), press_ctrl_c)


def ctrl_c() -> None:
    raise KeyboardInterrupt


def nothing() -> None:
    """Does not press Ctrl-C."""


@pytest.mark.parametrize(
    ("before", "after", "recorded"),
    [(ctrl_c_in_a_callback, nothing, 0), (nothing, ctrl_c, 1)],
    ids=["dropped", "after the commit"],
)
def test_ctrl_c_leaves_a_run_and_its_folder_or_neither(
    user: Caller, before: Check, after: Check, recorded: int
) -> None:
    class Interrupted(Ledger):
        def submit(
            self, event: Submitted, *, due_at: float | None = DUE_NOW, check: Check | None = None
        ) -> RunRecord:
            before()
            record = super().submit(event, due_at=due_at, check=check)
            after()
            return record

    class SlowHome(Home):
        def ledger(self) -> Ledger:
            return Interrupted.open(self.database())

    home = SlowHome(user.home)
    with pytest.raises(KeyboardInterrupt):
        Client(home).submit(user.folder / user.job())
    with Ledger.open(home.database()) as ledger:
        runs = [each.run for each in ledger.summaries()]
    assert len(runs) == recorded
    assert [path.name for path in user.home.glob("runs/*")] == runs


def test_a_submission_says_what_it_did(user: Caller) -> None:
    client, job = Client(user.home), user.folder / user.job(total=2000)
    with Ledger.open(client.home.database()) as ledger, ledger.take_over("test", now=0.0):
        first = client.submit(job)
        again = client.submit(job, unless_running=True)
    assert (first.submitted, first.controller_started, first.lost) == (True, False, {})
    assert first.plan is not None
    assert first.plan.verdict is Verdict.OK
    assert first.plan.destinations == ("here",)
    assert first.plan.requirements_locked is None
    assert [part.kind for part in first.plan.leaves] == ["source"]
    assert (again.run, again.submitted, again.plan) == (first.run, False, None)
    assert [status.run for status in client.runs()] == [first.run.name]
    assert first.run.status().store == "home"


def test_a_job_that_nothing_will_take_makes_no_run(user: Caller) -> None:
    client = Client(user.home)
    with pytest.raises(NoRoute, match=r"no configured platform can ever run this job\n  here/cpu: .*"):
        client.submit(user.folder / user.job(accelerator="T4"))
    with pytest.raises(InputError, match=r"platform 'her'.*did you mean 'here'"):
        client.plan(user.folder / user.job(), platforms=["her"])
    assert client.runs(all=True) == ()


def test_one_name_is_a_name_and_not_its_letters(user: Caller) -> None:
    client = Client(user.home)
    assert client.plan(user.folder / user.job(), platforms="here").verdict is Verdict.OK
    with pytest.raises(InputError, match=r"unknown platform 'her'"):
        client.submit(user.folder / user.job(), platforms="her")
    assert client.quota("here").without_quota == ("here",)
    assert client.leftovers("here").orphans == ()
    told = {each.what.partition(":")[0] for each in client.doctor("here")}
    assert told == {"config", "platform here", "here"}
