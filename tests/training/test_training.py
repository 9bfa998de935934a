"""The training helper and the plain example, as real processes that are stopped, killed and resumed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from orchestrator.training import EXIT_SAVED, Training
from tests.training.scripts import (
    ROOT,
    fingerprints,
    finish,
    go_on,
    started,
    steps,
    until,
    until_printed,
)

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
TOY = str(Path(__file__).with_name("toy.py"))
TOTAL = 12


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, str]]:
    """The checkpoints of an uninterrupted run, by step."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with started([TOY, str(TOTAL), "every:1"], folder, {"CHECKPOINT_DIR": folder / "c"}) as process:
        output = finish(process)
    assert process.returncode == 0, output
    assert steps(folder / "c") == list(range(1, TOTAL + 1))
    return {step: fingerprints(folder / "c" / f"step-{step}") for step in range(1, TOTAL + 1)}


@pytest.fixture(scope="module")
def uninterrupted(every_step: dict[int, dict[str, str]]) -> dict[str, str]:
    """The final checkpoint of an uninterrupted run."""
    return every_step[TOTAL]


def resumed(folder: Path, step: int) -> dict[str, str]:
    """The final checkpoint of a new session that resumes from this step."""
    given = {"CHECKPOINT_DIR": folder / "again", "RESUME_FROM": folder / "c" / f"step-{step}"}
    with started([TOY, str(TOTAL)], folder, given) as process:
        output = finish(process)
    assert process.returncode == 0, output
    assert f"step {step}\n" not in output
    assert f"step {step + 1}\n" in output
    return fingerprints(folder / "again" / f"step-{TOTAL}")


def test_a_save_is_made_when_asked_and_sigterm_saves_and_exits_75(
    tmp_path: Path, uninterrupted: dict[str, str]
) -> None:
    checkpoints, request, progress = tmp_path / "c", tmp_path / "request", tmp_path / "progress.jsonl"
    request.write_text("0")
    given = {"CHECKPOINT_DIR": checkpoints, "SAVE_REQUEST": request, "PROGRESS": progress}
    with started([TOY, str(TOTAL), "step:3", "step:7", "every:2"], tmp_path, given) as process:
        until_printed(process, "step 3")
        assert steps(checkpoints) == []
        request.write_text("1")
        go_on(process)
        until_printed(process, "step 7")
        until(lambda: steps(checkpoints) == [3], process)
        process.send_signal(signal.SIGTERM)
        go_on(process)
        finish(process)
    assert process.returncode == EXIT_SAVED
    assert steps(checkpoints) == [3, 7]
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6, 7]
    assert all(line["metrics"]["loss"] > 0 for line in lines)
    assert json.loads((checkpoints / "step-7/metrics.json").read_text()) == lines[-1]["metrics"]
    assert resumed(tmp_path, 7) == uninterrupted


def test_killed_in_the_middle_of_a_save_the_one_before_stands(
    tmp_path: Path, uninterrupted: dict[str, str]
) -> None:
    given = {"CHECKPOINT_DIR": tmp_path / "c"}
    with started([TOY, str(TOTAL), "every:4", "held:8"], tmp_path, given) as process:
        until_printed(process, "saving 8")
        assert (tmp_path / "c/.tmp-step-8/model-00001-of-00001.safetensors").exists()
        process.kill()
        finish(process)
    assert steps(tmp_path / "c") == [4]
    assert resumed(tmp_path, 4) == uninterrupted


def test_what_the_training_does_while_a_slow_disk_writes_is_not_in_the_checkpoint(
    tmp_path: Path, every_step: dict[int, dict[str, str]]
) -> None:
    given = {"CHECKPOINT_DIR": tmp_path / "c"}
    with started([TOY, str(TOTAL), "every:4", "held:4"], tmp_path, given) as process:
        until_printed(process, "saving 4", f"step {TOTAL}")
        assert steps(tmp_path / "c") == []
        go_on(process)
        output = finish(process)
    assert process.returncode == 0, output
    assert {s: fingerprints(tmp_path / f"c/step-{s}") for s in steps(tmp_path / "c")} == {
        step: every_step[step] for step in (4, 8, 12)
    }


def test_a_save_that_returned_outlives_a_crash(tmp_path: Path, every_step: dict[int, dict[str, str]]) -> None:
    given = {"CHECKPOINT_DIR": tmp_path / "c"}
    with started([TOY, str(TOTAL), "every:2", "held:2", "crash:4"], tmp_path, given) as process:
        until_printed(process, "saving 2", "ValueError: the planted fault")
        go_on(process)
        finish(process)
    assert process.returncode == 1
    assert fingerprints(tmp_path / "c/step-2") == every_step[2]
    assert fingerprints(tmp_path / "c/step-4") == every_step[4]


def test_without_memory_for_a_copy_it_is_written_at_once(
    tmp_path: Path, every_step: dict[int, dict[str, str]]
) -> None:
    with started([TOY, "4", "every:4", "starved"], tmp_path, {"CHECKPOINT_DIR": tmp_path / "c"}) as process:
        output = finish(process)
    assert process.returncode == 0, output
    assert "warning: no memory for a copy of 4 MB" in output
    assert fingerprints(tmp_path / "c/step-4") == every_step[4]


def test_a_full_disk_costs_no_earlier_checkpoint(tmp_path: Path, uninterrupted: dict[str, str]) -> None:
    given = {"CHECKPOINT_DIR": tmp_path / "c"}
    with started([TOY, str(TOTAL), "every:3", "full:5"], tmp_path, given) as process:
        output = finish(process)
    assert "warning: the checkpoint of step 6 could not be saved, training goes on" in output
    assert f"step {TOTAL}\n" in output
    assert process.returncode not in (0, EXIT_SAVED)
    assert f"the checkpoint of step {TOTAL} could not be saved" in output.splitlines()[-1]
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["step-3"]
    assert resumed(tmp_path, 3) == uninterrupted


def test_without_the_orchestrator_it_resumes_from_its_own_folder(
    tmp_path: Path, uninterrupted: dict[str, str]
) -> None:
    with started([TOY, str(TOTAL), "every:5", "step:7"], tmp_path) as process:
        until_printed(process, "step 7")
        process.send_signal(signal.SIGTERM)
        go_on(process)
        finish(process)
    assert process.returncode == EXIT_SAVED
    assert steps(tmp_path / "checkpoints") == [5, 7]
    (tmp_path / "checkpoints/.tmp-step-9").mkdir()
    with started([TOY, str(TOTAL)], tmp_path) as process:
        assert "step 7\n" not in finish(process)
    assert process.returncode == 0
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-5", "step-7", "step-12"}
    assert fingerprints(tmp_path / f"checkpoints/step-{TOTAL}") == uninterrupted


def test_the_plain_example_keeps_the_contract(tmp_path: Path) -> None:
    example, forever = str(ROOT / "docs/examples/plain_pytorch.py"), str(10**9)
    first, second = tmp_path / "first", tmp_path / "second"
    progress = tmp_path / "progress.jsonl"
    with started([example, forever], tmp_path, {"CHECKPOINT_DIR": first, "PROGRESS": progress}) as process:
        until(lambda: bool(steps(first)), process)
        process.send_signal(signal.SIGTERM)
        output = finish(process)
    assert process.returncode == EXIT_SAVED, output
    told = [json.loads(line) for line in progress.read_text().splitlines()]
    assert [each["step"] for each in told[:2]] == [50, 100]
    assert all(each["metrics"]["loss"] > 0 for each in told)
    stopped = steps(first)[-1]
    given: dict[str, object] = {"CHECKPOINT_DIR": second, "RESUME_FROM": first / f"step-{stopped}"}
    with started([example, forever], tmp_path, given) as process:
        until(lambda: bool(steps(second)), process)
        process.kill()
        finish(process)
    killed = steps(second)[-1]
    assert killed > stopped
    given = {"RESUME_FROM": second / f"step-{killed}"}
    for folder, extra in ((tmp_path / "resumed", given), (tmp_path / "whole", {})):
        with started([example, str(killed + 20)], tmp_path, {**extra, "CHECKPOINT_DIR": folder}) as process:
            output = finish(process)
        assert process.returncode == 0, output
    weights = [torch.load(tmp_path / f / f"step-{killed + 20}" / "state.pt")[1] for f in ("resumed", "whole")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_metrics_that_are_not_finite_stay_out_of_the_checkpoint(tmp_path: Path) -> None:
    training = Training(tmp_path / "c", progress=tmp_path / "progress")
    training.report(1, loss=float("nan"))
    saved = training.save(1, {"x": 1}, {"loss": float("nan"), "mrr": 0.5}, required=True)
    assert saved is not None
    assert json.loads((saved / "metrics.json").read_text()) == {"mrr": 0.5}
    assert "NaN" in (tmp_path / "progress").read_text()


def test_figures_may_be_tensors(tmp_path: Path) -> None:
    training = Training(tmp_path / "c", progress=tmp_path / "progress")
    training.report(1, loss=torch.tensor(0.5, requires_grad=True))
    saved = training.save(1, {"x": 1}, {"loss": torch.tensor(0.25)}, required=True)
    assert saved is not None
    told = json.loads((tmp_path / "progress").read_text())
    assert abs(time.time() - told.pop("time")) < 3600
    assert told == {"step": 1, "metrics": {"loss": 0.5}}
    assert json.loads((saved / "metrics.json").read_text()) == {"loss": 0.25}


def test_a_step_saved_by_an_earlier_process_is_saved_anew(tmp_path: Path) -> None:
    Training(tmp_path).save(3, {"x": torch.ones(2)}, required=True)
    again = Training(tmp_path, resume_from=tmp_path / "step-3")
    assert again.save(3, {"x": torch.zeros(2)}, files={"report.md": b"#"}) == tmp_path / "step-3"
    again.wait()
    assert (tmp_path / "step-3/report.md").read_bytes() == b"#"
    assert again.saved("x").tolist() == [0.0, 0.0]
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]


def test_it_saves_where_the_system_lacks_resource_limits_and_flags_of_memory(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("lacking.py"))]
    done = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "5000.0\n", "")


def test_without_the_orchestrator_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    """What the helper did not write stays, and so does what is newer than this training."""
    foreign = tmp_path / "step-1"
    foreign.mkdir()
    Training(tmp_path).save(9, {"x": 9}, required=True)
    training = Training(tmp_path, keep=3)
    for step in range(2, 7):
        training.save(step, {"x": torch.ones(3)})
    training.wait()
    assert steps(tmp_path) == [1, 4, 5, 6, 9]
    assert {path.name for path in tmp_path.iterdir()} == {f"step-{step}" for step in (1, 4, 5, 6, 9)}
    with pytest.raises(ValueError, match="keep=0: keep at least one"):
        Training(tmp_path, keep=0)


def test_the_orchestrator_keeps_what_it_wants_whatever_the_script_says(tmp_path: Path) -> None:
    environ = {"ORCHESTRATOR_CHECKPOINT_DIR": str(tmp_path / "c"), "PYTHONPATH": str(ROOT)}
    code = (
        "from orchestrator.training import Training; training = Training.from_environment(keep=1)\n"
        "for step in (1, 2): training.save(step, {'x': 1}, required=True)"
    )
    subprocess.run([sys.executable, "-c", code], env=environ, check=True)
    assert steps(tmp_path / "c") == [1, 2]


@pytest.mark.parametrize(("given", "peak"), [("6.5e13", 6.5e13), ("", None), ("fast", None), ("nan", None)])
def test_a_peak_that_is_no_number_stops_no_training(given: str, peak: float | None, tmp_path: Path) -> None:
    environ = {"ORCHESTRATOR_CHECKPOINT_DIR": str(tmp_path), "ORCHESTRATOR_PEAK_FLOPS": given}
    code = "from orchestrator.training import Training; print(Training.from_environment().peak_flops)"
    environ |= {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(peak)
    assert ("ORCHESTRATOR_PEAK_FLOPS" in done.stderr) == (given not in ("", "6.5e13"))


def test_sigterm_while_python_ends_does_not_undo_a_training_that_is_done(tmp_path: Path) -> None:
    script = """
import os, signal
from orchestrator.training import Training
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)
training = Training.from_environment()
training.save(1, {"x": 1}, required=True)
late = Late()
"""
    environ = {"ORCHESTRATOR_CHECKPOINT_DIR": str(tmp_path / "c"), "PYTHONPATH": str(ROOT)}
    assert subprocess.run([sys.executable, "-c", script], env=environ).returncode == 0


def test_it_needs_nothing_of_ours_and_no_torch_to_start() -> None:
    code = (
        "import sys; import orchestrator.training;"
        "print(*sorted(m for m in sys.modules if m.startswith(('orchestrator', 'torch', 'numpy', 'safe'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    package = ROOT / "orchestrator/training"
    own = [
        "orchestrator",
        "orchestrator.training",
        *(
            f"orchestrator.training.{path.stem}"
            for path in sorted(package.glob("[a-z]*.py"))
            if path.stem not in ("devices", "native")
        ),
    ]
    assert done.stdout.split() == own
