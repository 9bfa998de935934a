"""The curves of a run, from the reports that its sessions left in the home."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client.curves import Curves, merged
from orchestrator.core import bounds
from orchestrator.core.event import Adopted, CheckpointCorrupt, Event, Started, Withdrawn
from orchestrator.core.order import Outcome
from tests.client.homes import run_after
from tests.core.runs import NOW, RUN, accepted, assigned, ended, running

BEGAN = Started(NOW, "aaaa")


def told(folder: Path, session: int, steps: Iterable[int], value: float = 0.5, **more: float) -> Path:
    path = folder / f"{RUN}-s{session:02d}" / "progress.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for step in steps:
            file.write(json.dumps({"step": step, "metrics": {"loss": value, **more}}) + "\n")
    return path


def session(number: int, resume_step: int) -> tuple[Event, ...]:
    resume = accepted(resume_step, number - 1) if resume_step else None
    return assigned(number, resume), BEGAN, ended(Outcome.STOPPED, step=resume_step + 5)


def loss(curves: Curves) -> list[tuple[int, int]]:
    """Step and session of each point."""
    [curve] = [curve for curve in curves.metrics if curve.name == "loss"]
    return [(point.step, point.session) for point in curve.points]


def test_one_series_over_all_sessions(tmp_path: Path) -> None:
    told(tmp_path, 1, range(1, 9))
    told(tmp_path, 2, range(6, 12))
    found = merged(RUN, tmp_path, [*session(1, 0), *session(2, 5)])
    assert loss(found) == [*((step, 1) for step in range(1, 6)), *((step, 2) for step in range(6, 12))]
    assert [(hop.number, hop.from_step, hop.here) for hop in found.hops] == [(1, 0, True), (2, 5, True)]
    assert (found.missing, found.notes, found.left_out) == ((), (), ())


def test_a_session_that_fell_back_to_an_older_checkpoint(tmp_path: Path) -> None:
    told(tmp_path, 1, range(1, 9))
    told(tmp_path, 2, range(4, 6))
    order = replace(assigned(2, accepted(3)).order)
    fell = CheckpointCorrupt(NOW, accepted(7).name, "a blob is damaged", order)
    found = merged(RUN, tmp_path, [*session(1, 0), assigned(2, accepted(7)), fell, BEGAN])
    assert loss(found) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2)]
    assert found.hops[1].from_step == 3


def test_a_session_that_never_began_takes_nothing_away(tmp_path: Path) -> None:
    told(tmp_path, 1, range(1, 9))
    withdrawn: list[Event] = [assigned(2, accepted(5)), Withdrawn(NOW, "no slot")]
    waiting = [*session(1, 0), *withdrawn, assigned(3, accepted(5))]
    found = merged(RUN, tmp_path, waiting)
    assert loss(found) == [(step, 1) for step in range(1, 9)]
    assert [hop.number for hop in found.hops] == [1, 3]
    assert found.missing == ("s03 has not started yet",)
    assert loss(merged(RUN, tmp_path, [*waiting, BEGAN])) == [(step, 1) for step in range(1, 6)]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    told(tmp_path, 2, range(6, 9))
    (tmp_path / f"{RUN}-s03").mkdir()
    found = merged(RUN, tmp_path, [*session(1, 0), *session(2, 5), *session(3, 8), *session(4, 9)[:2]])
    assert loss(found) == [(6, 2), (7, 2), (8, 2)]
    assert found.absent == {1, 3, 4}
    assert found.missing == (
        "nothing of s01 is kept here: it left nothing, or `prune` has removed it",
        "s03 reported nothing",
        "nothing that s04 reports has been collected yet; it still runs",
    )


def test_a_run_that_another_ledger_had_meanwhile(tmp_path: Path) -> None:
    """It trained on from step 5 there, and comes back with the checkpoint of step 30."""
    told(tmp_path, 1, range(1, 9))
    told(tmp_path, 8, range(31, 33))
    back = Adopted(NOW, "back", 7, (accepted(5), accepted(30, 4)), 2, by="there")
    found = merged(RUN, tmp_path, [*session(1, 0), back, *session(8, 30)])
    assert loss(found) == [*((step, 1) for step in range(1, 6)), (31, 8), (32, 8)]
    assert found.missing == (
        "another ledger had this run up to step 30: what its sessions reported is not here",
    )


def test_a_run_whose_history_is_pruned_still_has_its_reports(tmp_path: Path) -> None:
    told(tmp_path, 1, range(1, 9))
    told(tmp_path, 2, range(6, 12), 0.25)
    found = merged(RUN, tmp_path, [])
    assert loss(found)[4:7] == [(5, 1), (6, 2), (7, 2)]
    assert [hop.from_step for hop in found.hops] == [None, None]


def test_files_that_are_none_cost_only_themselves(tmp_path: Path) -> None:
    told(tmp_path, 1, [1, 2])
    for number in (2, 3, 4):
        (tmp_path / f"{RUN}-s{number:02d}").mkdir()
    (tmp_path / f"{RUN}-s02" / "progress.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / f"{RUN}-s03" / "progress.jsonl")
    (tmp_path / f"{RUN}-s04" / "progress.jsonl").mkdir()
    (tmp_path / "live.json").write_text("{}")
    found = merged(RUN, tmp_path, [])
    assert loss(found) == [(1, 1), (2, 1)]
    assert [note.split(":")[0] for note in found.notes] == [
        f"the reports of s{number:02d} cannot be read" for number in (2, 3, 4)
    ]


def test_malformed_and_endless_lines_are_counted(tmp_path: Path) -> None:
    path = told(tmp_path, 1, [1])
    with path.open("ab") as file:
        file.write(b"not json\n\n" + b"x" * (2 * bounds.PROGRESS_LINE_BYTES_MAX + 5) + b"\n")
        file.write(b'{"step": 2, "metrics": {"loss": 1}}\n{"step": 3, "metr')
    found = merged(RUN, tmp_path, [])
    assert loss(found) == [(1, 1), (2, 1)]
    assert found.notes == ("ignored 2 malformed lines in progress.jsonl",)


@pytest.mark.parametrize("bytes_max", [1 << 17, None])
def test_a_large_file_can_be_sampled(tmp_path: Path, bytes_max: int | None) -> None:
    path = told(tmp_path, 1, range(1, 20_001))
    assert path.stat().st_size > 800_000
    [curve] = merged(RUN, tmp_path, [], bytes_max=bytes_max).metrics
    assert (curve.reports < 4000) == (bytes_max is not None)
    assert curve.points[0].step < 5
    assert curve.points[-1].step == 20_000
    assert merged(RUN, tmp_path, [], bytes_max=bytes_max).notes == ()


def test_a_run_of_a_client_has_curves(tmp_path: Path) -> None:
    run = run_after(tmp_path, *running())
    assert run.curves.read().metrics == ()
    told(tmp_path / "runs" / RUN, 1, [1, 2], accuracy=0.5)
    assert loss(run.curves.read("loss")) == [(1, 1), (2, 1)]
    assert run.curves.read(["loss"]).left_out == ("accuracy",)
    assert run.curves.read().run == RUN
