"""What finished runs leave in the store: orphaned blobs are removed, results only on request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.checkpoint import Accepted
from orchestrator.core.deposit import deposit_of
from orchestrator.core.event import (
    Cancelled,
    CheckpointAccepted,
    Confirmed,
    Ended,
    Event,
    Launched,
    Prepared,
    Started,
    Submitted,
)
from orchestrator.core.job import Best, CheckpointPolicy, Keep
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.engine.ownership import ADOPTED
from orchestrator.errors import CorruptCheckpoint, Superseded
from orchestrator.ledger import Ledger
from orchestrator.pruning import needs, results
from orchestrator.pruning.rules import Policy
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from tests.conformance.store_suite import outbox
from tests.core import runs
from tests.walks import NOW, assigned

DAY = 86400.0
LATER = NOW + 100 * DAY
POLICY = Policy(LATER, 30 * DAY)
RESULTS = replace(POLICY, checkpoints=True)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger.open(f"sqlite:///{tmp_path / 'ledger.sqlite'}") as ledger:
        yield ledger


@pytest.fixture(params=[MemoryStore, lambda: FolderStore(Path("store"))], ids=["memory", "folder"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.chdir(tmp_path)
    made: Store = request.param()
    return made


def put(store: Store, folder: Path, key: str, data: bytes) -> None:
    path = folder / "object"
    path.write_bytes(data)
    store.put(key, path, hashlib.sha256(data).hexdigest())


def orphan(run: str, generation: int = 1) -> tuple[str, bytes]:
    data = b"nobody's"
    return f"runs/{run}/blobs/g{generation:02d}-aaaa/{hashlib.sha256(data).hexdigest()}", data


def under_way(ledger: Ledger, store: Store, folder: Path, run: str, steps: int = 3) -> RunRecord:
    """A run with a session and accepted checkpoints; the second checkpoint is the best."""
    keep = CheckpointPolicy(keep=Keep(last=9, best=Best("mrr")))
    record = ledger.submit(Submitted(run, runs.job(checkpoint=keep), NOW), due_at=None)
    events: list[Event] = [assigned(record), Prepared(NOW), Launched(NOW), Started(NOW, "aaaa")]
    record = ledger.append(record, events, due_at=None)
    for step in range(1, steps + 1):
        files = {"frozen": [b"f" * 100], "trained": [b"%d" % step]}
        made = replace(outbox(folder / run, step, files, incarnation="aaaa"), run=run)
        (folder / run / "checkpoints" / made.name / "manifest.json").write_bytes(made.encode())
        stored.publish(store, run, made, folder / run)
        accepted = Accepted(made.ref, made.size, {"mrr": 0.9 if step == 2 else 0.1})
        record = ledger.append(record, [CheckpointAccepted(NOW, accepted)], due_at=None)
    return record


def ended(ledger: Ledger, record: RunRecord, at: float = NOW) -> RunRecord:
    """A cancelled run with nothing left on its platform."""
    events: list[Event] = [Ended(at, Outcome.STOPPED, "", confirmed=True), Cancelled(at)]
    record = ledger.append(record, events, due_at=None)
    return ledger.append(record, [Confirmed(at, record.strays[0].session)], due_at=None)


def look(store: Store, ledger: Ledger, policy: Policy) -> list[results.Surplus]:
    there = dict.fromkeys(run for run, _ in stored.sizes(store))
    return list(results.found(store, ledger, there, needs.read(ledger, keep=policy.keep), policy))


def names(store: Store, run: str) -> list[int]:
    return [ref.step for ref in stored.names(store, run)]


def test_orphaned_blobs_of_finished_runs_go_and_nothing_else(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    under_way(ledger, store, tmp_path, "live-1")
    ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    foreign = "runs/over-1/blobs/notes.txt"
    for key, data in (orphan("over-1"), orphan("over-1", 7), orphan("live-1"), orphan("strange-1")):
        put(store, tmp_path, key, data)
    put(store, tmp_path, foreign, b"mine")
    before = {stat.key for stat in store.list("")}
    [surplus] = look(store, ledger, POLICY)
    assert {blob.key for blob in surplus.blobs} == {orphan("over-1")[0], orphan("over-1", 7)[0]}
    assert {stat.key for stat in store.list("")} == before, "looking changes nothing"
    for _ in range(2):
        results.remove(store, ledger, surplus, LATER)
    assert before - {stat.key for stat in store.list("")} == {blob.key for blob in surplus.blobs}
    assert look(store, ledger, POLICY) == []


def test_a_checkpoint_that_the_list_does_not_show_yet_keeps_its_blobs(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    over = ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    store.delete(f"runs/over-1/checkpoints/{over.accepted[0].name}/manifest.json")
    put(store, tmp_path, *orphan("over-1"))
    assert look(store, ledger, POLICY) == [], "its lineage is not pruned"


def test_checkpoints_go_but_for_the_newest_and_the_best(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    ended(ledger, under_way(ledger, store, tmp_path, "over-1", steps=4))
    assert look(store, ledger, POLICY) == []
    assert look(store, ledger, replace(RESULTS, now=NOW + DAY)) == [], "it ended recently"
    assert look(store, ledger, replace(RESULTS, keep=1)) == [], "it is kept"
    [surplus] = look(store, ledger, RESULTS)
    results.remove(store, ledger, surplus, LATER)
    assert names(store, "over-1") == [2, 4]
    assert [c.ref.step for c in ledger.record("over-1").accepted] == [2, 4]
    for name in (ref.name for ref in stored.names(store, "over-1")):
        stored.fetch(store, "over-1", name, tmp_path / "fetched")
    assert look(store, ledger, RESULTS) == []


def test_nothing_goes_of_a_run_that_another_ledger_has_adopted(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    over = ended(ledger, under_way(ledger, store, tmp_path, "over-1", steps=4))
    put(store, tmp_path, *orphan("over-1"))  # or a blob whose manifest the other ledger has yet to see
    [surplus] = look(store, ledger, RESULTS)
    assert surplus.blobs
    deposits.write(store, replace(deposit_of(over), adoptions=1))
    before = [stat.key for stat in store.list("")]
    with pytest.raises(Superseded, match="another ledger has adopted"):
        results.remove(store, ledger, surplus, LATER)
    [left] = look(store, ledger, RESULTS)
    assert (left.checkpoints, left.blobs, left.trouble) == ((), (), ADOPTED.format("over-1"))
    assert [stat.key for stat in store.list("")] == before


def test_a_retirement_that_was_killed_is_finished_by_the_next(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    [surplus] = look(store, ledger, RESULTS)

    class Killed(Exception):
        pass

    class Dying:
        """The store of a process that dies at its first deletion."""

        def __getattr__(self, verb: str) -> object:
            if verb == "delete":
                raise Killed
            return getattr(store, verb)

    with pytest.raises(Killed):
        results.remove(Dying(), ledger, surplus, LATER)  # type: ignore[arg-type]
    assert len(names(store, "over-1")) == 3
    [again] = look(store, ledger, RESULTS)
    results.remove(store, ledger, again, LATER)
    assert names(store, "over-1")[-1] == 3
    assert len(names(store, "over-1")) == len(ledger.record("over-1").accepted)


def test_beside_a_newest_that_is_damaged_every_other_stays(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    over = ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    newest = stored.read(store, "over-1", over.accepted[-1].name)
    lost = next(
        sha
        for sha in newest.blobs()
        if sha not in stored.read(store, "over-1", over.accepted[0].name).blobs()
    )
    store.delete(f"runs/over-1/blobs/g{newest.ref.generation:02d}-aaaa/{lost}")
    [surplus] = look(store, ledger, RESULTS)
    assert "is missing" in surplus.trouble
    assert surplus.checkpoints == ()


def test_beside_a_newest_that_has_rotted_at_its_size_every_other_stays(
    store: Store, ledger: Ledger, tmp_path: Path
) -> None:
    over = ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    newest = stored.read(store, "over-1", over.accepted[-1].name)
    oldest = stored.read(store, "over-1", over.accepted[0].name)
    [trained] = newest.blobs().keys() - oldest.blobs().keys()

    class Rotten:
        """A store in which one blob has the right size but different bytes."""

        def get(
            self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None
        ) -> None:
            if key.endswith(trained):
                raise CorruptCheckpoint(key, "other bytes")
            store.get(key, target, sha256, bytes_max=bytes_max)

        def __getattr__(self, verb: str) -> object:
            return getattr(store, verb)

    [surplus] = look(store, ledger, RESULTS)
    assert surplus.checkpoints, "its size is right"
    with pytest.raises(CorruptCheckpoint, match="the others stay"):
        results.remove(Rotten(), ledger, surplus, LATER)  # type: ignore[arg-type]
    assert names(store, "over-1") == [1, 2, 3]
    assert len(ledger.record("over-1").accepted) == 3


def test_what_is_newer_than_every_accepted_one_stays(store: Store, ledger: Ledger, tmp_path: Path) -> None:
    over = ended(ledger, under_way(ledger, store, tmp_path, "over-1"))
    refs = [c.ref for c in over.accepted]
    newer = replace(refs[-1], step=99, incarnation="bbbb")
    older = replace(refs[-1], step=1, incarnation="bbbb")
    gone, kept = results.superseded_results(over, [*refs, newer, older])
    assert newer.name not in gone
    assert older.name in gone
    assert refs[-1].name in kept
    assert results.superseded_results(replace(over, accepted=()), refs) == ((), ())
