"""A run that was under way comes into another ledger: what is fetched, fenced, taken and said."""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.client import Came
from orchestrator.client.adopting import Adopting
from orchestrator.core.action import Done, Retire
from orchestrator.core.checkpoint import Accepted, CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.deposit import GENERATION_MAX
from orchestrator.core.event import CheckpointAccepted
from orchestrator.core.job import Input
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord, apply
from orchestrator.engine.depositing import deposit
from orchestrator.engine.perform import Backends, perform
from orchestrator.freeze import inputs
from orchestrator.home import Folders
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.folder import FolderStore
from orchestrator.uplink.registers import raise_fence
from tests.core.runs import NOW, RUN, record, running
from tests.simulation.clock import VirtualClock

SOURCE = b"the archive of the source"
SHA = hashlib.sha256(SOURCE).hexdigest()
CONFIG = """
platforms: {{here: {{type: process}}}}
stores:
  shared: {{type: folder, path: {0}/shared}}
  attic: {{type: folder, path: {0}/attic}}
home_store: shared
"""


@dataclass
class Houses:
    """A machine with a run under way, its store, and another machine."""

    old: Folders
    store: FolderStore
    client: Client
    record: RunRecord
    corpus: Path

    def publish(self, step: int, *, generation: int = 1, incarnation: str = "aaaa") -> Manifest:
        """A checkpoint with one file, in the store."""
        data = f"state {step}".encode()
        sha256 = hashlib.sha256(data).hexdigest()
        entry = FileEntry("state", len(data), (Part(sha256, len(data)),))
        manifest = Manifest(RUN, CheckpointRef(step, generation, incarnation), 16, (entry,))
        outbox = self.old.home / "outbox"
        for path, content in (
            (outbox / "blobs" / sha256, data),
            (outbox / "checkpoints" / manifest.name / "manifest.json", manifest.encode()),
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        stored.publish(self.store, RUN, manifest, outbox)
        return manifest

    def accept(self, step: int) -> None:
        manifest = self.publish(step)
        accepted = Accepted(manifest.ref, manifest.size, sha256=manifest.sha256)
        self.record = apply(self.record, CheckpointAccepted(NOW, accepted))
        self.tell()

    def tell(self) -> tuple[str, ...]:
        return deposit(self.store, "shared", self.record, self.old)

    def adopted(self) -> RunRecord:
        return self.client.run(RUN).record()


@pytest.fixture
def houses(tmp_path: Path) -> Houses:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "text").write_text("many words")
    given = (Input("corpus", str(corpus), inputs.digest(corpus)),)
    old = Folders(tmp_path / "old")
    old.bundle(SHA).parent.mkdir(parents=True)
    old.bundle(SHA).write_bytes(SOURCE)
    inputs.stage(given, old.inputs)
    new = tmp_path / "new"
    new.mkdir(mode=0o700)
    (new / "config.yaml").write_text(CONFIG.format(tmp_path))
    found = Houses(old, FolderStore(tmp_path / "shared"), Client(new, clock=VirtualClock(NOW + 9)),
                   record(*running(), bundle=SHA, inputs=given), corpus)  # fmt: skip
    found.accept(10)
    return found


def test_everything_that_the_next_session_needs_is_fetched_and_verified(houses: Houses) -> None:
    shutil.rmtree(houses.corpus)  # it was on the laptop, too
    [found] = houses.client.stores.adopt("shared")
    assert (found.came, found.phase, found.step, found.notes) == (Came.ADOPTED, Phase.HELD, 10, ())
    folders = houses.client.home.folders
    assert folders.bundle(SHA).read_bytes() == SOURCE
    staged = inputs.stage(houses.record.job.inputs, folders.inputs)
    assert staged is not None
    assert (staged / "corpus" / "text").read_text() == "many words"
    assert folders.run(RUN).is_dir()


def test_what_the_store_lacks_is_said_and_the_run_comes_all_the_same(houses: Houses) -> None:
    root = houses.store._root / "runs" / RUN
    shutil.rmtree(root / "material")
    for archive in (root / "inputs").iterdir():
        archive.write_bytes(b"rotten")
    shutil.rmtree(houses.corpus)
    [found] = houses.client.stores.adopt("shared", RUN)
    assert found.came is Came.ADOPTED
    source, data = found.notes
    assert "cannot go on here without its source" in source
    assert str(houses.corpus) in data
    assert houses.client.run(RUN).pull(houses.old.home / "out").step == 10


def test_the_old_sessions_are_fenced_out_and_a_new_one_has_room_above(houses: Houses) -> None:
    houses.publish(99, generation=4, incarnation="zzzz")
    houses.client.stores.adopt("shared")
    assert houses.adopted().generation == 5, "one more may have been started and not said so"
    assert raise_fence(houses.store, RUN, 1) == 6, "the next session's generation"


def test_a_fence_that_no_session_can_reach_is_damage(houses: Houses) -> None:
    raise_fence(houses.store, RUN, GENERATION_MAX + 10)
    [found] = houses.client.stores.adopt("shared")
    assert found.came is Came.DAMAGED
    assert houses.client.runs(all=True) == ()


def test_an_old_controller_that_goes_on_deletes_nothing_of_an_adopted_run(houses: Houses) -> None:
    backends = Backends({}, {"shared": houses.store}, "shared", houses.old, lambda _name: "")
    houses.accept(20)
    newest = CheckpointRef(20, 1, "aaaa").name
    retire = Retire(RUN, frozenset([newest]), generation=1, store="shared")
    houses.client.stores.adopt("shared")

    def whole() -> set[int]:
        found = houses.client.run(RUN).checkpoints(verify=True)
        return {each.step for each in found if not each.trouble}

    report = perform(retire, backends)
    assert isinstance(report, Done)
    assert "another ledger has adopted this run" in report.notes[0]
    assert whole() == {10, 20}
    perform(replace(retire, adoptions=1), backends)
    assert whole() == {20}, "the ledger that has it now deletes what it retires"


class Bare(FolderStore):
    """A store without compare-and-swap."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.registers = None  # type: ignore[assignment]


def test_a_store_that_cannot_fence_is_said(houses: Houses) -> None:
    bare = Bare(houses.store._root)
    said = deposits.said_of(bare, RUN)
    assert said is not None
    with houses.client.ledgers.made() as ledger:
        found = Adopting(houses.client, "shared", bare, ledger).adopt(said)
    assert (found.came, found.phase) == (Came.ADOPTED, Phase.HELD)
    assert "has no registers" in found.notes[0]
    assert houses.adopted().generation == 2


def test_the_newest_checkpoint_of_the_present_session_is_not_lost(houses: Houses) -> None:
    """Its uplink brought it, and the old controller had no time to accept it."""
    newest, foreign = houses.publish(30), houses.publish(40, incarnation="zzzz")
    damaged = houses.publish(50)
    [blob] = damaged.blobs()
    houses.store.delete(f"runs/{RUN}/blobs/g01-aaaa/{blob}")
    [found] = houses.client.stores.adopt("shared")
    taken = {each.name: each.sha256 for each in houses.adopted().accepted}
    assert taken[newest.name] == newest.sha256
    assert foreign.name not in taken
    assert damaged.name not in taken
    assert found.step == 30
    assert any("step 50 is not used" in note for note in found.notes)
    assert any("accepted the checkpoint at step 30" in note for note in found.notes)


def test_a_ledger_that_has_the_run_keeps_it_as_it_is(houses: Houses) -> None:
    houses.client.stores.adopt("shared")
    before = houses.client.run(RUN).history()
    houses.publish(20)
    [found] = houses.client.stores.adopt("shared")
    assert found.came is Came.KNOWN
    assert houses.client.run(RUN).history() == before


def test_the_new_ledger_has_the_last_word_in_the_store(houses: Houses) -> None:
    houses.client.stores.adopt("shared")
    found = houses.client.stores.run(RUN)
    assert found.phase is Phase.HELD
    assert found.said.deposit is not None
    assert found.said.deposit.adoptions == 1


def test_what_was_not_accepted_is_listed_as_such_and_only_pulled_by_its_step(
    houses: Houses, tmp_path: Path
) -> None:
    houses.publish(20, incarnation="zzzz")
    found = houses.client.stores.run(RUN[:6])
    assert [(each.step, each.authenticated, each.newest) for each in found.checkpoints()] == [
        (10, True, True),
        (20, False, False),
    ]
    assert found.pull(tmp_path / "latest").step == 10
    pulled = found.pull(tmp_path / "other", step=20)
    assert (pulled.step, pulled.authenticated) == (20, False)


def test_of_two_stores_the_one_that_was_told_last_counts(houses: Houses) -> None:
    shutil.copytree(houses.store._root, houses.store._root.parent / "attic")
    houses.accept(20)
    assert houses.client.stores.run(RUN).store == "shared"
    assert houses.client.stores.run(RUN, "attic").step == 10


def test_a_held_run_moves_with_its_inputs_and_goes_on_there(houses: Houses) -> None:
    houses.client.stores.adopt("shared")
    run = houses.client.run(RUN)
    told: list[tuple[str, int, int]] = []
    done = run.copy("attic", delete_source=True, progress=lambda *each: told.append(each))
    assert (done.moved, done.deleted, len(done.copied)) == (True, True, 1)
    assert told == [(done.copied[0], 1, 1)]
    assert run.record().store == "attic"
    assert not list(houses.store.list(""))
    attic = FolderStore(houses.store._root.parent / "attic")
    kinds = {stat.key.split("/")[2] for stat in attic.list("")}
    assert kinds == {"blobs", "checkpoints", "deposit", "inputs", "material"}
    assert run.checkpoints(verify=True)[0].trouble == ""
    assert replace(done, moved=False, copied=(), deleted=False) == run.copy("attic")


def test_a_move_removes_nothing_that_a_third_ledger_has_adopted(houses: Houses) -> None:
    houses.client.stores.adopt("shared")
    said = deposits.said_of(houses.store, RUN)
    assert said is not None
    assert said.deposit is not None
    deposits.write(houses.store, replace(said.deposit, adoptions=2))
    before = [stat.key for stat in houses.store.list("")]
    for _ in range(2):
        done = houses.client.run(RUN).copy("attic", delete_source=True)
        assert not done.deleted
        assert "another ledger has adopted" in done.notes[-1]
        assert [stat.key for stat in houses.store.list("")] == before
