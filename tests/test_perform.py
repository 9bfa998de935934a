"""How actions are carried out: what retention leaves alone, what is cleaned up, what is tried again."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Discard, Done, Failed, Launch, Retire, Trouble
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.errors import Rejected
from orchestrator.perform import Backends, Folders, perform
from orchestrator.platforms.platform import Collected, Platform
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


@pytest.mark.parametrize("name", ["../../victim", "..", "/victim", "a/../../../victim", "", ".tmp-x"])
def test_a_name_that_leads_elsewhere_removes_nothing(backends: Backends, tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    backends.folders.staged("a-s01").mkdir(parents=True)
    for action in (Discard(name, "here"), Collect(RUN, name, "here", 1, "aaaa", frozenset(), last=False),
                   Collect(name, ORDER.session, "here", 1, "aaaa", frozenset(), last=False)):  # fmt: skip
        failed = perform(action, backends)
        assert isinstance(failed, Failed)
        assert failed.trouble is Trouble.REJECTED
        assert "nothing was touched" in failed.message
    assert victim.exists()
    assert backends.folders.staged("a-s01").exists()
    for path in (Folders.bundle, Folders.image, Folders.run, Folders.live, Folders.preparing):
        with pytest.raises(Rejected):
            path(backends.folders, name)


def test_a_platform_that_is_not_configured_any_more_is_named(backends: Backends) -> None:
    gone = Backends({}, backends.store, backends.folders, backends.secret)
    for action in (Launch(ORDER), Discard(ORDER.session, "here")):
        failed = perform(action, gone)
        assert isinstance(failed, Failed)
        assert failed.trouble is Trouble.REJECTED
        assert "here is not in the config" in failed.message
