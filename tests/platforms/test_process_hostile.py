"""Real sessions that write where they should not, hide, and outlive their agent.

They harm no other session, and nothing of them is left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.agent import archive
from orchestrator.core.job import Input
from orchestrator.core.order import Outcome
from orchestrator.core.session import ABSENT, Observation, Sighting, StopReply
from orchestrator.errors import Rejected, Transient
from orchestrator.freeze import inputs
from orchestrator.platforms.platform import Platform, Tidying
from orchestrator.session.folder import SessionFolder
from tests.agent.sessions import is_alive
from tests.conformance.test_platforms import ProcessRig
from tests.platforms.test_process import Box
from tests.seen import observed
from tests.waiting import wait_until

# Opens everything it was given for writing: its inputs, its bundle, the agent, the checkpoint.
VANDAL = """
import os, pathlib
root = pathlib.Path(os.environ["ORCHESTRATOR_SESSION"])
inputs = pathlib.Path(os.environ["ORCHESTRATOR_INPUTS"])
staged = root.joinpath("staged").rglob("*")
for path in (*inputs.rglob("*"), *staged, root / "agent.pyz", root / "bundle.tar.gz"):
    if path.is_file():
        path.chmod(0o600)
        path.write_bytes(b"altered")
"""
# Workers that ignore SIGTERM. One has a session of its own, one has an empty environment.
DEAF = """
import json, os, pathlib, subprocess, sys, time
deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"
deaf = ["python", "-c", deaf]
out = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
escaped = subprocess.Popen(deaf, start_new_session=True, **out)
bare = subprocess.Popen([sys.executable, *deaf[1:]], env={}, **out)
plain = subprocess.Popen(deaf, **out)
note = pathlib.Path(os.environ["TRACE"])
note.with_suffix(".tmp").write_text(json.dumps([escaped.pid, bare.pid, plain.pid]))
note.with_suffix(".tmp").rename(note)
time.sleep(3600)
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[ProcessRig]:
    archive.build(tmp_path / "agent.pyz")
    rig = ProcessRig(tmp_path, tmp_path / "agent.pyz")
    yield rig
    rig.close()


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    box = Box(tmp_path)
    yield box
    hard = box.platform(grace_seconds=0.001)
    wait_until(lambda: hard.stop("a-s01") is StopReply.ENDED, "the stop")


def content(*places: Path) -> dict[str, str]:
    found = [path for place in places for path in (place, *place.rglob("*")) if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def test_what_a_session_does_to_its_own_files_reaches_no_other(rig: ProcessRig, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "triples").write_text("pinned")
    pinned = inputs.pin((Input("corpus", str(tmp_path / "corpus")),))
    rig.start(rig.order("a-s01"))
    rig.until_ended("a-s01")
    newest = rig.collect("a-s01").manifests[-1]
    cache = inputs.stage(pinned, tmp_path / "cache")
    materials = replace(rig.materials(rig.into("a-s01")), inputs=cache)
    before = content(tmp_path / "cache", rig.agent, rig.bundle, rig.into("a-s01"))
    order = rig.order("a-s02", generation=2, resume=newest.name, resume_step=newest.ref.step,
                      command=("python", "-c", VANDAL))  # fmt: skip
    rig.platform.prepare(order, materials)
    rig.platform.launch(order)
    rig.until_ended("a-s02")
    assert (tmp_path / "sessions" / "a-s02" / "inputs" / "corpus" / "triples").read_bytes() == b"altered"
    assert (tmp_path / "sessions" / "a-s02" / "agent.pyz").read_bytes() == b"altered"
    assert content(tmp_path / "cache", rig.agent, rig.bundle, rig.into("a-s01")) == before


def test_what_is_staged_is_read_only_and_for_nobody_else(rig: ProcessRig, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("word")
    (tmp_path / "words").chmod(0o644)
    cache = inputs.stage(inputs.pin((Input("words", str(tmp_path / "words")),)), tmp_path / "cache")
    rig.platform.prepare(rig.order("a-s01"), replace(rig.materials(), inputs=cache))
    root = tmp_path / "sessions" / "a-s01"
    assert {path.name: path.stat().st_mode & 0o777 for path in root.rglob("*")} == {
        "agent.pyz": 0o400, "bundle.tar.gz": 0o400, "inputs": 0o500, "words": 0o400, "order.json": 0o600,
    }  # fmt: skip


# --- What outlives its agent ------------------------------------------------------------------------------


class Orphans:
    """A session whose workers ignore SIGTERM, and whose agent and guardian were killed at the same time."""

    def __init__(self, rig: ProcessRig) -> None:
        order = rig.order("a-s01", command=("python", "-c", DEAF))
        rig.start(order)
        note = Path(rig.trace("a-s01"))
        rig.until(note.exists)
        self.workers: list[int] = json.loads(note.read_text())
        assert all(map(is_alive, self.workers))
        agent = int((rig.folder / "sessions" / "a-s01" / "agent.pid").read_text())
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        leader = os.getpgid(self.workers[2])
        [guardian] = [int(child) for child in children if int(child) != leader]
        for pid in (guardian, agent):
            os.kill(pid, signal.SIGKILL)
        session = SessionFolder(rig.folder / "sessions" / "a-s01")
        rig.until(lambda: not is_alive(leader) and not session.alive())
        assert all(map(is_alive, self.workers)), "only their leader dies with the agent"


@pytest.mark.parametrize("look", ["observe", "stop", "discard", "tidy"])
def test_a_deaf_worker_does_not_outlive_its_session(rig: ProcessRig, look: str) -> None:
    orphans = Orphans(rig)
    platform = rig.another_controller()
    match look:
        case "observe":
            seen = observed(platform, ["a-s01"])["a-s01"]
            assert (seen.sighting, seen.ending) == (Sighting.ENDED, Outcome.LOST)
        case "stop":
            assert platform.stop("a-s01") is StopReply.ENDED
        case "discard":
            platform.discard("a-s01")
        case "tidy":
            assert isinstance(platform, Tidying)
            platform.tidy()
    assert [pid for pid in orphans.workers if is_alive(pid)] == []


def test_a_start_ends_what_is_left_of_a_session_whose_folder_is_gone(rig: ProcessRig) -> None:
    orphans = Orphans(rig)
    (rig.folder / "sessions" / "a-s01").rename(rig.folder / "elsewhere")
    tidy(rig.another_controller())
    assert [pid for pid in orphans.workers if is_alive(pid)] == []


def test_a_start_leaves_living_sessions_alone(rig: ProcessRig) -> None:
    rig.start(rig.order("a-s01", total=1_000_000))
    rig.until_saved("a-s01")
    (rig.folder / "sessions" / ".tmp-orchestrator-left").mkdir()
    tidy(rig.another_controller())
    assert rig.see("a-s01").sighting is Sighting.RUNNING
    assert [path.name for path in (rig.folder / "sessions").iterdir()] == ["a-s01"]


def tidy(platform: Platform) -> None:
    assert isinstance(platform, Tidying)
    platform.tidy()


# --- What it puts in place of our own files ---------------------------------------------------------------


def hostile(box: Box) -> tuple[Platform, Path]:
    """A running session, on a platform that does not wait."""
    box.running()
    return box.platform(grace_seconds=0.05), box.sessions / "a-s01"


def ended(box: Box, platform: Platform) -> Observation:
    wait_until(lambda: platform.stop("a-s01") is StopReply.ENDED, "the stop")
    found = observed(platform, ["a-s01"])["a-s01"]
    platform.discard("a-s01")
    assert observed(platform, ["a-s01"])["a-s01"] == ABSENT
    assert list(box.sessions.iterdir()) == []
    return found


@pytest.mark.parametrize("note", ["stop", "killed", "launched", "agent.pid", "order.json"])
@pytest.mark.parametrize("shape", ["garbage", "folder", "link", "pipe"])
def test_a_session_that_overwrites_our_notes_is_ended_all_the_same(box: Box, note: str, shape: str) -> None:
    platform, root = hostile(box)
    victim = box.folder / "victim"
    victim.write_text("precious")
    (root / note).unlink(missing_ok=True)
    match shape:
        case "garbage":
            (root / note).write_text("1e999999999 not a number")
        case "folder":
            (root / note / "below").mkdir(parents=True)
        case "link":
            (root / note).symlink_to(victim)
        case "pipe":
            os.mkfifo(root / note)
    ended(box, platform)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("shape", ["folder", "link", "pipe"])
def test_a_lock_that_is_none_keeps_nobody(box: Box, shape: str) -> None:
    platform, root = hostile(box)
    (root / "lock").unlink()
    match shape:
        case "folder":
            (root / "lock").mkdir()
        case "link":
            (root / "lock").symlink_to(box.folder / "victim")
        case "pipe":
            os.mkfifo(root / "lock")
    assert ended(box, platform).ending is Outcome.LOST
    assert not (box.folder / "victim").exists()


def test_a_stranger_who_takes_the_lock_does_not_keep_it(box: Box) -> None:
    """After the death of every known process, the lock is held by processes that the session has hidden."""
    platform, root = hostile(box)
    with (root / "lock").open("rb") as stranger:
        os.kill(int((root / "agent.pid").read_text()), signal.SIGKILL)
        wait_until(lambda: _takes(stranger.fileno(), fcntl.LOCK_SH), "the lock")
        ended(box, platform)


def _takes(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def test_an_agents_output_goes_through_no_link(box: Box) -> None:
    platform, victim = box.platform(), box.folder / "victim"
    platform.prepare(box.order, box.materials("print('hello')"))
    (box.sessions / "a-s01" / "agent.out").symlink_to(victim)
    with pytest.raises((OSError, Rejected, Transient)):
        platform.launch(box.order)
    assert not victim.exists()


def test_a_session_that_takes_every_right_away_is_stopped_all_the_same() -> None:
    """Its folder and its lock have mode 000. That does not stop root, so the test runs as nobody."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        child = os.fork()
        if child == 0:
            answer = 1
            try:
                if os.geteuid() == 0:
                    os.setresuid(65534, 65534, 65534)
                session = SessionFolder(folder / "tiny-abcdefgh-s01")
                session.root.mkdir()
                (session.root / "lock").touch()
                (session.root / "lock").chmod(0)
                session.root.chmod(0)
                free = not session.alive()
                session.root.chmod(0)
                with session.locked() as lock:
                    answer = 0 if free and lock is not None else 2
            finally:
                os._exit(answer)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
