"""The process platform alone: what it hides, what it kills, and how two controllers share one folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.order import Order, Outcome
from orchestrator.core.session import ABSENT, Sighting, StopReply
from orchestrator.errors import Rejected, Transient
from orchestrator.platforms import catalog
from orchestrator.platforms.platform import Platform
from orchestrator.session.staging import Materials
from tests.conformance.platform_suite import LONG
from tests.conformance.test_platforms import ProcessRig, agent, any_order
from tests.forging import forge
from tests.seen import observed
from tests.waiting import wait_until

__all__ = ["agent"]

# An agent that has gone wrong: it claims its session, prints what it was given, and then reacts to nothing.
DEAF = """
import json, os, pathlib, signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
root = pathlib.Path(sys.argv[1])
(root / "outbox").mkdir()
(root / "seen.json").write_text(json.dumps(dict(os.environ)))
(root / "outbox" / ".tmp-incarnation").write_text("deaf")
(root / "outbox" / ".tmp-incarnation").rename(root / "outbox" / "incarnation")
threading.Event().wait(3600)
"""
STILLBORN = "raise SystemExit('no module named anything')"


class Box:
    """A process platform in a folder, with an agent that the test chooses."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sessions = folder / "sessions"
        self.order: Order = any_order("a-s01", 10, 1)

    def platform(self, name: str = "here", **options: object) -> Platform:
        return catalog.build(name, "process", options, folder=self.sessions, clock=SystemClock())

    def materials(self, agent: str = DEAF, **values: str) -> Materials:
        for name, text in (("agent.pyz", agent), ("bundle.tar.gz", "")):
            (self.folder / name).unlink(missing_ok=True)
            (self.folder / name).write_text(text)
        return Materials(self.folder / "bundle.tar.gz", self.folder / "agent.pyz", secrets=values)

    def running(self, **options: object) -> Platform:
        platform = self.platform("here", **options)
        platform.prepare(self.order, self.materials())
        platform.launch(self.order)
        wait_until(
            lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.RUNNING, "the session to run"
        )
        return platform


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    hard = box.platform(grace_seconds=0.001)
    wait_until(lambda: hard.stop("a-s01") is StopReply.ENDED, "the stop")


def test_the_controllers_credentials_do_not_reach_the_agent(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KAGGLE_KEY", "secret")
    monkeypatch.setenv("ORCHESTRATOR_HOME", "elsewhere")
    monkeypatch.setenv("WANTED", "yes")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CONDA_TOKEN", "secret")
    monkeypatch.setenv("CONDA_CHANNEL_ALIAS", "https://me:s3same@example.org/conda")
    monkeypatch.setenv("OMP_PASSWORD", "asked for")
    box.running(pass_env=["WANTED", "OMP_PASSWORD"])
    seen = json.loads((box.sessions / "a-s01" / "seen.json").read_text())
    assert seen["WANTED"] == "yes"
    assert seen["CUDA_VISIBLE_DEVICES"] == "1"
    assert seen["OMP_PASSWORD"] == "asked for"
    assert "KAGGLE_KEY" not in seen
    assert "CONDA_TOKEN" not in seen
    assert "CONDA_CHANNEL_ALIAS" not in seen
    assert "ORCHESTRATOR_HOME" not in seen


def test_secrets_are_for_the_owner_alone(box: Box) -> None:
    box.platform().prepare(box.order, box.materials(TOKEN="s3cret"))
    secrets = box.sessions / "a-s01" / "secrets.json"
    assert json.loads(secrets.read_text()) == {"TOKEN": "s3cret"}
    assert secrets.stat().st_mode & 0o777 == 0o600
    assert (box.sessions / "a-s01").stat().st_mode & 0o077 == 0


def test_a_wall_is_a_wall(box: Box) -> None:
    box.running()  # before its wall, however busy the machine is
    platform = box.platform(session_seconds=0.2, slack_seconds=0.1)
    wait_until(
        lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.ENDED, "the session to end"
    )
    ended = observed(platform, ["a-s01"])["a-s01"]
    assert (ended.ending, ended.incarnations, ended.result) == (Outcome.LOST, ("deaf",), None)
    assert "limit" in ended.detail


def test_garbage_for_an_incarnation_breaks_no_observation(box: Box) -> None:
    box.running()  # before its wall, however busy the machine is
    platform = box.platform(session_seconds=0.2, slack_seconds=0.1)
    (box.sessions / "a-s01" / "outbox" / "incarnation").write_bytes(b"\xff\xfe")
    wait_until(
        lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.ENDED, "the session to end"
    )
    assert observed(platform, ["a-s01"])["a-s01"].incarnations == ()


def test_who_does_not_leave_when_asked_is_killed(box: Box) -> None:
    patient, hard = box.running(), box.platform(grace_seconds=0.05)
    assert patient.stop("a-s01") is StopReply.REQUESTED
    assert patient.stop("a-s01") is StopReply.REQUESTED
    assert observed(patient, ["a-s01"])["a-s01"].sighting is Sighting.RUNNING
    wait_until(lambda: hard.stop("a-s01") is StopReply.ENDED, "the stop")
    ended = observed(patient, ["a-s01"])["a-s01"]
    assert ended.ending is Outcome.LOST
    assert "asked to stop" in ended.detail


def test_an_agent_that_was_killed_is_lost_and_not_started_again(box: Box) -> None:
    platform = box.running()
    os.kill(int((box.sessions / "a-s01" / "agent.pid").read_text()), 9)
    wait_until(
        lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.ENDED, "the session to end"
    )
    assert observed(platform, ["a-s01"])["a-s01"].ending is Outcome.LOST
    platform.launch(box.order)
    assert observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.ENDED


def test_an_agent_that_never_came_up_may_be_launched_again(box: Box) -> None:
    platform = box.platform()
    platform.prepare(box.order, box.materials(STILLBORN))
    platform.launch(box.order)
    output = box.sessions / "a-s01" / "agent.out"
    wait_until(lambda: output.exists() and "no module" in output.read_text(), "what it said")
    wait_until(lambda: observed(platform, ["a-s01"])["a-s01"] == ABSENT, "the session to be gone")
    (box.sessions / "a-s01" / "agent.pyz").unlink()
    (box.sessions / "a-s01" / "agent.pyz").write_text(DEAF)
    platform.launch(box.order)
    wait_until(
        lambda: observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.RUNNING, "the session to run"
    )


def test_what_runs_is_not_discarded(box: Box) -> None:
    platform = box.running()
    with pytest.raises(Transient, match="still running"):
        platform.discard("a-s01")
    assert observed(platform, ["a-s01"])["a-s01"].sighting is Sighting.RUNNING


def test_two_platforms_in_one_folder_leave_each_others_sessions_alone(box: Box) -> None:
    mine = box.running()
    other = box.platform("other")
    assert observed(other, ["a-s01"])["a-s01"] == ABSENT
    assert other.stop("a-s01") is StopReply.ENDED
    other.discard("a-s01")
    assert observed(mine, ["a-s01"])["a-s01"].sighting is Sighting.RUNNING
    assert not (box.sessions / "a-s01" / "stop").exists()


def test_names_that_lead_elsewhere_are_refused(box: Box) -> None:
    platform = box.platform()
    for name in ("../a", "a/b", "", ".", "A"):
        with pytest.raises(Rejected):
            platform.prepare(replace(box.order, session=name), box.materials())
        with pytest.raises(Rejected):
            platform.discard(name)
        assert observed(platform, [name])[name] == ABSENT
    assert not box.sessions.exists()


def test_an_interrupted_staging_leaves_nothing_that_starts(box: Box) -> None:
    platform, materials = box.platform(), box.materials()
    materials.bundle.unlink()
    with pytest.raises(FileNotFoundError):
        platform.prepare(box.order, materials)
    assert list(box.sessions.iterdir()) == []
    with pytest.raises(Rejected):
        platform.launch(box.order)
    platform.prepare(box.order, box.materials())
    assert observed(platform, ["a-s01"])["a-s01"] == ABSENT


def test_a_checkpoint_replaced_where_it_was_staged_is_refused_by_the_agent(
    tmp_path: Path, agent: Path
) -> None:
    rig = ProcessRig(tmp_path, agent)
    rig.start(rig.order("a-s01", total=3))
    rig.until_ended("a-s01")
    newest = rig.collect("a-s01").manifests[-1]
    order = rig.order("a-s02", total=LONG, generation=2, resume=newest.name, resume_step=3,
                      resume_sha256=newest.sha256)  # fmt: skip
    rig.platform.prepare(order, rig.materials(rig.into("a-s01")))
    forge(tmp_path / "sessions" / "a-s02" / "staged", newest.name)
    rig.platform.launch(order)
    result = rig.until_ended("a-s02").result
    assert result is not None
    assert result.outcome is Outcome.LOST
    assert "its manifest was replaced" in result.message
    assert rig.trainings("a-s02") == 0
