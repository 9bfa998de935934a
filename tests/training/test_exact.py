"""Resume is exact: an interrupted training ends with the same bytes as an uninterrupted one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from orchestrator.training import EXIT_SAVED
from tests.training.scripts import fingerprints, finish, go_on, started, steps, until, until_printed

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
EPOCHS, TOGETHER, KILLS, PARTINGS, MESSAGES = (
    str(Path(__file__).with_name(f"{name}.py"))
    for name in ("epochs", "together", "kills", "partings", "messages")
)
TOTAL = 8


def ended(folder: Path, workers: int, *events: str, resume_from: Path | None = None) -> int | None:
    given = {"CHECKPOINT_DIR": folder} | ({} if resume_from is None else {"RESUME_FROM": resume_from})
    with started([EPOCHS, str(TOTAL), str(workers), *events], folder.parent, given) as process:
        output = finish(process)
    assert process.returncode in (0, EXIT_SAVED), output
    return process.returncode


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The final checkpoint of an uninterrupted training without workers."""
    folder = tmp_path_factory.mktemp("whole") / "c"
    assert ended(folder, 0) == 0
    return fingerprints(folder / f"step-{TOTAL}")


@pytest.mark.parametrize(("workers", "then", "stop"), [(0, 2, 2), (1, 0, 6), (2, 1, 5)])
def test_stopped_inside_an_accumulation_window_it_leaves_at_its_end(
    tmp_path: Path, whole: dict[str, str], workers: int, then: int, stop: int
) -> None:
    """Step 6 ends an epoch; 2 and 5 do not. The saves of other steps are written while workers are forked."""
    assert ended(tmp_path / "c", workers, f"term:{stop}", "every:2") == EXIT_SAVED
    assert max(steps(tmp_path / "c")) == stop
    assert ended(tmp_path / "d", then, resume_from=tmp_path / f"c/step-{stop}") == 0
    assert fingerprints(tmp_path / f"d/step-{TOTAL}") == whole


def test_killed_at_any_moment_of_a_save_the_ones_before_stand(tmp_path: Path) -> None:
    seeds = 16
    with started([KILLS, str(tmp_path), str(seeds)], tmp_path) as process:
        output = finish(process)
    assert process.returncode == 0, output
    found = re.findall(r"seed \d+: step (\d+), same", output)
    assert len(found) == seeds, output
    assert len(set(found)) > 1, output


def test_two_ranks_save_stop_and_resume_as_one(tmp_path: Path) -> None:
    def run(name: str, *events: str, resume_from: Path | None = None) -> dict[str, str]:
        folder, progress = tmp_path / name, tmp_path / f"{name}.jsonl"
        given: dict[str, object] = {"CHECKPOINT_DIR": folder, "PROGRESS": progress}
        given |= {} if resume_from is None else {"RESUME_FROM": resume_from}
        commands = [[TOGETHER, str(rank), str(tmp_path / f"{name}.meeting"), "6", *events] for rank in (0, 1)]
        with started(commands[0], tmp_path, given) as first, started(commands[1], tmp_path, given) as second:
            if events:
                until_printed(first, "step 3")
                until(lambda: steps(folder) == [2], first)
                first.send_signal(signal.SIGTERM)
                go_on(first)
            outputs = [finish(process) for process in (first, second)]
        expected = EXIT_SAVED if events else 0
        assert [first.returncode, second.returncode] == [expected] * 2, outputs
        assert '"rank": 1' not in progress.read_text()
        return fingerprints(max(folder.glob("step-*")))

    uninterrupted = run("whole")
    run("stopped", "step:3")
    assert steps(tmp_path / "stopped") == [2, 3]
    assert run("resumed", resume_from=tmp_path / "stopped/step-3") == uninterrupted


def test_ranks_may_leave_right_after_an_answer(tmp_path: Path) -> None:
    rounds = 6
    with started([PARTINGS, str(rounds)], tmp_path) as process:
        output = finish(process)
    assert output.splitlines() == [f"[{EXIT_SAVED}, {EXIT_SAVED}]"] * rounds


def test_a_message_of_the_script_is_not_taken_for_an_answer(tmp_path: Path) -> None:
    with started([MESSAGES], tmp_path) as process:
        output = finish(process)
    assert sorted(output.splitlines()) == ["0: True, 42", "1: True, 42"]
