"""A run's checkpoints as values, and fetching one of them, with the progress that is reported."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.client import Run, pulling
from orchestrator.client.checkpoints import checkpoints
from orchestrator.clock import SystemClock
from orchestrator.core.checkpoint import Accepted, CheckpointRef, FileEntry, Grade, Manifest, Part
from orchestrator.core.event import Cancelled, CheckpointAccepted
from orchestrator.core.job import CheckpointPolicy
from orchestrator.errors import CorruptCheckpoint, InputError
from orchestrator.stores import checkpoints as stored
from tests.client.homes import append, run_after
from tests.core.runs import NOW, RUN, job, running


def published(run: Run, step: int, *, accuracy: float = 0.0) -> Manifest:
    """A checkpoint with one file, accepted and in the run's home store."""
    store, data = run.client.wired().store("home"), f"state {step}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    manifest = Manifest(
        RUN, CheckpointRef(step, 1, "aaaa"), 16, (FileEntry("state", len(data), (Part(sha256, len(data)),)),),
        metrics={"accuracy": accuracy},
    )  # fmt: skip
    outbox = run.client.home.path / "outbox"
    for path, content in (
        (outbox / "blobs" / sha256, data),
        (outbox / "checkpoints" / manifest.name / "manifest.json", manifest.encode()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    stored.publish(store, RUN, manifest, outbox)
    accepted = Accepted(manifest.ref, len(data), manifest.metrics, sha256=manifest.sha256)
    append(run.client.home.path, [CheckpointAccepted(NOW, accepted)])
    return manifest


def lose(run: Run, *manifests: Manifest) -> None:
    """Removes their blobs from the store and keeps their manifests."""
    store = run.client.wired().store("home")
    gone = {sha256 for each in manifests for sha256 in each.blobs()}
    for stat in tuple(store.list(f"runs/{RUN}/blobs/")):
        if stat.key.rpartition("/")[2] in gone:
            store.delete(stat.key)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return run_after(tmp_path / "home", *running())


def test_checkpoints_are_listed_oldest_first(run: Run) -> None:
    assert run.checkpoints() == ()
    for step in (10, 20):
        published(run, step, accuracy=step / 100)
    first, second = run.checkpoints(verify=True)
    assert [(each.step, each.newest, each.trouble) for each in (first, second)] == [
        (10, False, ""),
        (20, True, ""),
    ]
    assert first.metrics == {"accuracy": 0.1}
    assert second.authenticated


def test_what_is_not_whole_is_said_of_that_checkpoint(run: Run) -> None:
    published(run, 10)
    lose(run, published(run, 20))
    assert [each.trouble for each in run.checkpoints()] == ["", ""], "only the manifests are read"
    first, second = run.checkpoints(verify=True)
    assert first.trouble == ""
    assert second.trouble.startswith("corrupt: ")
    assert second.advice == second.trouble


@pytest.mark.parametrize(("watch", "grade"), [(None, Grade.BITWISE), ("ckpt_{step}", Grade.AS_SAVED)])
def test_how_exactly_a_script_resumed_is_not_claimed_for_its_own_saves(
    run: Run, tmp_path: Path, watch: str | None, grade: Grade
) -> None:
    environment, store = {"accelerator": "cpu", "numpy": "2.3"}, run.client.wired().store("home")
    first = Manifest(RUN, CheckpointRef(10, 1, "aaaa"), 16, (), environment=environment)
    second = Manifest(RUN, CheckpointRef(20, 2, "bbbb"), 16, (), parent=first.name, environment=environment)
    for each in (first, second):
        (tmp_path / each.name).write_bytes(each.encode())
        store.put(f"runs/{RUN}/checkpoints/{each.name}/manifest.json", tmp_path / each.name, each.sha256)
    record = replace(
        run.record(), job=job(checkpoint=CheckpointPolicy(watch=watch)),
        accepted=tuple(Accepted(each.ref, 0, sha256=each.sha256) for each in (first, second)),
    )  # fmt: skip
    assert [each.resumed for each in checkpoints(store, record, verify=False)] == [None, grade]


def test_a_checkpoint_that_is_gone_says_so_with_what_it_may_mean(run: Run) -> None:
    manifest = published(run, 10)
    store = run.client.wired().store("home")
    for stat in tuple(store.list("")):
        store.delete(stat.key)
    [found] = run.checkpoints()
    assert (found.name, found.trouble) == (manifest.name, "missing in the store")
    assert found.advice == "it is gone from the home store, which is empty: is its disk there?"


def test_a_pull_tells_how_far_it_is(run: Run, tmp_path: Path) -> None:
    for step in (10, 20):
        published(run, step)
    told: list[tuple[int, int]] = []
    pulled = run.pull(tmp_path / "there", step=10, progress=lambda done, size: told.append((done, size)))
    assert (pulled.step, pulled.skipped, pulled.authenticated) == (10, (), True)
    assert (pulled.folder / "state").read_text() == "state 10"
    assert (told[0], told[-1]) == ((0, 8), (8, 8))
    assert run.pull(tmp_path / "there", step=10) == pulled, "a folder that already holds it stays as it is"
    with pytest.raises(InputError, match="holds something else"):
        run.pull(tmp_path / "there", step="latest")


def test_a_run_that_is_over_without_a_checkpoint_points_to_its_outputs(tmp_path: Path) -> None:
    files = Accepted(CheckpointRef(0, 1, "aaaa", outputs=True), 5)
    cancelled = run_after(tmp_path / "home", Cancelled(NOW, "asked to"))
    with pytest.raises(InputError, match=f"{RUN} is cancelled and left no checkpoint$"):
        cancelled.pull(tmp_path / "there")
    record = replace(cancelled.record(), outputs=(files,))
    with pytest.raises(InputError, match=f"left no checkpoint; `orchestrator pull {RUN} --outputs` copies"):
        pulling.bring(cancelled.client.wired().store("home"), record, None, None, SystemClock())


def test_the_newest_that_is_whole_is_brought(run: Run, tmp_path: Path) -> None:
    manifests: Sequence[Manifest] = [published(run, step) for step in (10, 20, 30)]
    lose(run, *manifests[1:])
    pulled = run.pull(tmp_path / "there")
    assert pulled.step == 10
    assert [each.partition(" (")[0] for each in pulled.skipped] == ["step 30", "step 20"]
    lose(run, manifests[0])
    with pytest.raises(CorruptCheckpoint, match=manifests[0].name) as error:
        run.pull(tmp_path / "elsewhere")
    assert [note.partition(" (")[0] for note in error.value.__notes__] == ["step 30", "step 20"]
    assert not (tmp_path / "elsewhere").exists()


def test_a_checkpoint_that_does_not_exist_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has no checkpoint yet"):
        run.pull(tmp_path / "there")
    published(run, 10)
    with pytest.raises(InputError, match="no checkpoint at step 11; it has: 10"):
        run.pull(tmp_path / "there", step=11)
    with pytest.raises(InputError, match=r"its job has no checkpoint\.keep\.best"):
        run.pull(tmp_path / "there", step="best")
