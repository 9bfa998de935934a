"""How actions are carried out: what retention leaves alone, what is cleaned up, what is tried again."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Discard, Done, Failed, Launch, Prepare, Retire, Trouble
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.session import Order
from orchestrator.errors import AccessDenied, Rejected
from orchestrator.perform import Backends, Folders, perform
from orchestrator.platforms.platform import Collected, Materials, Platform
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from tests.core.runs import RUN, assigned
from tests.simulation.clock import VirtualClock

ORDER = assigned().order


class Empty(SimulatedPlatform):
    """A platform whose outboxes have nothing new."""

    def collect(self, name: str, into: Path) -> Collected:  # noqa: ARG002
        return Collected(())


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    here: Platform = Empty("here", Scenario(), VirtualClock())
    return Backends({"here": here}, MemoryStore(), Folders(tmp_path / "home"), secret=lambda name: name)


def bring(into: Path, step: int, generation: int = 1) -> Manifest:
    """A checkpoint as `collect` would have left it in a local folder."""
    data = f"{step} {generation}".encode()
    sha256 = hashlib.sha256(data).hexdigest()
    file = FileEntry("state", len(data), (Part(sha256, len(data)),))
    manifest = Manifest(RUN, CheckpointRef(step, generation, "aaaa"), 16, (file,))
    for path, content in (
        (into / "blobs" / sha256, data),
        (into / "checkpoints" / manifest.name / "manifest.json", manifest.encode()),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return manifest


def test_a_retire_that_comes_late_spares_what_later_generations_hold(
    backends: Backends, tmp_path: Path
) -> None:
    old, kept, later = (bring(tmp_path, step, g) for step, g in ((10, 1), (20, 1), (15, 2)))
    for manifest in (old, kept, later):
        stored.publish(backends.store, RUN, manifest, tmp_path)
    perform(Retire(RUN, frozenset({kept.name}), generation=1, live=None), backends)
    assert {ref.name for ref in stored.names(backends.store, RUN)} == {kept.name, later.name}
    stored.fetch(backends.store, RUN, later.name, tmp_path / "fetched")


def test_a_checkpoint_brought_in_part_is_not_taken_for_one_that_was_never_there(backends: Backends) -> None:
    manifest = bring(backends.folders.collected(RUN, ORDER.session), 10)
    for blob in (backends.folders.collected(RUN, ORDER.session) / "blobs").iterdir():
        blob.unlink()
    collect = Collect(RUN, ORDER.session, "here", 1, "aaaa", frozenset(), last=False)
    failed = perform(collect, backends)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.TRANSIENT
    assert manifest.name in failed.message
    assert isinstance(perform(collect, backends), Done), "it would have been brought again, if it was there"


def test_discarding_a_session_leaves_no_staged_checkpoint_behind(backends: Backends) -> None:
    staged = backends.folders.staged(ORDER.session)
    bring(staged, 10)
    assert isinstance(perform(Discard(ORDER.session, "here"), backends), Done)
    assert not staged.exists()


class Repeating(SimulatedPlatform):
    """A platform whose refusal repeats what it was sent."""

    def prepare(self, order: Order, materials: Materials) -> None:
        [line, other] = materials.secrets["KEY"].splitlines()
        materials.say(f"sending {line}")
        raise Rejected(f"{order.session}: no field {line}, nor {base64.b64encode(other.encode())!r}")


def test_a_refusal_that_repeats_a_secret_is_journalled_without_it(backends: Backends) -> None:
    order = replace(ORDER, secrets=("KEY", "GONE"))
    here: Platform = Repeating("here", Scenario(), VirtualClock())

    def secret(name: str) -> str:
        if name == "GONE":
            raise AccessDenied("it is not there")
        return "the first line\nand the second"

    failed = perform(Prepare(order), replace(backends, platforms={"here": here}, secret=secret))
    assert isinstance(failed, Failed)
    assert failed.message == "it is not there"
    order = replace(order, secrets=("KEY",))
    failed = perform(Prepare(order), replace(backends, platforms={"here": here}, secret=secret))
    assert isinstance(failed, Failed)
    assert failed.message == f"{order.session}: no field ***, nor b'***'"


def test_a_platform_that_is_not_configured_any_more_is_named(backends: Backends) -> None:
    gone = Backends({}, backends.store, backends.folders, backends.secret)
    for action in (Launch(ORDER), Discard(ORDER.session, "here")):
        failed = perform(action, gone)
        assert isinstance(failed, Failed)
        assert failed.trouble is Trouble.REJECTED
        assert "here is not in the config" in failed.message
