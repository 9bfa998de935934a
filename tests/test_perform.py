"""How actions are carried out: what retention keeps, what is cleaned up, what is retried."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from orchestrator.client.wiring import Wired
from orchestrator.clock import SystemClock
from orchestrator.core.action import Collect, Discard, Done, Failed, Launch, Prepare, Retire, Trouble
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.deposit import deposit_of
from orchestrator.core.order import Order
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import AccessDenied, Rejected
from orchestrator.home import Folders
from orchestrator.platforms.platform import Platform
from orchestrator.platforms.simulated.platform import SimulatedPlatform
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.faulty import FaultRates, FaultyStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.unforeseen import Reporter
from tests.core.runs import RUN, assigned, record
from tests.forging import forge
from tests.seen import Canned
from tests.simulation.clock import VirtualClock

ORDER = assigned().order
COLLECT = Collect(RUN, ORDER.session, "here", 1, "aaaa", frozenset(), last=False)


class Empty(SimulatedPlatform):
    """A platform whose outboxes have nothing new."""

    def open(self, name: str) -> Outbox:  # noqa: ARG002
        return Canned()


class Unasked(SimulatedPlatform):
    """A platform that prepares every order."""

    def prepare(self, order: Order, materials: Materials) -> None:
        pass


@pytest.fixture
def backends(tmp_path: Path) -> Backends:
    here: Platform = Empty("here", Scenario(), VirtualClock())
    return Backends(
        {"here": here}, {"home": MemoryStore()}, "home", Folders(tmp_path / "home"), secret=lambda name: name
    )


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
        stored.publish(backends.store("home"), RUN, manifest, tmp_path)
    perform(Retire(RUN, frozenset({kept.name}), generation=1), backends)
    assert {ref.name for ref in stored.names(backends.store("home"), RUN)} == {kept.name, later.name}
    stored.fetch(backends.store("home"), RUN, later.name, tmp_path / "fetched")


def test_nothing_is_published_of_a_run_that_another_ledger_has_adopted(backends: Backends) -> None:
    manifest = bring(backends.folders.collected(RUN, ORDER.session), 10)
    store = backends.store("home")
    deposits.write(store, replace(deposit_of(record()), adoptions=1, adopted_by="pebble"))
    failed = perform(COLLECT, backends)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.SUPERSEDED
    assert "on the machine pebble" in failed.message
    assert list(stored.names(store, RUN)) == []
    done = perform(replace(COLLECT, adoptions=1), backends)  # once it is taken back
    assert isinstance(done, Done)
    assert [each.name for each in done.checkpoints] == [manifest.name]


def test_a_checkpoint_brought_in_part_is_not_taken_for_one_that_was_never_there(backends: Backends) -> None:
    manifest = bring(backends.folders.collected(RUN, ORDER.session), 10)
    for blob in (backends.folders.collected(RUN, ORDER.session) / "blobs").iterdir():
        blob.unlink()
    collect = Collect(RUN, ORDER.session, "here", 1, "aaaa", frozenset(), last=False)
    failed = perform(collect, backends)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.TRANSIENT
    assert manifest.name in failed.message
    assert isinstance(perform(collect, backends), Done), "the next collect would bring it again"


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator.files import draft_folder
with draft_folder(Path(sys.argv[1])) as draft:
    (draft / "part").write_bytes(b"of a blob")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_controller_that_was_killed_while_it_brought_a_blob_keeps_nothing_back(backends: Backends) -> None:
    into = backends.folders.collected(RUN, ORDER.session)
    manifest = bring(into, 10)
    subprocess.run([sys.executable, "-c", KILLED, str(into / "blobs")], check=False)
    assert len(list((into / "blobs").iterdir())) == 2
    done = perform(COLLECT, backends)
    assert isinstance(done, Done)
    assert [each.name for each in done.checkpoints] == [manifest.name]
    assert list((into / "blobs").iterdir()) == []


def test_what_the_store_holds_under_a_name_is_not_taken_for_what_the_session_brought(
    backends: Backends, tmp_path: Path
) -> None:
    """Somebody with write access to the store has put a manifest where the next checkpoint is to go."""
    into = backends.folders.collected(RUN, ORDER.session)
    manifest = bring(into, 10)
    bring(tmp_path, 10)
    stored.publish(backends.store("home"), RUN, forge(tmp_path, manifest.name), tmp_path)
    done = perform(COLLECT, backends)
    assert isinstance(done, Done)
    assert [c.sha256 for c in done.checkpoints] == [manifest.sha256]
    assert any("had a different manifest" in note for note in done.notes)
    fetched = stored.fetch(backends.store("home"), RUN, manifest.name, tmp_path / "fetched", manifest.sha256)
    assert fetched == manifest


def test_a_copy_of_a_manifest_that_came_before_its_blobs_costs_no_blob(
    backends: Backends, tmp_path: Path
) -> None:
    manifest = bring(backends.folders.collected(RUN, ORDER.session), 10)
    path = backends.folders.collected(RUN, ORDER.session) / "checkpoints" / manifest.name / "manifest.json"
    backends.store("home").put(f"runs/{RUN}/checkpoints/{manifest.name}/manifest.json", path, manifest.sha256)
    assert isinstance(perform(COLLECT, backends), Done)
    stored.fetch(backends.store("home"), RUN, manifest.name, tmp_path / "fetched", manifest.sha256)


def test_one_replaced_before_its_acceptance_was_journalled_is_brought_again(
    backends: Backends, tmp_path: Path
) -> None:
    into = backends.folders.collected(RUN, ORDER.session)
    manifest = bring(into, 10)
    perform(COLLECT, backends)  # and the controller died
    replaced(backends, tmp_path, manifest)
    again = perform(COLLECT, backends)
    assert isinstance(again, Done)
    assert again.checkpoints == ()
    assert [name for name, _ in again.corrupt] == [manifest.name]
    bring(into, 10)
    accepted = perform(COLLECT, backends)
    assert isinstance(accepted, Done)
    assert [c.sha256 for c in accepted.checkpoints] == [manifest.sha256]


def replaced(backends: Backends, folder: Path, manifest: Manifest) -> Manifest:
    """Somebody replaced the checkpoint in the store with another consistent one."""
    bring(folder, manifest.ref.step, manifest.ref.generation)
    forged = forge(folder, manifest.name)
    stored.publish(backends.store("home"), RUN, forged, folder)
    return forged


def test_a_session_that_brings_another_runs_checkpoint_is_not_believed(backends: Backends) -> None:
    into = backends.folders.collected(RUN, ORDER.session)
    manifest = bring(into, 10)
    other = replace(manifest, run="other-abcdefgh")
    (into / "checkpoints" / manifest.name / "manifest.json").write_bytes(other.encode())
    done = perform(COLLECT, backends)
    assert isinstance(done, Done)
    assert done.checkpoints == ()
    assert "other-abcdefgh" in done.corrupt[0][1]


# --- The checkpoint to resume ---------------------------------------------------------------------------


def resuming(*manifests: Manifest, sha256: str | None = None) -> Prepare:
    """A prepare that resumes from the last of them; all were accepted."""
    last = manifests[-1]
    order = replace(ORDER, resume=last.name, resume_step=last.ref.step, resume_sha256=sha256 or last.sha256)
    return Prepare(order, frozenset(m.name for m in manifests))


def two_in_the_store(backends: Backends, folder: Path) -> tuple[Manifest, Manifest]:
    before, newest = bring(folder, 10), bring(folder, 20)
    for manifest in (before, newest):
        stored.publish(backends.store("home"), RUN, manifest, folder)
    return before, newest


def test_a_consistent_replacement_in_the_store_is_not_staged(backends: Backends, tmp_path: Path) -> None:
    before, newest = two_in_the_store(backends, tmp_path)
    forged = replaced(backends, tmp_path / "other", newest)
    assert stored.fetch(backends.store("home"), RUN, newest.name, tmp_path / "x") == forged, "consistent"
    failed = perform(resuming(before, newest), backends)
    assert isinstance(failed, Failed)
    assert (failed.trouble, failed.checkpoint) == (Trouble.CORRUPT, newest.name)
    assert "was replaced" in failed.message
    assert failed.left == (before.name,)
    assert not backends.folders.staged(ORDER.session).exists()


def test_a_manifest_that_is_gone_is_told_with_what_is_left(backends: Backends, tmp_path: Path) -> None:
    before, newest = two_in_the_store(backends, tmp_path)
    backends.store("home").delete(f"runs/{RUN}/checkpoints/{newest.name}/manifest.json")
    failed = perform(resuming(before, newest), backends)
    assert isinstance(failed, Failed)
    assert (failed.trouble, failed.checkpoint) == (Trouble.NOT_FOUND, newest.name)
    assert failed.left == (before.name,)


def test_an_empty_store_is_told_from_one_of_another_time(backends: Backends, tmp_path: Path) -> None:
    manifest = bring(tmp_path, 20)
    empty = perform(resuming(manifest), backends)
    assert isinstance(empty, Failed)
    assert empty.left == ()
    assert "is its disk there?" in empty.message
    later = bring(tmp_path, 90, generation=3)
    stored.publish(backends.store("home"), RUN, later, tmp_path)
    newer = perform(resuming(manifest), backends)
    assert isinstance(newer, Failed)
    assert later.name in newer.message
    assert "was an old copy of the home restored?" in newer.message


def test_a_store_that_is_silent_is_tried_again(backends: Backends, tmp_path: Path) -> None:
    manifest = two_in_the_store(backends, tmp_path)[1]
    silent = FaultyStore(
        backends.store("home"), FaultRates(fails=1.0), Random(1), now=lambda: 0.0, wait=lambda _: None
    )
    failed = perform(resuming(manifest), replace(backends, stores={"home": silent}))
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.TRANSIENT
    assert failed.checkpoint is None, "nothing is known of it"


def test_a_checkpoint_of_an_older_version_is_resumed_and_said_to_be_unproved(
    backends: Backends, tmp_path: Path
) -> None:
    manifest = two_in_the_store(backends, tmp_path)[1]
    action = resuming(manifest)
    untested = replace(action, order=replace(action.order, resume_sha256=None))
    done = perform(
        untested, replace(backends, platforms={"here": Unasked("here", Scenario(), VirtualClock())})
    )
    assert isinstance(done, Done), done
    assert any(manifest.name in note and "older version" in note for note in done.notes)


def test_discarding_a_session_leaves_no_staged_checkpoint_behind(backends: Backends) -> None:
    staged = backends.folders.staged(ORDER.session)
    bring(staged, 10)
    assert isinstance(perform(Discard(ORDER.session, "here"), backends), Done)
    assert not staged.exists()


class Repeating(SimulatedPlatform):
    """A platform whose refusal repeats the values it was sent."""

    def prepare(self, order: Order, materials: Materials) -> None:
        [line, other] = materials.secrets["KEY"].splitlines()
        materials.say(f"sending {line}")
        raise Rejected(f"{order.session}: no field {line}, nor {base64.b64encode(other.encode())!r}")


class Odd(Exception):
    """An error whose text is not among its arguments."""

    def __init__(self, field: str) -> None:
        super().__init__("odd")
        self.field = field

    def __str__(self) -> str:
        return f"the field {self.field}"


class Elsewhere(SimulatedPlatform):
    """A platform with a bug. Its exceptions hold the values it was given, but not in their arguments."""

    def prepare(self, order: Order, materials: Materials) -> None:  # noqa: ARG002
        secret = materials.secrets["KEY"]
        try:
            raise OSError(2, f"no {secret}", f"/tmp/{secret}")
        except OSError as error:
            error.add_note(f"while sending {secret}")
            raise Odd(secret) from error


class Failing(SimulatedPlatform):
    """A platform with a bug whose error repeats everything it knows."""

    def prepare(self, order: Order, materials: Materials) -> None:  # noqa: ARG002
        try:
            raise KeyError(materials.secrets["KEY"])
        except KeyError as error:
            raise ZeroDivisionError("x" * 180 + materials.secrets["KEY"]) from error


def test_a_bug_that_tells_a_secret_is_journalled_and_logged_without_it(backends: Backends) -> None:
    told: list[str] = []

    def hear(doing: str, error: Exception) -> None:
        told.append(doing + "".join(traceback.format_exception(error)))

    here: Platform = Failing("here", Scenario(), VirtualClock())
    known = replace(backends, platforms={"here": here}, secret=lambda _: "hunter2-" * 9, unforeseen=hear)
    failed = perform(Prepare(replace(ORDER, secrets=("KEY",))), known)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.UNFORESEEN
    assert "hunter2" not in failed.message + told[0]
    assert "KeyError: '***'" in told[0]


def test_no_text_of_an_exception_tells_a_secret_to_the_log(backends: Backends) -> None:
    said: list[str] = []
    here: Platform = Elsewhere("here", Scenario(), VirtualClock())
    known = replace(backends, platforms={"here": here}, secret=lambda _: "hunter2-" * 9)
    failed = perform(
        Prepare(replace(ORDER, secrets=("KEY",))), replace(known, unforeseen=Reporter(said.append))
    )
    assert isinstance(failed, Failed)
    assert "(Odd: the field ***)" in failed.message
    [log] = said
    assert "hunter2" not in failed.message + log
    assert "no ***: '/tmp/***'" in log
    assert "while sending ***" in log
    assert "Odd: the field ***" in log
    assert "raise Odd(secret) from error" in log


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


def test_a_run_of_a_strangers_gets_no_variable_of_the_orchestrators(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody with write access to a shared database can list any name."""
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", "postgresql://me:hunter2@example.org/ledger")
    known = Wired.from_home(tmp_path, SystemClock()).backends()
    failed = perform(Prepare(replace(ORDER, secrets=("ORCHESTRATOR_DATABASE",))), known)
    assert isinstance(failed, Failed)
    assert failed.trouble is Trouble.DENIED
    assert "ORCHESTRATOR_DATABASE is the orchestrator's own" in failed.message


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
    gone = Backends({}, backends.stores, "home", backends.folders, backends.secret)
    for action in (Launch(ORDER), Discard(ORDER.session, "here")):
        failed = perform(action, gone)
        assert isinstance(failed, Failed)
        assert failed.trouble is Trouble.REJECTED
        assert "here is no longer in the config" in failed.message
