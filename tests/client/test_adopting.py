"""A run that was under way comes into another ledger: what is fetched, fenced, taken and said."""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from orchestrator import Client
from orchestrator.client import Came
from orchestrator.client.adopting import Adopting
from orchestrator.core.action import Collect, Done, Failed, Launch, Prepare, Retire, Trouble
from orchestrator.core.bounds import GENERATION_MAX
from orchestrator.core.checkpoint import Accepted, CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.deposit import deposit_of, machine, submission
from orchestrator.core.event import CheckpointAccepted
from orchestrator.core.job import Input
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord, apply
from orchestrator.engine.depositing import deposit
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import Rejected, Superseded
from orchestrator.freeze import inputs
from orchestrator.home import Folders
from orchestrator.platforms.simulated import Scenario, SimulatedPlatform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.faulty import FaultRates, FaultyStore
from orchestrator.stores.folder import FolderStore
from orchestrator.uplink.layout import fence_key
from orchestrator.uplink.registers import Fence, check_fence, fence_of, raise_fence
from tests.core.runs import NOW, RUN, assigned, record, running
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
    lose_archives(houses)
    [found] = houses.client.stores.adopt("shared", RUN)
    assert found.came is Came.ADOPTED
    source, data = found.notes
    assert "cannot go on here without its source" in source
    assert str(houses.corpus) in data
    assert houses.client.run(RUN).pull(houses.old.home / "out").step == 10


def lose_archives(houses: Houses) -> None:
    root = houses.store._root / "runs" / RUN
    shutil.rmtree(root / "material")
    for archive in (root / "inputs").iterdir():
        archive.write_bytes(b"rotten")


def test_a_path_that_a_store_names_is_only_read_if_the_user_names_it(houses: Houses) -> None:
    """Whoever writes to the store could name any file of this machine."""
    lose_archives(houses)
    [found] = houses.client.stores.adopt("shared", RUN)
    assert "--input corpus=PATH" in found.notes[1]
    folders, [given] = houses.client.home.folders, houses.adopted().job.inputs
    assert given.origin == f"elsewhere:{houses.corpus}"
    with pytest.raises(Rejected, match="--input corpus=PATH"):  # as when its next session is prepared
        inputs.stage((given,), folders.inputs)
    with pytest.raises(Rejected, match="has changed"):
        inputs.stage((replace(given, origin=str(houses.old.home)),), folders.inputs)
    moved = houses.corpus.rename(houses.corpus.with_name("moved"))
    [again] = houses.client.stores.adopt("shared", RUN, inputs={"corpus": moved})
    assert (again.came, again.notes) == (Came.KNOWN, ())
    assert inputs.stage((given,), folders.inputs) == folders.inputs / inputs.key((given,))


def test_the_path_of_an_input_may_be_given_at_once(houses: Houses) -> None:
    lose_archives(houses)
    [found] = houses.client.stores.adopt("shared", RUN, inputs={"corpus": houses.corpus})
    [source] = found.notes
    assert "without its source" in source
    assert houses.adopted().job.inputs[0].origin == str(houses.corpus)


def test_nothing_of_this_machine_goes_into_a_store_because_the_store_names_it(houses: Houses) -> None:
    """The source of another run of this home, and an input that is staged for it."""
    shutil.rmtree(houses.store._root / "runs" / RUN / "material")
    shutil.rmtree(houses.store._root / "runs" / RUN / "inputs")
    mine = houses.client.home.folders
    mine.bundle(SHA).parent.mkdir(parents=True)
    mine.bundle(SHA).write_bytes(SOURCE)
    inputs.stage(houses.record.job.inputs, mine.inputs)
    houses.client.stores.adopt("shared")
    assert {stat.key.split("/")[2] for stat in houses.store.list("")} == {"blobs", "checkpoints", "deposit"}


def test_the_old_sessions_are_fenced_out_and_a_new_one_has_room_above(houses: Houses) -> None:
    houses.publish(99, generation=4, incarnation="zzzz")
    houses.client.stores.adopt("shared")
    assert houses.adopted().generation == 5, "one more may have been started and not said so"
    assert fence_of(houses.store, RUN) == Fence(6, adoptions=1), "the next session's generation"


def test_a_session_of_which_only_the_fence_tells_is_fenced_out(houses: Houses) -> None:
    """The old controller started more sessions than it had told the store."""
    raise_fence(houses.store, RUN, 7)
    check_fence(houses.store, RUN, 7)  # that session may publish
    houses.client.stores.adopt("shared")
    with pytest.raises(Superseded):
        check_fence(houses.store, RUN, 7)
    assert houses.adopted().generation == 7, "the next session is above"
    assert fence_of(houses.store, RUN) == Fence(8, adoptions=1)


def test_the_old_ledger_cannot_raise_the_fence_any_more(houses: Houses) -> None:
    houses.client.stores.adopt("shared")
    before = fence_of(houses.store, RUN)
    with pytest.raises(Superseded, match="another ledger has adopted"):
        raise_fence(houses.store, RUN, 50)
    assert fence_of(houses.store, RUN) == before
    assert raise_fence(houses.store, RUN, 50, adoptions=1) == 50


def written(houses: Houses, value: bytes) -> None:
    """The fence as somebody else wrote it."""
    held = houses.store.registers.read(fence_key(RUN))
    houses.store.registers.swap(fence_key(RUN), value, None if held is None else held.version)


def test_a_fence_of_an_older_version_counts(houses: Houses) -> None:
    written(houses, b'{"generation":3}')
    assert fence_of(houses.store, RUN) == Fence(3, adoptions=0)
    assert raise_fence(houses.store, RUN, 4) == 4


@pytest.mark.parametrize("generation", [10**18, GENERATION_MAX + 1, -1])
def test_a_fence_that_no_session_can_reach_is_none(houses: Houses, generation: int) -> None:
    written(houses, b'{"generation":%d,"adoptions":0}' % generation)
    [found] = houses.client.stores.adopt("shared")
    assert found.came is Came.ADOPTED
    assert fence_of(houses.store, RUN) == Fence(3, adoptions=1)


def test_a_fence_above_which_there_is_no_session_is_damage(houses: Houses) -> None:
    raise_fence(houses.store, RUN, GENERATION_MAX)
    [found] = houses.client.stores.adopt("shared")
    assert found.came is Came.DAMAGED
    assert houses.client.runs(all=True) == ()


# --- The old controller lives on ----------------------------------------------------------------------------


def old_actions() -> tuple[Prepare, Launch, Collect]:
    """What it would do next."""
    order = assigned(2).order
    collect = Collect(RUN, f"{RUN}-s01", "here", 1, "aaaa", frozenset(), last=True, store="shared")
    return Prepare(order, store="shared"), Launch(order, "shared"), collect


@pytest.mark.parametrize("registers", [True, False])
def test_an_old_controller_does_nothing_more_and_says_who_has_the_run(
    houses: Houses, registers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "pebble")
    platform = SimulatedPlatform("here", Scenario(), VirtualClock(NOW))
    store = houses.store if registers else Bare(houses.store._root)
    backends = Backends({"here": platform}, {"shared": store}, "shared", houses.old, lambda _name: "")
    actions = old_actions()
    before = [perform(each, backends) for each in actions]
    assert not any(isinstance(each, Failed) and each.trouble is Trouble.SUPERSEDED for each in before)
    said = deposits.said_of(store, RUN)
    assert said is not None
    with houses.client.ledgers.made() as ledger:
        Adopting(houses.client, "shared", store, ledger).adopt(said, ledger)
    launches = len(platform.history.launches)
    for each in actions:
        report = perform(each, backends)
        assert isinstance(report, Failed)
        assert report.trouble is Trouble.SUPERSEDED
        assert f"on the machine pebble has adopted {RUN} from the store shared" in report.message
    assert len(platform.history.launches) == launches
    ours = perform(replace(actions[0], adoptions=1), backends)
    assert not isinstance(ours, Failed) or ours.trouble is not Trouble.SUPERSEDED


def test_a_store_that_does_not_answer_delays_no_launch(houses: Houses) -> None:
    platform = SimulatedPlatform("here", Scenario(), VirtualClock(NOW))
    rates = FaultRates(fails=1.0)
    away = FaultyStore(houses.store, rates, Random(1), now=lambda: NOW, wait=lambda _seconds: None)
    backends = Backends({"here": platform}, {"shared": away}, "shared", houses.old, lambda _name: "")
    prepare, launch, _ = old_actions()
    assert isinstance(perform(prepare, backends), Done)
    assert isinstance(perform(launch, backends), Done)


def old_client(houses: Houses) -> Client:
    """The machine that has the run under way, with its ledger."""
    found = Client(houses.old.home, clock=VirtualClock(NOW + 20))
    (houses.old.home / "config.yaml").write_text(CONFIG.format(houses.old.home.parent))
    with found.ledgers.made() as ledger:
        first = ledger.submit(submission(deposit_of(houses.record), "shared"))
        mine = [*running(), *(CheckpointAccepted(NOW, each) for each in houses.record.accepted)]
        ledger.append(first, mine, due_at=None)
    return found


@contextmanager
def controlled(client: Client) -> Iterator[None]:
    """With a controller, so that none is started for a session that goes on."""
    with client.ledgers.runs() as ledger, ledger.take_over("test", now=NOW, home_store="shared"):
        yield


def test_a_run_whose_fence_is_out_of_reach_goes_on_above_it(houses: Houses) -> None:
    old = old_client(houses)
    assert old.stores.adopt("shared", RUN)[0].came is Came.KNOWN
    raise_fence(houses.store, RUN, 1000)
    with controlled(old):
        assert old.stores.adopt("shared", RUN)[0].came is Came.BACK
    assert old.run(RUN).record().generation == 1000
    assert fence_of(houses.store, RUN) == Fence(1001, adoptions=1)


def test_a_run_comes_back_even_if_no_controller_can_be_started(houses: Houses) -> None:
    old = old_client(houses)
    houses.client.stores.adopt("shared")
    houses.old.controller_log.mkdir()
    [back] = old.stores.adopt("shared", RUN)
    assert (back.came, back.phase) == (Came.BACK, Phase.RUNNING)
    assert "no controller could be started" in back.notes[-1]
    assert "`orchestrator up --detach`" in back.notes[-1]


def test_a_run_is_taken_back_by_its_name_with_what_both_sides_accepted(houses: Houses) -> None:
    houses.accept(20)
    old = old_client(houses)
    houses.client.stores.adopt("shared")
    [known] = old.stores.adopt("shared")
    assert known.came is Came.KNOWN
    assert f"`orchestrator adopt shared {RUN}` takes it back" in known.notes[0]
    assert old.run(RUN).record().adoptions == 0, "only by its name"
    assert old.stores.adopt("shared", RUN, dry_run=True)[0].came is Came.BACK
    with controlled(old):
        [back] = old.stores.adopt("shared", RUN)
    assert (back.came, back.phase) == (Came.BACK, Phase.RUNNING)
    record = old.run(RUN).record()
    assert (record.adoptions, [each.ref.step for each in record.accepted]) == (2, [10, 20])
    assert record.job.inputs[0].origin == str(houses.corpus), "its own job, not the store's"
    assert fence_of(houses.store, RUN) == Fence(4, adoptions=2)
    assert record.generation == 3
    assert deposits.adopter(houses.store, RUN, 1) == machine(socket.gethostname())
    assert old.stores.adopt("shared", RUN)[0].came is Came.KNOWN


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
    assert f"another ledger has adopted {RUN}" in report.notes[0]
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
        found = Adopting(houses.client, "shared", bare, ledger).adopt(said, ledger)
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
