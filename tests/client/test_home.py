"""A program checks, prunes and sets up a home that was never used, without any output on the screen."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client.checkup import State
from orchestrator.client.grammar import seconds
from orchestrator.errors import InputError, Remedy


def test_findings_say_what_to_do_next(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    client = Client(tmp_path)
    (tmp_path / "config.yaml").write_text("stores: {home: {type: folder, path: /proc/none}}\n")
    found = {each.what: each for each in client.doctor()}
    assert found["python"].state is State.OK
    assert found["python"].remedy is Remedy.NONE
    assert found["store home"].state is State.MISSING
    assert found["store home"].error is not None
    (tmp_path / "config.yaml").write_text("platforms: 1\n")
    *_, last = client.doctor()
    assert (last.what, last.remedy, last.advice) == ("config", Remedy.EDIT, "correct the config")
    assert capfd.readouterr() == ("", "")


def test_a_name_that_the_config_lacks_is_said_so(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for ask in (lambda: list(client.doctor(["nowhere"])), lambda: client.leftovers(["nowhere"])):
        with pytest.raises(InputError, match="nowhere"):
            ask()
    with pytest.raises(InputError, match="did you mean 'process'"):
        client.quota(["proces"])


def test_a_plan_removes_nothing_and_carried_out_it_removes_what_it_says(tmp_path: Path) -> None:
    client = Client(tmp_path)
    client.home.ledger().close()
    draft = tmp_path / "bundles" / ".tmp-left.tar.gz"
    young = tmp_path / "bundles" / ".tmp-young.tar.gz"
    draft.parent.mkdir()
    for path in (draft, young):
        path.write_bytes(b"x" * 4096)
    os.utime(draft, (0, 0))
    seen: list[str] = []
    plan = client.prune_plan(progress=seen.append)
    assert [(row.what, row.count) for row in plan.goes] == [("drafts", 1)]
    assert [(row.what, row.count) for row in plan.stays] == [("drafts", 1)]
    assert seen[0] == "looking at the home"
    assert draft.exists()
    kept = client.prune(plan, stopped=lambda: True)
    assert kept.interrupted
    assert draft.exists()
    gone: list[int] = []
    pruned = client.prune(plan, progress=gone.append)
    assert [thing.path for thing in pruned.removed] == ["bundles/.tmp-left.tar.gz"]
    assert (pruned.freed, sum(gone), pruned.interrupted) == (plan.size, plan.count, False)
    assert not draft.exists()
    assert young.exists()
    with pytest.raises(InputError, match="keep=-1"):
        client.prune_plan(keep=-1)
    for age in (-1.0, float("nan")):
        with pytest.raises(InputError, match=f"older_than_seconds={age}"):
            client.prune_plan(older_than_seconds=age)


def test_a_config_is_replaced_only_by_force_and_then_kept(tmp_path: Path) -> None:
    client = Client(tmp_path)
    made = client.init()
    assert made.config.exists()
    assert made.kept is None
    assert made.platforms[0].name == "here"
    with pytest.raises(InputError, match="already"):
        client.init()
    again = client.init(force=True)
    assert again.kept is not None
    assert again.kept.read_text() == made.config.read_text()


def test_durations_are_read_as_jobs_have_them() -> None:
    assert [seconds(text) for text in ("0", "90m", "12h", "30d")] == [0.0, 5400.0, 43200.0, 2592000.0]
    with pytest.raises(InputError, match="soon"):
        seconds("soon")


def test_a_home_that_was_open_is_private_once_a_program_uses_it(tmp_path: Path) -> None:
    set_up, controlled = tmp_path / "set-up", tmp_path / "controlled"
    for home in (set_up, controlled):
        home.mkdir(mode=0o755)
    Client(set_up).init()
    Client(controlled).controller.run(stopped=lambda: True)
    for home in (set_up, controlled):
        assert stat.S_IMODE(home.stat().st_mode) == 0o700
