"""`rm` takes away what there is of a run that is over, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.cli.removing import _checkpoints_text
from orchestrator.client.removing import Doomed, plan
from orchestrator.core.checkpoint import Accepted, CheckpointRef
from orchestrator.core.event import Cancelled
from orchestrator.core.job import Recurrence
from orchestrator.core.schedule import Schedule
from orchestrator.errors import InputError
from orchestrator.ledger import forgetting
from orchestrator.pruning.results import Surplus
from tests.cli.calls import UNLIMITED, Caller
from tests.cli.dialogue import dialogue
from tests.client.homes import ledger_of, run_after
from tests.core.runs import NOW, RUN, job, running
from tests.waiting import wait_until


def traces(home: Path, run: str) -> list[str]:
    """What the home and its store have of a run."""
    return sorted(str(path.relative_to(home)) for path in home.rglob(f"*{run}*"))


def test_a_run_that_is_over_goes_and_every_other_stays(user: Caller, tmp_path: Path) -> None:
    user.config(UNLIMITED)
    first = user.submitted(user.job(total=5))
    user.wait_for_phase(first, "done")
    second = user.submitted(user.job(total=10), "--from", first)
    user.wait_for_phase(second, "done")
    wait_until(lambda: user.owner() is None, "the controller to leave")
    theirs = user.home / "runs" / first / "notes.txt"
    theirs.write_text("mine")
    kept = traces(user.home, second)

    shown = user("rm", first)
    assert "Nothing was removed" in shown.out
    assert traces(user.home, first)
    with dialogue(user, "rm", first) as seen:
        seen.expect("for good? [y/N]")
        seen.answer("n")
        seen.expect("Nothing was removed")
        assert seen.ends() == 0
    assert "give the whole name" in user("rm", "tiny", "--yes", code=2).err

    answer = user("rm", first, "--yes", "--json").json
    assert answer["removed"] == [first]
    assert user("ps", "--all", "--json").json["runs"][0]["run"] == second
    assert traces(user.home, first) == [f"runs/{first}"]
    assert theirs.read_text() == "mine", "what is not ours stays"
    assert traces(user.home, second) == kept
    user("pull", second, "-o", str(tmp_path / "pulled"))
    assert user("checkpoints", second, "--verify").code == 0

    user("rm", second, "--yes", "--keep-checkpoints")
    assert user("ps", "--all").out.startswith("there are no runs yet")
    assert second in user("ps", "--store", "home").out, "its checkpoints and their description are there"
    user("adopt", "home", second)
    assert user("ps", "--all", "--json").json["runs"][0]["run"] == second


def test_a_run_that_somebody_needs_is_refused_with_what_to_do(tmp_path: Path) -> None:
    run_after(tmp_path, *running())
    client = Client(tmp_path)
    with pytest.raises(InputError, match=f"`orchestrator cancel {RUN}` first"):
        plan(client, [RUN], keep_checkpoints=False)
    with pytest.raises(InputError, match="no run"):
        plan(client, ["nothing-like-it"], keep_checkpoints=False)


def test_a_run_that_its_schedule_looks_at_is_refused(tmp_path: Path) -> None:
    run_after(tmp_path, Cancelled(NOW, "asked to"))
    nightly = replace(job(), name="nightly", schedule=Recurrence("0 1 * * *"))
    with ledger_of(tmp_path) as ledger:
        ledger.schedules.add(Schedule("nightly", nightly, "home", NOW, NOW, run=RUN))
    with pytest.raises(InputError, match="`orchestrator schedule rm nightly` first"):
        plan(Client(tmp_path), [RUN], keep_checkpoints=False)


def test_a_removal_that_was_interrupted_is_repeated(tmp_path: Path) -> None:
    run_after(tmp_path, Cancelled(NOW, "asked to"))
    log = tmp_path / "runs" / RUN / f"{RUN}-s01.pruned"
    (log / "log").mkdir(parents=True)
    other = tmp_path / "runs" / "other-abcdefgh" / "other-abcdefgh-s01.pruned"
    other.mkdir(parents=True)
    removed = plan(Client(tmp_path), [RUN], keep_checkpoints=False).carry_out()
    assert removed.runs == (RUN,)
    assert not log.exists()
    assert other.with_suffix("").is_dir(), "a prune had set it aside, and it is another run's"


def test_outputs_are_not_counted_as_checkpoints(tmp_path: Path) -> None:
    saved, files = CheckpointRef(5, 1, "aaaa"), CheckpointRef(0, 1, "aaaa", outputs=True)
    record = replace(run_after(tmp_path, Cancelled(NOW, "asked to")).record(), outputs=(Accepted(files, 9),))
    doomed = Doomed(record, (), Surplus(RUN, (saved.name, files.name)))
    assert _checkpoints_text(doomed) == "1"


def test_a_run_that_changes_meanwhile_stays(tmp_path: Path) -> None:
    run_after(tmp_path, Cancelled(NOW, "asked to"))
    with ledger_of(tmp_path) as ledger:
        before = ledger.record(RUN)
        assert not forgetting.erase(ledger, replace(before, version=before.version - 1))
        assert ledger.record(RUN) == before
        assert forgetting.erase(ledger, before)
        assert ledger.history(RUN) == ()


def test_with_keep_checkpoints_one_that_never_reached_the_store_stays(tmp_path: Path) -> None:
    run_after(tmp_path, Cancelled(NOW, "asked to"))
    only_copy, other = (tmp_path / "runs" / RUN / f"{RUN}-s0{number}" for number in (1, 2))
    (only_copy / "blobs" / "a").mkdir(parents=True)
    (only_copy / "checkpoints" / "0000000005-g01-a").mkdir(parents=True)
    other.mkdir()
    removed = plan(Client(tmp_path), [RUN], keep_checkpoints=True).carry_out()
    assert removed.runs == (RUN,)
    assert only_copy.is_dir()
    assert not other.exists()
