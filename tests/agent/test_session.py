"""Whole sessions, with a real agent, a real command and real signals, and the outbox they leave."""

from __future__ import annotations

import hashlib
import json
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.agent.settings import Settings
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import Precision
from orchestrator.core.order import AgentStatus, Order, Outcome, Result
from tests.agent.sessions import QUICK, Stay, is_alive, session, written
from tests.forging import forge
from tests.waiting import wait_until

ENDLESS = ("train.py", "--endless", "--pause", "0.01")
BUDGETS = (4.0, 16.0, 64.0)


def weights_after(steps: int) -> bytes:
    """The weights of source/train.py after this many steps without interruption."""
    weights = b"seed"
    for step in range(1, steps + 1):
        weights = hashlib.sha256(weights + step.to_bytes(8, "big")).digest()
    return weights


def out_of_time(
    root: Path,
    *command: str,
    shown: Callable[[Result, Stay], bool],
    settings: Settings = QUICK,
    **changes: Any,
) -> tuple[Stay, Result]:
    """A session to the end of its budget, and its result. On a busy machine a small budget may be over before
    the training could do what is to be `shown`, so there is a larger one then."""
    for budget in BUDGETS:
        with session(root / f"{budget:.0f}", *command, budget_seconds=budget, **changes) as stay:
            result = stay.live(settings)
        if shown(result, stay):
            break
    return stay, result


def test_a_command_that_finishes_leaves_a_verified_final_checkpoint(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--save-every", "5") as stay:
        result = stay.live()
        assert (result.outcome, result.step, result.exit_code) == (Outcome.COMPLETED, 20, 0)
        final = stay.manifests()[-1]
        assert (final.ref.step, final.ref.incarnation) == (20, result.incarnation)
        assert stay.content(final, "weights") == weights_after(20)
        assert final.metrics == {"score": 20.0}
        assert final.environment["precision"] == Precision.FP32
        assert final.code == hashlib.sha256((tmp_path / "bundle.tar.gz").read_bytes()).hexdigest()
        status = stay.status()
        assert status is not None
        assert (status.state, status.step, status.checkpoint) == ("ended", 20, final.name)
        assert not list((tmp_path / "work" / "checkpoints").iterdir())


def test_the_deadline_saves_and_the_next_session_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    first, result = out_of_time(
        tmp_path / "1", *ENDLESS, steps_total=10**6, shown=lambda result, _: result.exit_code == 75
    )
    assert (result.outcome, result.exit_code) == (Outcome.STOPPED, 75)
    assert "the session's deadline" in result.message
    saved = first.manifests()[-1]
    assert saved.ref.step == result.step
    total = saved.ref.step + 10
    with session(
        tmp_path / "2", "train.py", "--steps", str(total), steps_total=total, generation=2,
        staged=first.root / "outbox", resume_step=saved.ref.step, resume=saved.name,
    ) as second:  # fmt: skip
        result = second.live()
        assert (result.outcome, result.step) == (Outcome.COMPLETED, total)
        final = second.manifests()[-1]
        assert final.parent == saved.name
        assert final.ref.generation == 2
        assert second.content(final, "weights") == weights_after(total)


def test_a_resumed_session_with_nothing_left_to_do_is_complete(tmp_path: Path) -> None:
    with session(tmp_path / "1", "train.py") as first:
        first.live()
        saved = first.manifests()[-1]
    with session(
        tmp_path / "2", "train.py", "--no-final", generation=2, staged=tmp_path / "1" / "outbox",
        resume_step=20, resume=saved.name,
    ) as second:  # fmt: skip
        result = second.live()
        assert (result.outcome, result.step) == (Outcome.COMPLETED, 20)
        assert second.manifests() == []


@pytest.mark.parametrize(
    ("flags", "outcome", "message"),
    [
        (["--exit-at", "5", "75"], Outcome.CRASHED, "exited 75 (saved) without a newer checkpoint"),
        (["--leave-at", "5"], Outcome.STOPPED, "saved step 5 and left by itself"),
        (["--no-final"], Outcome.COMPLETED,
         "completed at step 20; not resumable: no checkpoint, see `orchestrator help any-script`"),
        (["--no-final", "--save-every", "15"], Outcome.COMPLETED,
         "completed at step 20; its last checkpoint is at step 15"),
        (["--raise-at", "5"], Outcome.CRASHED, "exit code 1: ValueError: the planted fault"),
        (["--exit-at", "5", "3"], Outcome.CRASHED, "exit code 3"),
        (["--kill-at", "5"], Outcome.CRASHED, "killed by SIGKILL"),
    ],
)  # fmt: skip
def test_the_exit_is_told_apart(tmp_path: Path, flags: list[str], outcome: Outcome, message: str) -> None:
    with session(tmp_path, "train.py", *flags) as stay:
        result = stay.live()
        assert (result.outcome, result.message) == (outcome, message)


def test_a_crash_brings_the_end_of_the_log_and_keeps_its_checkpoints(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--save-every", "5", "--raise-at", "17") as stay:
        result = stay.live()
        assert result.step == 15
        assert [m.ref.step for m in stay.manifests()] == [5, 10, 15]
        assert result.tail.splitlines()[0] == "Traceback (most recent call last):"
        assert result.tail.splitlines()[-1] == "ValueError: the planted fault"
        assert "ValueError: the planted fault" in stay.log()


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with session(tmp_path, command=("trian", "--fast")) as stay:
        result = stay.live()
        assert (result.outcome, result.exit_code) == (Outcome.CRASHED, 127)
        assert result.message == "exit code 127: trian: command not found"


def test_memory_beyond_the_orders_is_out_of_memory(tmp_path: Path) -> None:
    flags = ("--allocate-at", "7", "--save-every", "5")
    with session(tmp_path, "train.py", *flags, memory_bytes=200 * 2**20) as stay:
        result = stay.live()
        assert (result.outcome, result.step) == (Outcome.OUT_OF_MEMORY, 5)
        assert "MemoryError" in result.message


def test_a_command_that_stops_stepping_is_stalled(tmp_path: Path) -> None:
    settings = replace(QUICK, stall_floor=0.5, stall_factor=1.0)
    script = (
        "import os, pathlib, signal, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: None)\n"
        "saved = pathlib.Path(os.environ['ORCHESTRATOR_CHECKPOINT_DIR'], 'step-5')\n"
        "saved.with_name('draft').mkdir()\n"
        "(saved.with_name('draft') / 'weights').write_bytes(b'w')\n"
        "saved.with_name('draft').rename(saved)\n"
        "with open(os.environ['ORCHESTRATOR_PROGRESS'], 'ab', buffering=0) as progress:\n"
        "    progress.write(b''.join(b'{\"step\": %d}\\n' % step for step in range(1, 9)))\n"
        "while True: time.sleep(0.05)\n"
    )
    with session(tmp_path / "s", "train.py", source=written(tmp_path, script)) as stay:
        result = stay.live(settings)
        assert (result.outcome, result.step) == (Outcome.STALLED, 5)
        assert result.exit_code == -signal.SIGKILL


def test_a_command_that_never_makes_a_first_step_is_stalled(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--pause", "600") as stay:
        result = stay.live(replace(QUICK, first_step=0.5))
        assert (result.outcome, result.step) == (Outcome.STALLED, None)


@pytest.mark.parametrize("how", ["stop file", "SIGTERM twice"])
def test_a_request_to_stop_saves_and_leaves(tmp_path: Path, how: str) -> None:
    with session(tmp_path, *ENDLESS, "--linger", interval_seconds=600.0) as stay:
        agent = stay.start()
        stay.wait_for(lambda s: (s.step or 0) > 3, "the first steps")
        if how == "stop file":
            (tmp_path / "stop").touch()
        else:
            agent.send_signal(signal.SIGTERM)
            wait_until(lambda: "asking the training to save and leave" in stay.log(), "the first")
            agent.send_signal(signal.SIGTERM)
        (tmp_path / "work" / "source" / "go").touch()
        result = stay.end()
        assert result.outcome is Outcome.STOPPED
        assert result.message.endswith("and left for a request to stop")
        assert [m.ref.step for m in stay.manifests()] == [result.step]


def test_a_stop_before_the_training_began_starts_nothing(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS) as stay:
        (tmp_path / "stop").touch()
        result = stay.live()
        assert (result.outcome, result.exit_code) == (Outcome.STOPPED, None)
        assert not (tmp_path / "work" / "source" / "pids").exists()


@pytest.mark.parametrize(("flags", "outcome"), [([], Outcome.STOPPED), (["--never-save"], Outcome.CRASHED)])
def test_a_command_deaf_to_sigterm_is_killed_in_time(
    tmp_path: Path, flags: list[str], outcome: Outcome
) -> None:
    stay, result = out_of_time(
        tmp_path, *ENDLESS, "--deaf", "--child", *flags,
        shown=lambda result, _: (result.outcome, result.exit_code) == (outcome, -signal.SIGKILL),
    )  # fmt: skip
    assert (result.outcome, result.exit_code) == (outcome, -signal.SIGKILL)
    assert "was killed after its grace" in result.message
    assert [pid for pid in stay.pids(2) if is_alive(pid)] == []


def test_the_budget_counts_from_the_machines_start(tmp_path: Path) -> None:
    started = str(SystemClock().elapsed() - 100.0) if SystemClock().elapsed() > 100.0 else "0"
    with session(tmp_path, *ENDLESS, budget_seconds=90.0) as stay:
        result = stay.live(environment={"ORCHESTRATOR_STARTED_ELAPSED": started})
        assert result.outcome is Outcome.STOPPED
        assert result.message == "the session's time was over before the training began"


def test_saves_are_asked_for_by_time(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS, interval_seconds=0.2) as stay:
        stay.start()
        first = stay.wait_for(lambda s: s.checkpoint_step, "a requested checkpoint")
        assert first.save_seconds is not None
        again = stay.wait_for(lambda s: (s.checkpoint_step or 0) > (first.checkpoint_step or 0), "the next")
        assert again.heartbeat > first.heartbeat
        assert again.steps_per_second is not None
        (tmp_path / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED


def test_a_short_budget_is_saved_in_its_course_too(tmp_path: Path) -> None:
    settings = replace(QUICK, save_floor=60.0, save_ceiling=300.0)
    stay, result = out_of_time(
        tmp_path, *ENDLESS, "--deaf", settings=settings, shown=lambda _, stay: bool(stay.manifests())
    )
    assert (result.outcome, bool(stay.manifests())) == (Outcome.STOPPED, True)


def test_a_loss_that_is_no_number_is_warned_of_once(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--nan-at", "3") as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert status.warnings == ("loss is nan at step 3",)
        assert status.loss == 0.05
        assert stay.log().count("loss is nan") == 1


def test_garbage_in_progress_is_skipped(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--garbage") as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        status = stay.status()
        assert status is not None
        assert status.step == 20
        assert status.warnings == ("ignored malformed lines in progress.jsonl",)


def test_the_log_is_rotated_and_bounded_with_both_ends_kept(tmp_path: Path) -> None:
    settings = replace(QUICK, log_segment_bytes=64 * 1024, log_total_bytes=512 * 1024)
    with session(tmp_path, "train.py", "--say", "the very first", "--say-kilobytes", "2000") as stay:
        assert stay.live(settings).outcome is Outcome.COMPLETED
        sizes = [path.stat().st_size for path in (tmp_path / "outbox" / "log").iterdir()]
        assert max(sizes) <= 64 * 1024
        assert sum(sizes) <= 512 * 1024
        log = stay.log()
        assert "the very first\n" in log
        assert "completed at step 20" in log
        numbers = [int(line[:8]) for line in log.splitlines() if line.endswith("x" * 1014)]
        assert numbers[0] == 0
        assert numbers[-1] == 1999
        assert len(numbers) < 600


def test_secrets_reach_the_command_and_nothing_else(tmp_path: Path) -> None:
    flags = ("--say", "the token is {secret}, really")
    given = {"TOKEN": "hunter2-hunter2", "OTHER": "not asked for"}
    with session(tmp_path, "train.py", *flags, values=given, secrets=("TOKEN",)) as stay:
        assert stay.live().outcome is Outcome.COMPLETED
        assert not (tmp_path / "secrets.json").exists()
        assert "the token is ***, really" in stay.log()
        for path in (tmp_path / "outbox").rglob("*"):
            assert path.is_dir() or b"hunter2" not in path.read_bytes()


def test_a_secret_that_was_not_delivered_is_named(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", secrets=("TOKEN",)) as stay:
        result = stay.live()
        assert (result.outcome, result.message) == (
            Outcome.CRASHED,
            "the job's secrets were not delivered: TOKEN",
        )


def test_the_command_gets_what_the_contract_says(tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    with session(
        tmp_path, "train.py", "--show-environment", threads=3, budget_seconds=3600.0,
        env=(("MINE", "1"), ("OMP_NUM_THREADS", "64"), ("WANDB_RESUME", "must")),
    ) as stay:  # fmt: skip
        mine = {"ORCHESTRATOR_HOME": "/elsewhere", "PYTHONPATH": "/given", "WANDB_RUN_ID": "of my shell"}
        result = stay.live(environment=mine)
        assert result.outcome is Outcome.COMPLETED
        source = tmp_path / "work" / "source"
        seen = json.loads((source / "environment").read_text())
        assert seen["PYTHONPATH"] == f"{tmp_path / 'agent.pyz'}:/given", (
            "the source's root could hide a module"
        )
        assert (seen["MINE"], seen["OMP_NUM_THREADS"], seen["PYTHONUNBUFFERED"]) == ("1", "3", "1")
        assert seen["ORCHESTRATOR_INPUTS"] == str(tmp_path / "inputs")
        assert seen["ORCHESTRATOR_PROGRESS"] == str(tmp_path / "work" / "progress.jsonl")
        left = float(seen["ORCHESTRATOR_DEADLINE"]) - SystemClock().now()
        assert 3000 < left < 3600
        assert float(seen["ORCHESTRATOR_PEAK_FLOPS"]) == catalogue["cpu"].peak_flops[Precision.FP32]
        assert seen["ORCHESTRATOR_ACCELERATOR"] == "cpu"
        assert seen["ORCHESTRATOR_RUN"] == seen["WANDB_RUN_ID"] == "demo-abcdefgh"
        assert seen["ORCHESTRATOR_SESSION_NAME"] == "demo-abcdefgh-s01"
        assert seen["WANDB_RESUME"] == "must", "the job's own value wins"
        assert "ORCHESTRATOR_RESUME_FROM" not in seen
        assert "ORCHESTRATOR_HOME" not in seen


def test_a_job_can_take_the_variables_of_wandb_away(tmp_path: Path) -> None:
    env = (("WANDB_RUN_ID", ""), ("WANDB_RESUME", ""))
    program = "import os; print('left:', [name for name in os.environ if name.startswith('WANDB')])"
    with session(tmp_path, "-c", program, env=env) as stay:
        stay.live()
        assert "left: []" in stay.log()


def test_the_training_helper_is_there_to_import(tmp_path: Path) -> None:
    program = "import orchestrator.training as t; print('helper from', t.__file__)"
    with session(tmp_path, "-c", program) as stay:
        stay.live()
        assert f"helper from {tmp_path / 'agent.pyz'}" in stay.log()


@pytest.mark.parametrize("harm", ["altered", "missing blob", "missing manifest", "another run's", "forged"])
def test_a_corrupt_staged_checkpoint_sends_the_run_elsewhere(tmp_path: Path, harm: str) -> None:
    with session(tmp_path / "1", "train.py", "--leave-at", "5") as first:
        first.live()
        saved = first.manifests()[-1]
    run = "other-abcdefgh" if harm == "another run's" else "demo-abcdefgh"
    with session(
        tmp_path / "2", "train.py", generation=2, run=run, staged=tmp_path / "1" / "outbox",
        resume_step=5, resume=saved.name, resume_sha256=saved.sha256,
    ) as second:  # fmt: skip
        staged = tmp_path / "2" / "staged"
        [weights] = [e for e in saved.files if e.path == "weights"]
        blob = staged / "blobs" / weights.parts[0].sha256
        if harm == "altered":
            blob.unlink()
            blob.write_bytes(b"x" * weights.size)
        elif harm == "missing blob":
            blob.unlink()
        elif harm == "missing manifest":
            (staged / "checkpoints" / saved.name / "manifest.json").unlink()
        elif harm == "forged":
            forge(staged, saved.name)
        result = second.live()
        assert result.outcome is Outcome.LOST
        assert result.message.startswith(
            f"staged checkpoint corrupt: checkpoint {saved.name} cannot be used:"
        )
        assert not (tmp_path / "2" / "work" / "source" / "pids").exists()


def test_an_order_that_cannot_be_read_still_brings_a_result(tmp_path: Path) -> None:
    with session(tmp_path, "train.py") as stay:
        (tmp_path / "order.json").write_bytes(b'{"run": 7}')
        result = stay.live()
        assert (result.outcome, result.exit_code) == (Outcome.CRASHED, None)
        assert "order.json cannot be read: Order: session, generation" in result.message


def test_the_agents_own_bug_brings_its_traceback(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", env=(("BROKEN", "nul\0byte"),)) as stay:
        result = stay.live()
        assert result.outcome is Outcome.CRASHED
        assert "this is a bug in the agent" in result.message
        assert "ValueError: embedded null byte" in result.tail


def test_a_disk_that_fills_up_loses_no_checkpoint_and_is_tried_again(tmp_path: Path) -> None:
    """A limit on the size of the agent's files simulates a full disk: only the agent's writes fail."""
    settings = replace(QUICK, part_bytes=8192)
    with session(tmp_path, *ENDLESS, "--sparse", "20000", interval_seconds=0.2) as stay:
        agent = stay.start(settings)
        stay.wait_for(lambda s: s.checkpoint, "a first checkpoint")
        limited_file_size(agent.pid, 6000)
        stay.wait_for(
            lambda s: any("was not committed: File too large" in text for text in s.warnings),
            "a warning of the full disk",
        )
        kept = [m.ref.step for m in stay.manifests()]
        assert kept
        limited_file_size(agent.pid, None)
        status = stay.wait_for(lambda s: (s.checkpoint_step or 0) > kept[-1], "the next commit to succeed")
        stay.wait_for(lambda s: s.checkpoint_step != status.checkpoint_step, "the one after it")
        (tmp_path / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED
        assert len(stay.manifests()) == 3


def limited_file_size(pid: int, size: int | None) -> None:
    limit = resource.RLIM_INFINITY if size is None else size
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def test_a_checkpoint_that_can_never_be_one_is_given_up(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--link", "--save-every", "5") as stay:
        result = stay.live()
        assert result.outcome is Outcome.COMPLETED
        assert "not resumable" in result.message
        assert "step-20 contains 'link', which is neither a file nor a folder" in result.message
        assert stay.manifests() == []
        assert stay.outputs()[".orchestrator/checkpoints/step-20/weights"] == weights_after(20)


def test_status_and_result_are_what_the_core_reads(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", "--wait-at", "15", budget_seconds=3600.0) as stay:
        stay.start()
        running = stay.wait_for(lambda s: s.state == "training", "the training state")
        (tmp_path / "work" / "source" / "go").touch()
        assert running.deadline is not None
        assert abs(running.deadline - running.written_at - 3600.0) < 60.0
        result = stay.end()
        names = {path.name for path in (tmp_path / "outbox").iterdir()}
        assert names == {
            "incarnation", "status.json", "progress.jsonl", "log", "blobs", "checkpoints", "result.json",
        }  # fmt: skip
        assert (tmp_path / "outbox" / "incarnation").read_text().strip() == result.incarnation
        wire.decode(AgentStatus, (tmp_path / "outbox" / "status.json").read_bytes())
        wire.decode(Order, (tmp_path / "order.json").read_bytes())


def test_a_step_saved_again_after_its_commit_is_no_second_checkpoint(tmp_path: Path) -> None:
    with session(tmp_path, *ENDLESS, "--save-every", "1", interval_seconds=600.0) as stay:
        stay.start()
        status = stay.wait_for(lambda s: s.checkpoint_step, "a checkpoint")
        again = tmp_path / "work" / "checkpoints" / f"step-{status.checkpoint_step}"
        building = again.with_name(".building-again")
        building.mkdir()
        (building / "weights").write_bytes(b"other bytes")
        building.rename(again)
        wait_until(lambda: not again.exists(), "the second save of the same step to be dropped")
        (tmp_path / "stop").touch()
        assert stay.end().outcome is Outcome.STOPPED
        steps = [m.ref.step for m in stay.manifests()]
        assert len(steps) == len(set(steps))
