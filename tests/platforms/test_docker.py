"""The docker platform's faults on a real engine: each row of the table in docs/docker.md is a test."""

from __future__ import annotations

import gc
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.job import Precision
from orchestrator.core.offer import UntilKind
from orchestrator.core.order import Outcome
from orchestrator.core.session import ABSENT, Sighting, StopReply
from orchestrator.errors import NotFound, Rejected, Transient
from orchestrator.platforms.docker.options import DockerOptions
from orchestrator.platforms.platform import Cleaning, Leftover
from tests.conformance.test_platforms import agent
from tests.docker_engine import MISSING, Engine, installed, load_python_image, running
from tests.platforms import docker_box
from tests.platforms.docker_box import Box, box, small_engine
from tests.seen import observed

__all__ = ["agent", "box"]
# The SDK leaves the socket of a failed connection to the garbage collector.
engine_away = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
PAGE = Path(__file__).parents[2] / "docs" / "docker.md"
EATER = "import time\nx = []\nwhile True: x.append(bytearray(8 << 20)); time.sleep(0.01)"


@pytest.fixture
def own_engine() -> Iterator[Engine]:
    """A daemon that a test may kill."""
    if not installed():
        pytest.skip(MISSING)
    with running() as engine:
        load_python_image(engine)
        yield engine


@pytest.fixture
def own_box(tmp_path: Path, agent: Path, own_engine: Engine) -> Iterator[Box]:
    box = Box(tmp_path, agent, own_engine, "tests/python:host")
    yield box
    box.client.close()
    gc.collect()


def import_image(box: Box, name: str, changes: list[str], files: dict[str, bytes] | None = None) -> str:
    """An image with only a few files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in (files or {"etc/nothing": b""}).items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(content), 0o755
            archive.addfile(entry, io.BytesIO(content))
    repository, tag = name.split(":")
    box.client.api.import_image_from_data(buffer.getvalue(), repository, tag, changes=changes)
    return name


# --- The engine goes down ---------------------------------------------------------------------------------


@engine_away
def test_an_engine_that_is_shut_down_lets_the_training_save(own_box: Box) -> None:
    own_box.run()
    own_box.saved()
    own_box.engine.stop()
    with pytest.raises(Transient, match="does not answer"):
        own_box.see("a-s01")
    own_box.engine.start()
    ended = own_box.until_ended("a-s01")
    assert ended.result is not None
    assert ended.result.outcome is Outcome.STOPPED
    assert own_box.collect("a-s01").manifests[-1].ref.step == ended.result.step
    assert own_box.trainings("a-s01") == 1


@engine_away
def test_an_engine_that_is_killed_stops_its_sessions_once_it_is_back(own_box: Box) -> None:
    """Containers survive the engine's death. Without live-restore, an engine stops them when it restarts."""
    own_box.run()
    saved = own_box.saved().status
    assert saved is not None
    own_box.engine.stop(signal.SIGKILL)
    with pytest.raises(Transient, match="does not answer"):
        own_box.see("a-s01")
    own_box.engine.start()
    ended = own_box.until_ended("a-s01")
    assert ended.result is not None
    assert ended.result.outcome is Outcome.STOPPED
    assert saved.checkpoint_step is not None
    assert own_box.collect("a-s01").manifests[-1].ref.step > saved.checkpoint_step
    assert own_box.platform.stop("a-s01") is StopReply.ENDED
    assert own_box.trainings("a-s01") == 1


# --- Somebody else's hands --------------------------------------------------------------------------------


def test_docker_kill_is_a_loss(box: Box) -> None:
    box.run()
    box.saved()
    box.docker("kill", "a-s01")
    ended = box.until_ended("a-s01")
    assert (ended.ending, ended.result) == (Outcome.LOST, None)
    assert "docker kill" in ended.detail
    assert box.collect("a-s01").manifests


def test_docker_stop_lets_the_training_save(box: Box) -> None:
    box.run()
    box.docker("stop", "a-s01")
    result = box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.STOPPED


def test_docker_pause_says_why_nothing_moves(box: Box) -> None:
    box.run()
    box.saved()
    box.docker("pause", "a-s01")
    seen = box.see("a-s01")
    assert seen.sighting is Sighting.RUNNING
    assert seen.status is not None
    assert any("docker unpause a-s01" in note for note in seen.notes)
    assert box.collect("a-s01").manifests  # what it has saved comes all the same
    box.docker("unpause", "a-s01")
    before = seen.status.heartbeat
    box.until(lambda: (s := box.see("a-s01").status) is not None and s.heartbeat > before)
    assert not box.see("a-s01").notes


def test_a_paused_session_can_be_stopped_and_saves(box: Box) -> None:
    box.run()
    box.docker("pause", "a-s01")
    assert box.platform.stop("a-s01") is StopReply.REQUESTED
    result = box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.STOPPED


def test_a_paused_session_that_does_not_leave_is_killed(box: Box) -> None:
    box.use(grace_seconds=0.1)
    box.run_deaf()
    assert box.platform.stop("a-s01") is StopReply.REQUESTED
    box.docker("pause", "a-s01")
    box.until(lambda: box.platform.stop("a-s01") is StopReply.ENDED)
    assert box.see("a-s01").ending is Outcome.LOST


def test_a_container_removed_behind_our_back_is_absent(box: Box) -> None:
    box.run()
    box.saved()
    box.docker("rm", "--force", "a-s01")
    assert box.see("a-s01") == ABSENT
    with pytest.raises(NotFound):
        box.collect("a-s01")
    assert box.platform.stop("a-s01") is StopReply.ENDED
    box.platform.discard("a-s01")
    assert box.left() == ([], [])


def test_a_volume_in_use_cannot_be_removed(box: Box) -> None:
    box.run()
    [volume] = box.left()[1]
    assert "volume is in use" in box.docker("volume", "rm", "--force", volume)
    assert box.see("a-s01").sighting is Sighting.RUNNING
    with pytest.raises(Transient, match="still running"):
        box.platform.discard("a-s01")


def test_one_container_that_cannot_be_read_hides_no_other(box: Box) -> None:
    box.run()
    box.start(box.order("b-s01", run="b", command=docker_box.LONG))
    box.until(lambda: box.see("b-s01").status is not None)
    [mount] = box.client.api.inspect_container("a-s01")["Mounts"]
    files, aside = Path(mount["Source"]), Path(mount["Source"]).with_name("aside")
    files.rename(aside)
    try:
        seen = observed(box.platform, ["a-s01", "b-s01"])
        assert seen["a-s01"].sighting is Sighting.RUNNING
        assert seen["a-s01"].status is None
        assert "cannot be read" in seen["a-s01"].detail
        assert seen["b-s01"].status is not None
    finally:
        aside.rename(files)
    assert box.see("a-s01").status is not None


# --- Memory -----------------------------------------------------------------------------------------------


def test_a_training_killed_for_memory_is_out_of_memory(box: Box) -> None:
    box.use(memory_gb=0.2)
    order = box.order("a-s01", command=box.training(EATER))
    box.start(order)
    result = box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.OUT_OF_MEMORY, result


def test_a_container_killed_for_memory_is_out_of_memory(box: Box) -> None:
    box.use(memory_gb=0.1)
    box.run(agent=EATER)
    ended = box.until_ended("a-s01")
    assert (ended.ending, ended.result) == (Outcome.OUT_OF_MEMORY, None)
    state = box.client.api.inspect_container("a-s01")["State"]
    assert (state["ExitCode"], state["OOMKilled"]) == (137, True)


# --- Images -----------------------------------------------------------------------------------------------


def test_an_image_that_is_nowhere_is_refused(box: Box) -> None:
    order = box.order("a-s01", image="127.0.0.1:1/nowhere/nothing:1")
    with pytest.raises(Transient, match="nowhere/nothing:1 cannot be pulled"):
        box.platform.prepare(order, box.materials())
    with pytest.raises(Rejected, match="cannot be pulled by its id alone"):
        box.platform.prepare(replace(order, image="sha256:" + "0" * 64), box.materials())
    assert box.left() == ([], [])


def test_an_image_without_python_is_named_as_the_cause(box: Box) -> None:
    image = import_image(box, "tests/empty:1", [])
    box.start(box.order("a-s01", image=image))
    ended = box.until_ended("a-s01")
    assert ended.ending is Outcome.REJECTED
    assert "no `python3`" in ended.detail


def test_an_agent_that_cannot_run_is_heard(box: Box) -> None:
    box.run(agent="raise SystemExit('this Python is too old')")
    ended = box.until_ended("a-s01")
    assert ended.ending is Outcome.LOST
    assert "exit code 1" in ended.detail
    assert "this Python is too old" in ended.detail


def test_the_volumes_that_an_image_makes_are_not_left_behind(box: Box) -> None:
    image = import_image(box, "tests/volume:1", ["VOLUME /data"])
    box.platform.prepare(box.order("a-s01", image=image), box.materials())
    assert len(box.left()[1]) == 2
    box.platform.discard("a-s01")
    assert box.left() == ([], [])


# --- Names ------------------------------------------------------------------------------------------------


def test_a_foreign_container_keeps_its_name(box: Box, python_image: str) -> None:
    box.client.containers.create(python_image, ["true"], name="a-s01")
    with pytest.raises(Rejected, match="not ours"):
        box.platform.prepare(box.order("a-s01"), box.materials())
    assert box.see("a-s01") == ABSENT
    box.platform.discard("a-s01")
    assert box.left() == (["a-s01"], [])


def test_foreign_volumes_stay(box: Box) -> None:
    box.client.volumes.create("a-s01.important")
    box.client.volumes.create("a-s01", labels={"orchestrator.session": "b-s01"})
    box.start(box.order("a-s01"))
    box.until_ended("a-s01")
    box.platform.discard("a-s01")
    assert sorted(box.left()[1]) == ["a-s01", "a-s01.important"]


# --- Disk -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def narrow() -> Iterator[Engine]:
    """An engine with room for an image and little else."""
    if not installed():
        pytest.skip(MISSING)
    with small_engine(260) as engine:
        yield engine


@pytest.fixture
def narrow_box(tmp_path: Path, agent: Path, narrow: Engine) -> Iterator[Box]:
    box = Box(tmp_path, agent, narrow, "tests/python:host")
    yield box
    box.close()


def test_a_full_disk_at_prepare_is_said_and_leaves_nothing(narrow_box: Box, tmp_path: Path) -> None:
    (tmp_path / "inputs").mkdir()
    with (tmp_path / "inputs" / "corpus").open("wb") as file:
        file.truncate(400 << 20)
    materials = narrow_box.materials_of(inputs=tmp_path / "inputs")
    with pytest.raises(Transient, match="disk is full"):
        narrow_box.platform.prepare(narrow_box.order("a-s01"), materials)
    assert narrow_box.left() == ([], [])


def test_a_full_disk_while_training_ends_the_session_with_what_was_saved(narrow_box: Box) -> None:
    fill = "with open('filler', 'wb') as f:\n while True: f.write(b'x' * (1 << 20))"
    narrow_box.start(narrow_box.order("a-s01", command=narrow_box.training(fill)))
    result = narrow_box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.CRASHED
    assert "No space left on device" in result.tail
    narrow_box.collect("a-s01")
    narrow_box.platform.discard("a-s01")
    assert narrow_box.left() == ([], [])


# --- Starting ---------------------------------------------------------------------------------------------


def test_a_failed_gpu_start_is_named_and_cleaned(box: Box) -> None:
    box.use(accelerator="RTX3050", gpus=["0"])
    [offer] = box.platform.survey()
    assert offer.unavailable is not None
    assert offer.unavailable.until.kind is UntilKind.HUMAN
    order = box.order("a-s01", accelerator="RTX3050", precision=Precision.FP16)
    box.platform.prepare(order, box.materials())
    with pytest.raises(Rejected, match="provides no GPU"):
        box.platform.launch(order)
    assert box.client.api.inspect_container("a-s01")["State"]["Status"] == "created"
    assert box.platform.stop("a-s01") is StopReply.ENDED
    box.platform.discard("a-s01")
    assert box.left() == ([], [])


def test_a_start_that_fails_says_why(box: Box) -> None:
    box.use(network="no-such-network")
    order = box.order("a-s01", internet=True)
    box.platform.prepare(order, box.materials())
    with pytest.raises(Rejected, match="no-such-network"):
        box.platform.launch(order)
    seen = box.see("a-s01")
    assert (seen.sighting, seen.ending) == (Sighting.ENDED, Outcome.NO_CAPACITY)
    assert "no-such-network" in seen.detail


PREPARE = """
import sys; sys.path[:0] = [sys.argv[1]]
import json, pathlib
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.platforms import catalog
from orchestrator.session.staging import Materials
_, _, options, folder, order, bundle, agent, inputs = sys.argv
folder = pathlib.Path(folder)
platform = catalog.build("here", "docker", json.loads(options), folder=folder, clock=SystemClock())
materials = Materials(pathlib.Path(bundle), pathlib.Path(agent), inputs=pathlib.Path(inputs))
platform.prepare(wire.decode(Order, order.encode()), materials)
"""


def kill_while_preparing(box: Box) -> None:
    """kill -9 for a preparer in the middle of the upload: an input that never arrives keeps it there."""
    inputs = box.folder / "endless"
    inputs.mkdir(exist_ok=True)
    os.mkfifo(inputs / "corpus")
    words = (
        str(PAGE.parents[1]), json.dumps(box.options), str(box.folder / "sessions"),
        wire.encode(box.order("a-s01")).decode(), str(box.bundle), str(box.agent), str(inputs),
    )  # fmt: skip
    child = subprocess.Popen([sys.executable, "-c", PREPARE, *words])
    box.until(lambda: any("preparing" in name for name in box.left()[0]))
    child.send_signal(signal.SIGKILL)
    child.wait()
    (inputs / "corpus").unlink()
    assert box.left()[0]
    assert box.left()[1]


def test_what_a_killed_preparer_leaves_is_cleaned_by_the_next(box: Box) -> None:
    kill_while_preparing(box)
    box.client.volumes.create("a-s01.0123abcd", labels={"orchestrator.session": "a-s01"})
    assert box.see("a-s01") == ABSENT
    box.until(lambda: taken(lambda: box.start(box.order("a-s01"))))
    box.until_ended("a-s01")
    containers, volumes = box.left()
    assert containers == ["a-s01"]
    assert len(volumes) == 1


def test_what_a_killed_preparer_leaves_is_cleaned_by_discard(box: Box) -> None:
    kill_while_preparing(box)
    box.until(lambda: taken(lambda: box.platform.discard("a-s01")))
    assert box.left() == ([], [])


def test_a_container_made_by_docker_commit_is_somebody_elses(box: Box) -> None:
    """It inherits every label of the session it was made from, and runs with its user's own volume."""
    box.run()
    box.until(lambda: box.platform.stop("a-s01") is StopReply.ENDED)
    box.docker("commit", "a-s01", "theirs/experiment")
    box.docker("run", "-d", "--name", "theirs", "-v", "their-data:/orchestrator", "--entrypoint", "sleep",
               "theirs/experiment", "3600")  # fmt: skip
    theirs = box.client.containers.get("theirs")
    assert theirs.labels["orchestrator.session"] == "a-s01"
    assert isinstance(box.platform, Cleaning)
    assert [each.name for each in box.platform.leftovers()] == ["a-s01"]
    box.platform.remove(Leftover("container", "theirs", "a-s01", "a", "running", alive=True))
    box.platform.discard("a-s01")
    assert box.left() == (["theirs"], ["their-data"])
    theirs.reload()
    assert theirs.status == "running"


def taken(verb: Callable[[], object]) -> bool:
    """Whether the engine accepted the call. It may still be busy with a request of a killed client."""
    try:
        verb()
    except Transient:
        return False
    return True


# --- Ending -----------------------------------------------------------------------------------------------


def test_a_training_that_ignores_sigterm_is_killed(box: Box) -> None:
    box.use(grace_seconds=3.0)
    ignore = (
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(300)"
    )
    box.run(command=box.training(ignore))
    box.until(lambda: "deaf" in box.inside("sh", "-c", "cat /orchestrator/session/outbox/log/*"))
    assert box.platform.stop("a-s01") is StopReply.REQUESTED
    box.until(lambda: box.platform.stop("a-s01") is StopReply.ENDED)
    ended = box.see("a-s01")
    assert ended.sighting is Sighting.ENDED
    assert ended.ending is Outcome.LOST
    assert "asked to stop" in ended.detail


def test_a_wall_is_a_wall(box: Box) -> None:
    box.use(session_seconds=1.0, slack_seconds=0.5)
    box.run_deaf()
    ended = box.until_ended("a-s01")
    assert (ended.ending, ended.incarnations, ended.result) == (Outcome.LOST, ("deaf",), None)
    assert "session limit" in ended.detail


@engine_away
def test_a_stop_that_did_not_arrive_is_no_reason_to_kill(own_box: Box) -> None:
    own_box.use(grace_seconds=0.01)
    own_box.run()
    own_box.saved()
    own_box.use(timeout_seconds=5)
    assert own_box.engine.process is not None
    own_box.engine.process.send_signal(signal.SIGSTOP)
    with pytest.raises(Transient, match="does not answer"):
        own_box.platform.stop("a-s01")
    own_box.engine.process.send_signal(signal.SIGCONT)
    assert own_box.platform.stop("a-s01") in (StopReply.REQUESTED, StopReply.ENDED)
    own_box.use(timeout_seconds=60)
    result = own_box.until_ended("a-s01").result
    assert result is not None
    assert result.outcome is Outcome.STOPPED


def test_a_stop_between_prepare_and_launch_holds_whatever_comes_after(box: Box) -> None:
    order = box.order("a-s01")
    assert box.platform.stop("a-s01") is StopReply.ENDED
    tombstones = box.left()[1]
    other = box.platform_with(home="other")
    other.prepare(order, box.materials())
    assert box.left() == ([], tombstones)
    with pytest.raises(Rejected, match="stopped before"):
        other.launch(order)


# --- The table --------------------------------------------------------------------------------------------


def test_every_row_of_the_failure_table_names_its_test() -> None:
    rows = docker_box.rows(PAGE.read_text().partition("## Failures")[2])
    assert len(rows) >= 20
    here = Path(__file__).parent
    tests = "".join((here / name).read_text() for name in ("test_docker.py", "test_docker_connection.py"))
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row[-1])
        assert named, f"no test: {row[0]}"
        for name in named:
            assert f"def {name}(" in tests, f"{row[0]}: no test {name}"


def test_every_option_is_on_the_page() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text().partition("## Options")[2].partition("\n## ")[0]))
    assert set(DockerOptions.model_fields) <= named
