"""The program that Kaggle runs, and how a session ends by itself or on request."""

from __future__ import annotations

import json
import os
import signal
import tarfile
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.order import Outcome
from orchestrator.core.session import Observation, Sighting, StopReply
from orchestrator.platforms.kaggle import kernel, runner, stopping
from orchestrator.platforms.kaggle.logs import Told, spoken
from orchestrator.platforms.kaggle.options import KaggleOptions
from tests.cli.calls import caller
from tests.conformance.test_platforms import agent, any_order
from tests.platforms.kaggle_box import FIRST, LEAVES, SECOND, WAITS, Box, Boxes, box, boxes
from tests.stand_ins.kaggle import Settings, State, Warts, local_kaggle
from tests.waiting import wait_until

__all__ = ["agent", "box", "boxes"]
HOUR = 3600.0
GPU: dict[str, Any] = {"accelerator": "T4x2", "devices": 2}
STATUS = {"incarnation": "aa", "step": 3, "checkpoint": None}
# A training that explains its end, and one that talks while it runs.
RAISES = "import sys; print('loss 7.25', flush=True); sys.exit(1) if sys.argv[1:] else 1 / 0"
TALKS = """
import sys, time
for step in range(10_000):
    print("loss", step, flush=True)
    time.sleep(0.05)
"""


# --- The time-out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accelerator", "budget", "seconds"),
    [
        ("T4x2", 11.25 * HOUR, 12 * HOUR - 60),  # a whole session
        ("TPUv5e-8", 8.25 * HOUR, 9 * HOUR - 60),
        ("cpu", None, 12 * HOUR - 60),
        ("T4x2", 2 * HOUR, 2.75 * HOUR),  # what is left of the quota
    ],
)
def test_the_time_out_is_the_budget_and_the_margin_below_the_limit(
    accelerator: str, budget: float | None, seconds: float
) -> None:
    assert timeout(accelerator, budget) == seconds


@pytest.mark.parametrize("margin", [0.0, 1.0, 1800.0])
@pytest.mark.parametrize("limit", [5.0, 60.0, 43_200.0])
def test_the_time_out_is_always_lower_than_the_limit(limit: float, margin: float) -> None:
    """ "Lower than", says the client's documentation (docs/references/kaggle.md#push)."""
    margin = min(margin, limit / 2)
    for budget in (None, limit - margin, 10 * limit):
        assert 0 < timeout("cpu", budget, session_seconds=limit, wall_margin_seconds=margin) < limit


def timeout(accelerator: str, budget: float | None, **options: Any) -> int:
    order = any_order(FIRST, 6, 1, accelerator=accelerator, budget_seconds=budget)
    push = kernel.push(
        KaggleOptions(**options), order, name=FIRST, home="0" * 12, datasets=(), files=(), hand_over=None
    )
    return push.timeout_seconds


def test_a_wedged_session_ends_itself(box: Box) -> None:
    """It bills for what it was given, not until the limit of the platform, which is ten minutes here."""
    box.use(wall_margin_seconds=1.0)
    box.run(WAITS, **GPU, budget_seconds=0.5)
    assert box.until_ended(FIRST).ending is Outcome.LOST
    assert box.kaggle.kernel(FIRST).state is State.CANCEL_ACKNOWLEDGED
    quota = box.kaggle_quota().gpu
    assert quota is not None
    assert 0.0 < quota.used < 300.0
    assert quota.reserved == 0.0
    assert "DeleteKernel" not in box.kaggle.calls


def test_a_machine_without_a_shape_names_none(box: Box) -> None:
    box.run(WAITS)
    box.run(WAITS, SECOND, generation=2, **GPU)
    cpu, gpu = box.kaggle.pushed
    assert "machineShape" not in cpu
    assert (cpu.get("enableGpu"), cpu.get("enableTpu")) in ((None, None), (False, False))
    assert gpu["machineShape"] == "NvidiaTeslaT4"


# --- Inputs -----------------------------------------------------------------------------------------------


def test_inputs_and_a_checkpoint_behind_links_are_found(boxes: Boxes) -> None:
    box = boxes(Warts(inputs_are_links=True))
    box.run_to_end()
    order = box.resuming(SECOND, 11, 2)
    box.start(order, box.into(FIRST))
    result = box.until_ended(order.session).result
    assert result is not None
    assert (result.outcome, result.step) == (Outcome.COMPLETED, 11), result
    assert box.kaggle.pushed[-1]["kernelDataSources"] == [f"ada/{FIRST}"]


def test_inputs_that_are_mounted_late_are_waited_for(boxes: Boxes) -> None:
    box = boxes(Warts(mount_lag_seconds=0.1))
    box.use(mount_seconds=0.5)
    box.run(LEAVES)
    result = box.until_ended(FIRST).result
    assert result is not None
    assert result.message == "left"


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "input"
    folder.mkdir()
    monkeypatch.setattr(runner, "INPUT", str(folder))
    return folder


def test_all_inputs_share_one_time_limit(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            with tarfile.open(inputs / "first", "w"):
                pass

    with tarfile.open(tmp_path / "same", "w"):
        pass
    files = {"first": runner.digest(tmp_path / "same"), "second": "0" * 64}
    monkeypatch.setattr(runner, "_say", say)
    monkeypatch.setattr(runner, "MOUNT_PAUSE_SECONDS", 1 / 64)
    none: dict[str, Any] = {"hand_over": None, "hand_over_sha256": None}
    session = none | {"files": files, "header": 0, "mount_seconds": 4 / 64}
    with pytest.raises(runner.Unfit, match="second was not mounted"):
        runner.lay_out(session, tmp_path / "root")
    assert len(said) == 4


def test_a_circle_of_links_ends(inputs: Path) -> None:
    for name in ("a", "b"):
        (inputs / name).mkdir()
        (inputs / name / "self").symlink_to(inputs / name)
        (inputs / name / "up").symlink_to(inputs)
    (inputs / "a" / "b").symlink_to(inputs / "b")
    (inputs / "b" / "a").symlink_to(inputs / "a")
    (inputs / "nowhere").symlink_to(inputs / "nowhere")
    (inputs / "a" / "wanted").write_text("x")
    assert inputs / "a" / "wanted" in runner.mounted("wanted")
    assert len(runner.mounted("wanted")) < 4


def test_what_is_mounted_behind_links_is_named_if_something_is_missing(inputs: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "other.bin").write_text("x")
    (inputs / "linked").symlink_to(elsewhere)
    with pytest.raises(runner.Unfit, match=r"was not mounted; mounted files: linked/other\.bin$"):
        runner.verified("materials", "0" * 64)


# --- What it prints ---------------------------------------------------------------------------------------


def test_the_end_of_the_log_and_the_traceback_are_in_kaggles_log(box: Box) -> None:
    """So a session whose output is lost still explains itself."""
    box.kaggle.warts.error_loses_outputs = box.kaggle.warts.death_keeps_outputs = True
    box.start(box.order(command=("python", "-c", RAISES)))
    box.until(lambda: box.kaggle.kernel(FIRST).state in (State.COMPLETE, State.ERROR))
    said = "".join(each["data"] for each in json.loads(box.kaggle.kernel(FIRST).machine.log.text()))
    lines = said.splitlines()
    assert "| loss 7.25" in lines
    assert "| Traceback (most recent call last):" in lines
    assert "| ZeroDivisionError: division by zero" in lines
    assert any(line.startswith("orchestrator: crashed: ") for line in lines)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    (tmp_path / "log").mkdir()
    return tmp_path / "log" / "000001.log"


def test_what_is_quoted_stays_within_limits(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training may print more than Kaggle keeps. The end of its log is quoted in any case."""
    quoted = runner.Quoted(log.parent)
    text = "".join(f"{number} {'x' * 190}\n" for number in range(100))
    printed = 0
    with log.open("w") as file:
        for _ in range(1000):  # looks, of half a minute each
            file.write(text)
            file.flush()
            quoted.quote()
            new = capsys.readouterr().out
            assert len(new.splitlines()) <= runner.TAIL_LINES
            printed += len(new)
        assert printed <= runner.QUOTED_BYTES_MAX
        assert new == "", "the limit was reached"
        file.write("Traceback (most recent call last):\n" + "y" * 10_000 + "\nKeyError: 'weights'")
    quoted.finish()
    end = capsys.readouterr().out
    assert end.endswith("| KeyError: 'weights'\n")
    assert "| Traceback (most recent call last):\n" in end
    assert max(map(len, end.splitlines())) <= runner.LINE_MAX + len(runner.QUOTES)
    assert printed + len(end) <= runner.QUOTED_BYTES_MAX + len(end.splitlines()) * len("| \n")


def test_each_line_is_quoted_once_and_whole(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = runner.Quoted(log.parent)
    quoted.quote()  # there is no log yet
    log.write_text("one\ntwo\nthr")
    quoted.quote()
    quoted.quote()
    with log.open("a") as file:
        file.write("ee\n\x1b[31mred\n")
    quoted.quote()
    log.with_name("000002.log").write_text("four")
    quoted.finish()
    assert capsys.readouterr().out.splitlines() == ["| one", "| two", "| three", "|  [31mred", "| four"]


def test_a_running_session_shows_the_end_of_its_log(box: Box) -> None:
    box.start(box.order(command=("python", "-c", TALKS)))
    box.until(lambda: "loss 1\nloss 2\n" in box.platform.observe([FIRST])[FIRST].log)
    assert box.see(FIRST).sighting is Sighting.RUNNING


def test_the_use_of_its_own_gpu_is_told_and_kept(box: Box) -> None:
    box.run(accelerator="T4", devices=1)  # one of the machine's two

    def use() -> GpuUse | None:
        status = box.see(FIRST).status
        return None if status is None else status.gpu_use

    found = wait_until(use, "a sample in the log")
    assert (found.gpus, found.percent, found.watts) == (1, 11.0, 38.5)
    pid = box.kaggle.kernel(FIRST).pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    status = box.until_ended(FIRST).status
    assert status is not None
    assert status.gpu_use is not None
    assert status.gpu_use.percent == 11.0


def test_logs_shows_something_while_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "user"
    folder.mkdir()
    with local_kaggle(tmp_path / "kaggle", Settings()) as kaggle, caller(folder) as user:
        (user.folder / "key").write_text(kaggle.settings.key)
        user.config(
            f"platforms:\n  kaggle: {{type: kaggle, endpoint: '{kaggle.url}', username: ada, key_file: "
            f"{user.folder / 'key'}, accelerators: [cpu], threads: 1, poll_seconds: 0.3, "
            "report_seconds: 0.3}\n"
        )
        run = user.submitted(user.job(total=10_000))
        follower = user.start("logs", run, "--follow")
        assert follower.stdout is not None
        assert "so far, as its platform shows it" in follower.stdout.readline()
        wait_until(lambda: "training starts" in follower.stdout.readline(), "the log's lines")  # type: ignore[union-attr]
        assert kaggle.kernel(f"{run}-s01").state is State.RUNNING


# --- How its log is understood ----------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["\n", ""])
def test_log_data_without_line_ends_is_understood(end: str) -> None:
    newer = STATUS | {"step": 4}
    said = [
        "Collecting torch",
        "orchestrator: demo-s01 on a gpu for 60 s",
        'orchestrator: {"session_id": 123}',
        f"orchestrator: {json.dumps(STATUS)}",
        "| one",
        "| two",
        f"orchestrator: {json.dumps(newer)}",
        'orchestrator: {"left": 0}',
    ]
    assert spoken(f"{each}{end}" for each in said) == Told(json.dumps(newer), "one\ntwo", 123, left=True)


def test_a_line_in_several_pieces_is_understood() -> None:
    text = f'orchestrator: {{"session_id": 5}}\norchestrator: {json.dumps(STATUS)}\n| one\n'
    for size in (1, 7, 30):
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        assert spoken(pieces) == Told(json.dumps(STATUS), "one", 5), size


def test_what_the_training_prints_says_nothing_for_the_runner() -> None:
    quoted = ('| orchestrator: {"left": 0}\n', '| orchestrator: {"session_id": 1}')
    assert spoken(quoted) == Told(None, 'orchestrator: {"left": 0}\norchestrator: {"session_id": 1}')


def test_a_quoted_line_in_two_pieces_says_nothing_for_the_runner() -> None:
    """Even if the second one looks like the runner's words."""
    said = "orchestrator: demo-s01 on a gpu for 60 s\n"
    forged = 'orchestrator: {"left": 0, "files": 0}\n'
    assert spoken((said, "| ", forged)) == Told(log=forged.rstrip())
    left = spoken((said, "| one", "\n", "a warning", forged))
    assert left == Told(log="one", left=True, files=0), "its own words count also behind somebody's open line"


def is_read(seen: Observation) -> bool:
    assert seen.sighting is Sighting.RUNNING
    return seen.status is not None and "training starts" in seen.log


def test_a_session_is_read_whatever_its_log_looks_like(box: Box) -> None:
    box.run()
    box.until_saved(FIRST)
    for wart in ("log_has_no_newlines", "log_is_unchunked", "log_is_endless"):
        setattr(box.kaggle.warts, wart, True)
        box.until(lambda: is_read(box.see(FIRST)))  # on a busy machine a look may hear too little


# --- Its end on request -----------------------------------------------------------------------------------


def test_where_kaggle_allows_it_a_session_is_cancelled_and_keeps_its_output(boxes: Boxes) -> None:
    box = boxes(Warts(cancel_works=True))
    box.run()
    box.until_saved(FIRST)
    log = box.kaggle.kernel(FIRST).machine.log.text()
    assert f'{{\\"session_id\\": {box.kaggle.kernel(FIRST).session_id}}}' in log
    platform = box.another_controller()  # the id is remembered
    assert platform.stop(FIRST) is StopReply.REQUESTED
    box.until_ended(FIRST)
    assert box.collect(FIRST).manifests, "its saved work is kept"
    box.until(lambda: platform.stop(FIRST) is StopReply.ENDED)
    assert box.kaggle.calls.count("CancelKernelSession") == 1
    assert "DeleteKernel" not in box.kaggle.calls


@pytest.mark.parametrize("status", [403, 400, 409])
def test_where_kaggle_does_not_allow_it_the_kernel_is_deleted(boxes: Boxes, status: int) -> None:
    """What we take for the session's id may be none, and then nobody knows how Kaggle refuses."""
    box = boxes(Warts(cancel_refusal=status))
    run_and_hear(box)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.kaggle.calls.count("CancelKernelSession") == 1
    assert box.see(FIRST).sighting is Sighting.ABSENT


def test_a_cancel_that_ends_nothing_is_followed_by_a_deletion(
    boxes: Boxes, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = boxes(Warts(cancel_works=True))
    run_and_hear(box)
    box.kaggle.kernel(FIRST).wedge()
    assert box.platform.stop(FIRST) is StopReply.REQUESTED
    assert box.platform.stop(FIRST) is StopReply.REQUESTED, "it has ten minutes"
    monkeypatch.setattr(stopping, "CANCEL_SECONDS_MAX", 0.0)
    assert box.platform.stop(FIRST) is StopReply.ENDED
    assert box.see(FIRST).sighting is Sighting.ABSENT
    assert box.kaggle.calls.count("CancelKernelSession") == 1


def run_and_hear(box: Box) -> None:
    """Starts a session and hears its id."""
    box.run(WAITS)
    box.until_claimed()
    box.see(FIRST)


@pytest.mark.parametrize("name", ["", "kaggle", "container-x"])
def test_a_container_without_a_number_has_no_session_id(name: str) -> None:
    assert runner.session_id({"KAGGLE_CONTAINER_NAME": name}) is None
    assert runner.session_id({}) is None
    assert runner.session_id({"KAGGLE_CONTAINER_NAME": f"{name}-0042"}) == 42
