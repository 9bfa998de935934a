"""Resume is exact: an interrupted training ends with the same bytes as an uninterrupted one."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator.training import EXIT_SAVED, Training
from orchestrator.training.training import newest
from tests import warm
from tests.agent.sessions import is_alive
from tests.training.scripts import (
    ROOT,
    Done,
    fingerprints,
    finish,
    go_on,
    in_time,
    started,
    steps,
    until,
    until_printed,
)

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


FIVE_LINES = str(ROOT / "docs/examples/five_lines.py")
STEPS = 300


def five_lines(
    folder: Path, workers: int, ending: int = 0, at: int = 0, resume_from: Path | None = None
) -> int:
    """Runs the documented example, which `ending` ends once it has reported step `at`. Its exit code."""
    progress = folder.with_name(f"{folder.name}-{at}.jsonl")
    given: dict[str, object] = {"CHECKPOINT_DIR": folder, "PROGRESS": progress}
    given |= {} if resume_from is None else {"RESUME_FROM": resume_from}
    with started([FIVE_LINES, str(STEPS), str(workers)], folder.parent, given) as process:
        if ending:
            until(lambda: progress.exists() and f'"step": {at},' in progress.read_text(), process)
            process.send_signal(signal.Signals(ending))
        output = finish(process)
    assert process.returncode in (0, EXIT_SAVED, -signal.SIGKILL), output
    assert "warning" not in output
    if ending and process.returncode == 0:
        raise Done
    return process.returncode


@pytest.fixture(scope="module")
def whole_five_lines(tmp_path_factory: pytest.TempPathFactory) -> object:
    folder = tmp_path_factory.mktemp("five") / "c"
    assert five_lines(folder, 0) == 0
    return seeded(folder / f"step-{STEPS}")


def seeded(folder: Path) -> tuple[dict[str, str], object]:
    """What a checkpoint holds, without the generators that the example neither seeds nor draws from."""
    files = fingerprints(folder)
    del files["state.json"]
    document = json.loads((folder / "state.json").read_bytes())
    return files, {**document, "random": document["random"]["torch"]}


@pytest.mark.parametrize("workers", [pytest.param(0, marks=pytest.mark.soak), 2])
def test_five_lines_make_an_ordinary_script_exact(
    tmp_path: Path, whole_five_lines: object, workers: int
) -> None:
    """Killed and terminated in turn at random moments, with the other number of workers at the end."""

    def disturbed(number: int, ending: int, after: int, found: Path | None, attempt: int) -> Path | None:
        """The newest checkpoint. It must leave some of the training to the endings that follow."""
        folder = tmp_path / f"c-{number}-{attempt}"
        code = five_lines(folder, workers, ending, step_of(found) + after, found)
        assert code == (EXIT_SAVED if ending == signal.SIGTERM else -signal.SIGKILL)
        found = newest(folder) or found
        if step_of(found) > 150 + 50 * number:
            raise Done
        return found

    chance, found = random.Random(workers), None
    for number, ending in enumerate((signal.SIGKILL, signal.SIGTERM, signal.SIGKILL)):
        found = in_time(partial(disturbed, number, ending, chance.randint(20, 90), found))
    assert found is not None
    assert five_lines(tmp_path / "c", 2 - workers, resume_from=found) == 0
    assert seeded(tmp_path / f"c/step-{STEPS}") == whole_five_lines


def step_of(found: Path | None) -> int:
    return 0 if found is None else int(found.name.removeprefix("step-"))


def test_ctrl_c_saves_at_the_next_step_while_its_workers_go_on(
    tmp_path: Path, whole_five_lines: object
) -> None:
    """A terminal sends it to every process of the training."""

    def interrupted(attempt: int) -> Path:
        """The folder that it was started in."""
        place = tmp_path / str(attempt)
        place.mkdir()
        with started([FIVE_LINES, str(STEPS), "2"], place) as process:
            until(lambda: 50 in steps(place / "checkpoints"), process)
            until(lambda: len(stopped_with_workers(process)) == 2, process)
            for pid in (*stopped_with_workers(process), process.pid):
                os.kill(pid, signal.SIGINT)
            process.send_signal(signal.SIGCONT)
            output = finish(process)
        if process.returncode == 0:
            raise Done
        assert process.returncode == EXIT_SAVED, output
        assert "warning: saving at the next step; Ctrl-C again ends at once" in output
        return place

    place = in_time(interrupted)
    with started([FIVE_LINES, str(STEPS), "0"], place) as process:
        output = finish(process)
    assert process.returncode == 0, output
    assert seeded(place / f"checkpoints/step-{STEPS}") == whole_five_lines


def is_stopped(pid: int) -> bool:
    try:
        return "\nState:\tT" in Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended
        return False


def stopped_with_workers(process: warm.Process) -> list[int]:
    """Its workers, once it is stopped; if there are not two, because an epoch is over, it goes on."""
    process.send_signal(signal.SIGSTOP)
    until(lambda: is_stopped(process.pid), process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    found = [int(pid) for pid in children if is_alive(int(pid))]
    if len(found) != 2:
        process.send_signal(signal.SIGCONT)
    return found


def trained(model: torch.nn.Module, folder: Path, upto: int, resume_from: Path | None) -> Path:
    """The checkpoint of a training that ends at a step, with this model."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    training = Training(folder, resume_from=resume_from)
    for _ in training.steps(upto, {"model": model, "optimizer": optimizer}):
        (model(torch.randn(8, 6)) - 1.0).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return folder / f"step-{upto}"


def test_a_compiled_model_and_a_plain_one_continue_each_other_exactly(tmp_path: Path) -> None:
    def plain() -> torch.nn.Module:
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Dropout(0.3), torch.nn.Linear(9, 1))

    def compiled() -> torch.nn.Module:
        made: Any = torch.compile(plain(), backend="eager")  # the same operations, bit for bit
        assert isinstance(made, torch.nn.Module)
        return made

    whole = fingerprints(trained(plain(), tmp_path / "whole", 6, None))
    for number, (first, then) in enumerate([(plain, compiled), (compiled, plain), (compiled, compiled)]):
        stopped = trained(first(), tmp_path / f"first-{number}", 3, None)
        assert fingerprints(trained(then(), tmp_path / f"then-{number}", 6, stopped)) == whole


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
