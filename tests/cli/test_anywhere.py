"""Another laptop, a stolen laptop, and moving house: runs by way of their store, as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import decode
from orchestrator.ledger import Ledger
from tests.cli.calls import Caller, caller
from tests.cli.conftest import Finished
from tests.waiting import wait_until

PLATFORM = "type: process, session_seconds: 3600, setup_seconds: 1, grace_seconds: 5, poll_seconds: 0.2"


def config(store: Path, *more: Path) -> str:
    """A config whose home store is this folder."""
    named = "".join(f"  {each.name}: {{type: folder, path: {each}}}\n" for each in more)
    stores = f"stores:\n  shared: {{type: folder, path: {store}}}\n{named}home_store: shared\n"
    return f"platforms:\n  here: {{{PLATFORM}}}\n{stores}"


@pytest.fixture
def store(finished: Finished, tmp_path: Path) -> Path:
    """A copy of the store in which a run is done."""
    shutil.copytree(finished.user.home / "store", tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def other(tmp_path: Path, store: Path) -> Iterator[Caller]:
    """Another machine: the config alone, and a second, empty store."""
    (tmp_path / "machine").mkdir()
    with caller(tmp_path / "machine") as found:
        found.config(config(store, tmp_path / "attic"))
        yield found


def events(user: Caller, run: str) -> list[str]:
    with Ledger.open(f"sqlite:///{user.home / 'ledger.sqlite'}") as ledger:
        return [stored.event.kind.value for stored in ledger.history(run)]


# --- Another laptop -----------------------------------------------------------------------------------------


def test_another_machine_lists_and_pulls_with_the_config_alone(
    other: Caller, finished: Finished, store: Path
) -> None:
    run = finished.run
    [row] = other("ps", "--store", "shared", "--json").json["runs"]
    assert (row["run"], row["phase"], row["step"], row["adoptable"]) == (run, "done", 100, True)
    listed = other("checkpoints", run, "--verify", "--json").json
    assert listed["store"] == "shared"
    own = finished.user("checkpoints", run, "--json").json
    assert [each["name"] for each in listed["checkpoints"]] == [each["name"] for each in own["checkpoints"]]
    answer = other("pull", "tiny", "--best", "-o", "out")
    assert "found in the store shared" in answer.err
    assert "not authenticated" not in answer.err
    assert json.loads((other.folder / "out" / "state.json").read_text()) == {"step": 100}
    assert not (other.home / "ledger.sqlite").exists(), "looking creates nothing"
    # What was replaced in the store is not what was accepted.
    for path in store.glob("runs/*/checkpoints/*/manifest.json"):
        forged = replace(decode(path.parent.name, path.read_bytes()), metrics={"accuracy": 2.0})
        path.write_bytes(forged.encode())
    other("pull", run, "--store", "shared", "--step", "100", "-o", "forged", code=4)
    assert not (other.folder / "forged").exists()


def test_without_a_deposit_it_is_verified_by_its_manifest_alone_and_that_is_said(
    other: Caller, finished: Finished, store: Path
) -> None:
    shutil.rmtree(store / "runs" / finished.run / "deposit")
    assert "the store does not say what was accepted" in other("checkpoints", finished.run).err
    answer = other("pull", finished.run, "-o", "out", "--json")
    assert answer.json["step"] == 100
    assert answer.json["authenticated"] is False
    assert "its own manifest alone vouches for it" in other("pull", finished.run, "-o", "out").err
    assert "does not say what is best" in other("pull", finished.run, "--best", code=2).err
    [row] = other("adopt", "shared", "--json").json["runs"]
    assert row["came"] == "pull only"


def test_an_unknown_run_names_the_nearest_and_the_stores(
    other: Caller, finished: Finished, tmp_path: Path
) -> None:
    wrong = finished.run[:-1] + ("x" if finished.run[-1] != "x" else "y")
    said = other("pull", wrong, code=2).err
    assert f"did you mean {finished.run!r}" in said
    assert "the stores: shared, attic (" in said
    assert "unknown store 'atic'; did you mean 'attic'?" in other("ps", "--store", "atic", code=2).err
    attic = tmp_path / "attic"
    for words in (("ps", "--store", "attic"), ("adopt", "attic")):
        assert f"the store attic has no runs: {attic} does not exist" in other(*words).out
    assert f"attic ({attic} does not exist" in said
    attic.write_text("a file")
    assert f"{attic} is not a folder: correct the `path`" in other("ps", "--store", "attic", code=4).err
    attic.unlink()
    (tmp_path / "attic").symlink_to(tmp_path / "attic")  # it cannot be read
    assert (
        "may be in a store that does not answer: attic: " in other("checkpoints", "another-run", code=4).err
    )
    other("checkpoints", finished.run)  # the other store has it, and that is enough


# --- A stolen laptop ----------------------------------------------------------------------------------------


def test_a_finished_run_is_adopted_once_and_stays_what_it_was(other: Caller, finished: Finished) -> None:
    run = finished.run
    [row] = other("adopt", "shared", "--dry-run", "--json").json["runs"]
    assert (row["came"], row["phase"]) == ("adopted", "done")
    assert not (other.home / "ledger.sqlite").exists(), "a dry run creates nothing"
    assert "1 run adopted" in other("adopt", "shared").out
    before = events(other, run)
    assert before == ["submitted", "adopted", "completed"]
    [row] = other("adopt", "shared", run, "--json").json["runs"]
    assert row["came"] == "known"
    assert events(other, run) == before
    shown, original = other("show", run, "--json").json, finished.user("show", run, "--json").json
    assert shown["phase"] == "done"
    assert shown["checkpoints"] == original["checkpoints"]
    assert "adopted from the store shared" in other("why", run).out
    assert other("pull", run, "-o", "out", "--json").json["store"] is None, "it is this ledger's own now"


def test_a_controller_that_died_before_it_told_the_store_is_made_up_for(
    other: Caller, finished: Finished, store: Path
) -> None:
    """The next one compares its notes with the ledger, although nothing else is left to do."""
    other("adopt", "shared")
    shutil.rmtree(store / "runs" / finished.run / "deposit")
    (other.home / "runs" / finished.run / "deposited").write_text("0 - -")
    other("up", "--until-idle")
    [row] = other("ps", "--store", "shared", "--json").json["runs"]
    assert (row["phase"], row["adoptable"]) == ("done", True)


def test_a_damaged_deposit_is_named_and_the_others_are_adopted(
    other: Caller, finished: Finished, store: Path
) -> None:
    damaged = store / "runs" / "tiny-damaged1"
    shutil.copytree(store / "runs" / finished.run, damaged)
    answer = other("adopt", "shared", "--json", code=4)
    came = {row["run"]: row["came"] for row in answer.json["runs"]}
    assert came == {"tiny-damaged1": "damaged", finished.run: "adopted"}
    [damage] = [row["notes"] for row in answer.json["runs"] if row["came"] == "damaged"]
    assert "about another run" in damage[0]
    assert (damaged / "deposit").exists()
    assert "did you mean" in other("adopt", "shared", finished.run[:-1] + "_", code=2).err


def killed(user: Caller) -> None:
    """The machine is gone: its session ends at once, and its controller, unless that has left already."""
    owner = user.owner()
    if owner is not None:
        with suppress(ProcessLookupError):
            os.kill(owner.pid, signal.SIGKILL)
    user.close()


def test_a_run_under_way_is_held_and_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    for name in ("stolen", "new"):
        (tmp_path / name).mkdir()
    with caller(tmp_path / "stolen") as stolen, caller(tmp_path / "new") as new:
        for each in (stolen, new):
            each.config(config(tmp_path / "store"))
        run = stolen.submitted(stolen.job(total=100_000))
        step = stolen.wait_for_checkpoint(run)
        wait_until(
            lambda: (new("ps", "--store", "shared", "--json").json["runs"] or [{}])[0].get("step"),
            "a deposit",
        )
        # The old controller still lives: it is adopted all the same, and the old one does nothing more.
        answer = new("adopt", "shared", "--json")
        [row] = answer.json["runs"]
        assert (row["came"], row["phase"]) == ("adopted", "held")
        fence = json.loads(_register(tmp_path / "store", run))
        assert fence == {"generation": 3, "adoptions": 1, "leave": False}, (
            "above one that it may have started since"
        )
        wait_until(lambda: stolen.phase(run) == "held", "the old controller to notice")
        assert f"has adopted {run} from the store shared" in stolen("show", run, "--json").json["reason"]
        reason = new("show", run, "--json").json["reason"]
        assert f"its last session {run}-s01 on here may still run" in reason
        assert events(new, run) == ["submitted", "adopted"]
        # Its controller has nothing left to do, so it leaves.
        wait_until(lambda: stolen("show", run, "--json").json["controller"] is None, "the controller to end")
        # It is taken back, and goes on with the session that still runs.
        back = stolen("adopt", "shared", run)
        assert "1 run adopted" in back.out
        assert "no controller was running: started one in the background" in back.err
        newest = max(checkpoint_steps(stolen, run))
        wait_until(lambda: max(checkpoint_steps(stolen, run)) > newest, "a checkpoint after that")
        assert new("ps", "--store", "shared", "--json").json["runs"][0]["phase"] == "running"
        # Then the new machine takes it again.
        assert new("adopt", "shared", run, "--json").json["runs"][0]["came"] == "taken back"
        killed(stolen)
        new("release", run)
        wait_until(lambda: 5 in generations(new, run), "a checkpoint of the new session")
        assigned = [each for each in new("why", run, "--json").json["events"] if "order" in each["event"]]
        assert assigned[0]["event"]["order"]["session"] == f"{run}-s05"
        assert assigned[0]["event"]["order"]["resume_step"] >= step


def checkpoint_steps(user: Caller, run: str) -> list[int]:
    return [each["ref"]["step"] for each in user("show", run, "--json").json["checkpoints"]]


def generations(user: Caller, run: str) -> set[int]:
    """The sessions, by their numbers, whose checkpoints the run has."""
    return {each["ref"]["generation"] for each in user("show", run, "--json").json["checkpoints"]}


def _register(store: Path, run: str) -> bytes:
    [found] = [path for path in store.rglob("*fence*") if path.is_file() and "lock" not in path.name]
    assert run in str(found)
    return found.read_bytes()


# --- Moving house -------------------------------------------------------------------------------------------


def test_a_run_moves_to_another_store_and_its_old_copy_goes_when_asked(
    other: Caller, finished: Finished, store: Path, tmp_path: Path
) -> None:
    run = finished.run
    other("adopt", "shared")
    names = [each["name"] for each in other("checkpoints", run, "--json").json["checkpoints"]]
    # An earlier copy was interrupted: blobs without their manifest.
    old, new = store / "runs" / run, tmp_path / "attic" / "runs" / run
    shutil.copytree(old / "blobs", new / "blobs")
    one = next(path for path in (new / "blobs").rglob("*") if path.is_file())
    one.write_bytes(one.read_bytes()[:-1])
    done = other("copy", run, "--to", "attic", "--json").json
    assert (done["moved"], done["copied"], done["deleted"]) == (True, names, False)
    assert events(other, run)[-1] == "moved"
    assert sorted(path.name for path in (old / "checkpoints").iterdir()) == names, "the old copy stays"
    assert other("copy", run, "--to", "attic", "--json").json["moved"] is False
    assert "is removed" in other("copy", run, "--to", "attic", "--delete-source").out
    assert [path for path in old.rglob("*") if path.is_file()] == []
    listed = other("checkpoints", run, "--verify", "--json").json["checkpoints"]
    assert [each["name"] for each in listed] == names
    [row] = other("ps", "--store", "attic", "--json").json["runs"]
    assert (row["run"], row["adoptable"]) == (run, True)
    [material] = (new / "material").iterdir()
    assert material.stat().st_size > 0
    assert "unknown store 'cellar'" in other("copy", run, "--to", "cellar", code=2).err


def test_a_run_whose_newest_checkpoint_is_damaged_stays_where_it_is(
    other: Caller, finished: Finished, store: Path, tmp_path: Path
) -> None:
    run = finished.run
    other("adopt", "shared")
    for blob in (store / "runs" / run / "blobs").rglob("*"):
        if blob.is_file():
            blob.write_bytes(b"rotten")
    said = other("copy", run, "--to", "attic", "--delete-source", code=4).err
    assert "cannot be used" in said or "cannot be copied" in said
    assert "moved" not in events(other, run)
    assert not list((tmp_path / "attic").glob("runs/*/checkpoints/*/manifest.json"))


def test_a_run_with_a_session_is_not_moved(user: Caller, tmp_path: Path) -> None:
    user.config(config(tmp_path / "store", tmp_path / "attic"))
    run = user.submitted(user.job(total=2000))
    user.wait_for_phase(run, "running")
    said = user("copy", run, "--to", "attic", code=2).err
    assert f"orchestrator hold {run}" in said
    assert not (tmp_path / "attic").exists()
