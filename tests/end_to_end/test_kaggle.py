"""Sessions as Kaggle kernels, end to end: the real client, a local Kaggle, limits and quotas.

CI trains without torch here; the long test trains the demo. tests/end_to_end/test_demo.py trains it in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import Credentials
from tests.end_to_end.user import PATIENCE, QUICK, ROOT, User, fingerprints, paced_demo, wait_until
from tests.end_to_end.user import train_in_one_piece as one_piece
from tests.stand_ins.kaggle import LocalKaggle, Settings, State, local_kaggle

WALL_SECONDS = 45.0
STEPS_PACED = 60  # of a second or more each: three sessions or more, on any machine
ACCOUNT: Mapping[str, Any] = {
    "type": "kaggle", "username": Settings().username, "threads": 1, "session_seconds": WALL_SECONDS,
    "wall_margin_seconds": 4.0, "slack_seconds": 20.0, "visibility_seconds": 3.0, "absence_seconds": 3.0,
    "poll_seconds": 0.5, "setup_seconds": 1.0, "report_seconds": 0.5, "listed_seconds": 5.0,
    "mount_seconds": 5.0, "publish_seconds": 5.0, "saving_seconds": 0.0, "hand_over_bytes": 0,
}  # fmt: skip
# At this pace a CPU is expected to be so much slower than a T4 that no step fits into its sessions.
SAME: Mapping[str, Any] = {"session_seconds": 30.0, "accelerator": "T4"}
OFTEN: Mapping[str, Any] = {"interval": "3s", "keep": {"last": 3}}
PREFERRED = {"name": "kaggle while its quota lasts", "prefer": {"platform": "kaggle"}}


class KaggleUser(User):
    """A user with an account on a local Kaggle; with the options `here`, also with this machine as a
    platform."""

    def __init__(
        self, folder: Path, kaggle: LocalKaggle, here: Mapping[str, Any] | None = None, **options: Any
    ):
        super().__init__(folder)
        self.kaggle = kaggle
        key = folder / "key"
        key.write_text(kaggle.settings.key)
        account = {**ACCOUNT, "endpoint": kaggle.url, "key_file": str(key), **options}
        platforms = {"kaggle": account, **({"here": {**QUICK, **here}} if here is not None else {})}
        self.configure({"platforms": platforms, "rules": [PREFERRED]})

    def hops(self, run: str) -> list[str]:
        return [str(stay["order"]["platform"]) for stay in self.answer("show", run)["sessions"]]


@pytest.fixture
def kaggle(tmp_path: Path) -> Iterator[LocalKaggle]:
    with local_kaggle(tmp_path / "kaggle", Settings(wall_seconds=WALL_SECONDS)) as kaggle:
        yield kaggle


def train_in_one_piece(folder: Path, steps: int, source: Path) -> dict[str, str]:
    """Runs the demo's training directly; returns the fingerprints of its final checkpoint."""
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    environ |= {"PYTHONPATH": f"{source}:{ROOT}", "OMP_NUM_THREADS": "1"}
    flags = f"--steps {steps} --micro-batch 32 --accumulate 1 --precision fp32 --seed 1337".split()
    subprocess.run(
        [sys.executable, "-m", "graphmer.train", "--config", str(source / "train_demo.yaml"), *flags],
        cwd=folder, env=environ, check=True, timeout=2 * PATIENCE, capture_output=True,
    )  # fmt: skip
    return fingerprints(folder / "checkpoints" / f"step-{steps}")


Job = Callable[[KaggleUser], tuple[str, Callable[[Path], dict[str, str]]]]
WALKING = {
    "command": "python train.py {steps} --pause 0.2",
    "work": {"total": 120, "global_batch": 8},  # three sessions or more, on any machine
    "profiles": {"T4": {"micro_batch": 8, "precision": "fp32"}},
    "checkpoint": OFTEN,
}


def hashes(user: KaggleUser) -> tuple[str, Callable[[Path], dict[str, str]]]:
    """A submitted training without torch, and how to train it in one piece."""
    return user.submit(**WALKING), lambda folder: one_piece(folder, "train.py", 120)


def demo(user: KaggleUser) -> tuple[str, Callable[[Path], dict[str, str]]]:
    job = paced_demo(user.folder, STEPS_PACED, ["T4"], image=None, checkpoint=OFTEN)
    run = str(user.answer("submit", str(job))["run"])
    return run, lambda folder: train_in_one_piece(folder, STEPS_PACED, user.folder / "graphmer")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("job", "seconds"), [(hashes, 14.0), pytest.param(demo, WALL_SECONDS, marks=pytest.mark.soak)]
)
def test_walls_and_a_quota_that_runs_out_change_no_bit(
    tmp_path: Path, kaggle: LocalKaggle, job: Job, seconds: float
) -> None:
    user = KaggleUser(
        tmp_path / "user",
        kaggle,
        here=SAME,
        accelerators=["T4"],
        session_seconds=seconds,
        publish_seconds=1.0,
    )
    try:
        run, in_one_piece = job(user)
        wait_until(lambda: uses_the_quota_up(kaggle), "a checkpoint of the second session")
        user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
        hops, story = user.hops(run), user.run("why", run)
        user.wait_for_silence()
        user.run("pull", run, "-o", str(tmp_path / "final"))
    finally:
        user.close()
    there = hops.index("here")
    assert hops[:there] == ["kaggle"] * max(2, there), story
    for words in ("GPU quota was used up while it ran", f"session s{there + 1:02} on here/T4"):
        assert words in story, story
    whole = in_one_piece(tmp_path / "whole")
    kept = {name for name in whole if name.endswith((".safetensors", "state.json"))}
    found = fingerprints(tmp_path / "final")
    assert kept
    assert {name: found[name] for name in kept} == {name: whole[name] for name in kept}


def uses_the_quota_up(kaggle: LocalKaggle) -> bool:
    """Somebody else's notebook does, while a session runs that has saved, and that is not the first one."""
    saved = "working/outbox/checkpoints/*/manifest.json"
    with kaggle.lock:
        later = kaggle.sessions[1:]
        found = any(each.state is State.RUNNING and any(each.folder.glob(saved)) for each in later)
        if found:
            kaggle.use_up("gpu")
    return found


def has_saved(kaggle: LocalKaggle, session: str) -> bool:
    try:
        folder = kaggle.kernel(session).folder
    except KeyError:
        return False
    return any(folder.glob("working/outbox/checkpoints/*/manifest.json"))


def on(platform: str) -> Any:
    def there(record: RunRecord) -> bool:
        session = record.session
        return session is not None and session.order.platform == platform

    return there


# --- What is lost, and what that costs --------------------------------------------------------------------

STEPS = 140
SHORT: dict[str, Any] = {
    "session_seconds": 14.0,
    "wall_margin_seconds": 4.0,
    "accelerators": ["cpu"],
    "publish_seconds": 1.0,
}
COUNTING = {
    "command": "python train.py {steps} --pause 0.1",
    "work": {"total": STEPS, "global_batch": 8},
}


@pytest.fixture
def short(tmp_path: Path) -> Iterator[tuple[KaggleUser, LocalKaggle]]:
    """A user whose sessions last for ten seconds of training."""
    with local_kaggle(tmp_path / "kaggle", Settings(wall_seconds=60.0)) as kaggle:
        user = KaggleUser(tmp_path / "user", kaggle, **SHORT)
        yield user, kaggle
        user.close()


def account(kaggle: LocalKaggle) -> KaggleClient:
    """An observer of the account from elsewhere."""
    credentials = Credentials(kaggle.settings.username, key=kaggle.settings.key)
    return KaggleClient(credentials, endpoint=kaggle.url)


def dies(kaggle: LocalKaggle, session: str) -> None:
    kaggle.kernel(session).kill()


def is_cancelled_on_the_page(kaggle: LocalKaggle, session: str) -> None:
    kaggle.warts.cancel_loses_outputs = True
    kaggle.kernel(session).cancel()


def is_deleted_on_the_page(kaggle: LocalKaggle, session: str) -> None:
    account(kaggle).delete_kernel(session)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "harm",
    [
        dies,
        pytest.param(is_cancelled_on_the_page, marks=pytest.mark.soak),
        pytest.param(is_deleted_on_the_page, marks=pytest.mark.soak),
    ],
)
def test_a_session_that_is_lost_is_computed_again_and_changes_no_bit(
    short: tuple[KaggleUser, LocalKaggle], tmp_path: Path, harm: Callable[[LocalKaggle, str], None]
) -> None:
    user, kaggle = short
    run = user.submit(**COUNTING)
    user.wait_for(run, lambda record: record.generation == 2, "the second session")
    wait_until(lambda: has_saved(kaggle, f"{run}-s02"), "a checkpoint in it")
    harm(kaggle, f"{run}-s02")
    if harm is not is_deleted_on_the_page:  # it has worked, so what it left may still appear
        held = user.wait_for(run, lambda record: record.awaits, "the hold")
        assert f"look at https://www.kaggle.com/code/ada/{run}-s02" in held.standing_reason
        user.run("release", run, "--discard")
    user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
    shown = user.answer("show", run)
    user.wait_for_silence()
    user.run("pull", run, "-o", str(tmp_path / "final"))
    starts = [stay["order"]["resume_step"] for stay in shown["sessions"]]
    assert starts[1] == starts[2] > 0, "the lost session's work is repeated"
    assert account(kaggle).kernels() == account(kaggle).datasets() == ()
    whole = one_piece(tmp_path / "whole", "train.py", STEPS)
    assert fingerprints(tmp_path / "final") == whole


# --- What is late, or not shown ---------------------------------------------------------------------------

LOOKS = 12
ONE_SESSION = {**COUNTING, "work": {"total": 10, "global_batch": 8}}


def removed(kaggle: LocalKaggle) -> int:
    return kaggle.calls.count("DeleteKernel") + kaggle.calls.count("DeleteDataset")


@pytest.mark.timeout(1800)
def test_an_output_that_is_late_holds_the_run_until_it_appears(
    short: tuple[KaggleUser, LocalKaggle], tmp_path: Path
) -> None:
    user, kaggle = short
    kaggle.warts.output_lag_seconds = 3600.0
    run = user.submit(**ONE_SESSION)
    held = user.wait_for(run, lambda record: record.awaits, "the hold")
    page = f"look at https://www.kaggle.com/code/ada/{run}-s01"
    assert held.standing is Phase.HELD
    assert page in held.standing_reason
    assert page in user.run("why", run)
    assert removed(kaggle) == 0
    kaggle.warts.output_lag_seconds = 0.0
    user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
    user.wait_for_silence()
    assert len(kaggle.pushed) == 1
    user.run("pull", run, "-o", str(tmp_path / "final"))
    assert fingerprints(tmp_path / "final") == one_piece(tmp_path / "whole", "train.py", 10)


@pytest.mark.timeout(1800)
def test_a_kernel_that_lives_and_is_not_shown_is_waited_for(
    short: tuple[KaggleUser, LocalKaggle], tmp_path: Path
) -> None:
    """Far longer than the three seconds after which this user's kernels count as gone."""
    user, kaggle = short
    gate = tmp_path / "gates" / "5"
    gate.parent.mkdir()
    gate.touch()
    run = user.submit(**{**ONE_SESSION, "command": f"{COUNTING['command']} --gates {gate.parent}"})
    user.wait_for(run, lambda record: record.phase is Phase.RUNNING, "its start")
    kaggle.warts.status_glitch = "403"
    gate.unlink()
    looks = kaggle.calls.count("GetKernelSessionStatus")
    wait_until(lambda: kaggle.calls.count("GetKernelSessionStatus") > looks + LOOKS, "many looks")
    assert user.record(run).phase is Phase.RUNNING
    assert (removed(kaggle), len(kaggle.pushed)) == (0, 1)
    kaggle.warts.status_glitch = ""
    record = user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
    assert (record.generation, len(kaggle.pushed)) == (1, 1)
