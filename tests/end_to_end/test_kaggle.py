"""Sessions as Kaggle kernels, end to end: the real client, a local Kaggle, the demo over walls and quotas."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from tests.end_to_end.user import PATIENCE, QUICK, ROOT, User, fingerprints, wait_until
from tests.stand_ins.kaggle import LocalKaggle, Settings, local_kaggle

WALL_SECONDS = 30.0
ACCOUNT: Mapping[str, Any] = {
    "type": "kaggle", "username": Settings().username, "threads": 1, "session_seconds": WALL_SECONDS,
    "wall_margin_seconds": 4.0, "slack_seconds": 20.0, "visibility_seconds": 3.0, "poll_seconds": 0.5,
    "setup_seconds": 1.0, "report_seconds": 0.5, "publish_seconds": 5.0, "hand_over_bytes": 0,
}  # fmt: skip
PREFERRED = {"name": "kaggle while its quota lasts", "prefer": {"platform": "kaggle"}}


class KaggleUser(User):
    """A user with an account on a local Kaggle, and with this machine where `here` gives its options."""

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


def demo_job(folder: Path, steps: int, *accelerators: str) -> Path:
    """The bundled job with this many steps on these accelerators."""
    spec = yaml.safe_load((ROOT / "jobs" / "graphmer_demo.yaml").read_text())
    spec["work"]["total"] = steps
    spec["profiles"] = {each: dict(spec["profiles"]["cpu"]) for each in accelerators}
    spec["checkpoint"]["interval"] = "3s"
    for key in ("source", "requirements"):
        spec[key] = str((ROOT / "jobs" / spec[key]).resolve())
    del spec["image"]
    path = folder / "graphmer_demo.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def train_in_one_piece(folder: Path, steps: int) -> dict[str, str]:
    """The demo's training run directly: the fingerprints of its final checkpoint."""
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    environ |= {"PYTHONPATH": f"{ROOT / 'jobs' / 'graphmer'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    flags = ["--steps", str(steps), "--micro-batch", "32", "--accumulate", "1", "--precision", "fp32"]
    config = str(ROOT / "jobs" / "graphmer" / "train_demo.yaml")
    subprocess.run(
        [sys.executable, "-m", "graphmer.train", "--config", config, *flags, "--seed", "1337"],
        cwd=folder, env=environ, check=True, timeout=2 * PATIENCE, capture_output=True,
    )  # fmt: skip
    return fingerprints(folder / "checkpoints" / f"step-{steps}")


def steps_of(folder: Path, seconds: float) -> int:
    """How many steps of the demo take about so long here, its start not counted."""
    began = time.monotonic()
    train_in_one_piece(folder / "short", 10)
    short = time.monotonic() - began
    train_in_one_piece(folder / "longer", 110)
    return int(100 * seconds / max(1.0, time.monotonic() - began - 2 * short))


@pytest.mark.timeout(1800)
def test_the_demo_over_walls_and_a_quota_that_runs_out_changes_no_bit(
    tmp_path: Path, kaggle: LocalKaggle
) -> None:
    steps = steps_of(tmp_path, seconds=70.0)
    user = KaggleUser(tmp_path / "user", kaggle, here={"session_seconds": 15.0}, accelerators=["T4"])
    try:
        run = str(user.answer("submit", str(demo_job(tmp_path, steps, "T4", "cpu")))["run"])
        wait_until(lambda: has_saved(kaggle, f"{run}-s02"), "a checkpoint of the second session")
        kaggle.use_up("gpu")  # somebody else's notebook, while ours runs
        user.wait_for(run, on("here"), "the failover")
        kaggle.use_up("gpu", left_seconds=10_000.0)  # the week is over
        user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
        hops, story = user.hops(run), user.run("why", run)
        user.wait_for_silence()
        user.run("pull", run, "-o", str(tmp_path / "final"))
    finally:
        user.close()
    assert hops[:3] == ["kaggle", "kaggle", "here"], story
    assert "kaggle" in hops[3:], story
    for words in ("GPU quota was used up while it ran", "session s03 on here/cpu", "on kaggle/T4"):
        assert words in story, story
    whole = train_in_one_piece(tmp_path / "whole", steps)
    weights = {name for name in whole if name.endswith(".safetensors")}
    found = fingerprints(tmp_path / "final")
    assert weights
    assert {name: found[name] for name in weights} == {name: whole[name] for name in weights}


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
