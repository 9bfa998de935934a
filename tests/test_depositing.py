"""The controller tells each run's store what another machine needs; a store that is away costs nothing."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.deposit import deposit_of
from orchestrator.core.event import CheckpointAccepted, Completed, Event, Noted, Submitted
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit
from orchestrator.engine import depositing
from orchestrator.engine.depositing import Depositor, deposit, untold
from orchestrator.engine.perform import Backends
from orchestrator.errors import NotFound, Superseded, Transient
from orchestrator.home import Folders
from orchestrator.ledger import Ledger
from orchestrator.stores import checkpoints, deposits
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Store
from tests.core.runs import NOW, RUN, accepted, ended, record, running
from tests.waiting import wait_until
from tests.walks import submission

SOURCE = b"the archive of the source"
SHA = hashlib.sha256(SOURCE).hexdigest()
NOTED = Noted(NOW, "something happened")


class Away:
    """A store that cannot be reached until somebody sets `back`."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.back = False
        self.asked = 0

    def __getattr__(self, name: str) -> object:
        self.asked += 1
        if not self.back:
            raise Transient("no route to the store")
        return getattr(self._inner, name)


@dataclass
class World:
    folders: Folders
    store: MemoryStore = field(default_factory=MemoryStore)
    said: list[str] = field(default_factory=list)

    def depositor(self, store: Store | Away) -> Depositor:
        stores: dict[str, Store] = {"home": store}  # type: ignore[dict-item]
        backends = Backends({}, stores, "home", self.folders, lambda _name: "")
        return Depositor(backends, SystemClock(), self.said.append)

    def published(self, *steps: int) -> None:
        """The manifests of these checkpoints are in the store."""
        publish(self.store, self.folders.home, *steps)

    def found(self, run: str = RUN) -> deposits.Said:
        said = deposits.said_of(self.store, run)
        assert said is not None
        return said


def publish(store: Store, folder: Path, *steps: int) -> None:
    source = folder / "manifest.json"
    source.write_bytes(b"a manifest")
    for step in steps:
        key = checkpoints.manifest_key(RUN, accepted(step).name)
        store.put(key, source, hashlib.sha256(b"a manifest").hexdigest())


@pytest.fixture
def world(tmp_path: Path) -> World:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / f"{SHA}.tar.gz").write_bytes(SOURCE)
    found = World(Folders(tmp_path))
    found.published(10)
    return found


def after(*events: Event) -> RunRecord:
    return record(*running(), *events, bundle=SHA)


def accept(step: int) -> Event:
    return CheckpointAccepted(NOW, replace(accepted(step), sha256="a" * 64))


def test_a_store_has_at_most_two_deposits_however_long_the_run_lives(world: World) -> None:
    found = after(accept(10))
    for step in range(11, 40):
        found = apply(found, accept(step))
        assert deposit(world.store, "home", found, world.folders) == ()
    keys = [stat.key for stat in world.store.list(f"runs/{RUN}/")]
    assert len([key for key in keys if "/deposit/" in key]) == 2
    assert [key for key in keys if "/material/" in key] == [f"runs/{RUN}/material/{SHA}"]
    assert world.found().deposit == deposit_of(found)


def test_what_the_store_knows_is_not_said_again(world: World) -> None:
    found = after(accept(10))
    deposit(world.store, "home", found, world.folders)
    keys = [stat.key for stat in world.store.list("")]
    deposit(world.store, "home", apply(found, NOTED), world.folders)
    assert [stat.key for stat in world.store.list("")] == keys


def test_an_archive_that_is_gone_here_is_said_and_the_rest_is_stored(world: World) -> None:
    world.folders.bundle(SHA).unlink()
    [lacking] = deposit(world.store, "home", after(accept(10)), world.folders)
    assert SHA[:12] in lacking
    assert world.found().deposit is not None


def test_after_an_adoption_the_old_ledger_says_nothing_more(world: World) -> None:
    old = after(accept(10))
    deposit(world.store, "home", old, world.folders)
    elsewhere = Folders(world.folders.home / "elsewhere")
    deposit(world.store, "home", replace(old, adoptions=1, version=2), elsewhere)
    with pytest.raises(Superseded, match="another ledger has adopted"):
        deposit(world.store, "home", apply(old, accept(20)), world.folders)
    said = world.found().deposit
    assert said is not None
    assert said.adoptions == 1
    depositor = world.depositor(world.store)
    with depositor.at_work([apply(old, accept(20))]):
        wait_until(lambda: world.said, "a word about the adoption")
    assert "another ledger has adopted" in world.said[0]


def test_a_store_that_is_away_is_told_when_it_is_back(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depositing, "PAUSE_SECONDS_MIN", 0.02)
    away = Away(world.store)
    depositor = world.depositor(away)
    with depositor.at_work([after(accept(10))]):
        wait_until(lambda: world.said, "a word about the store")
        newest = after(accept(10), accept(20))
        depositor.told(newest, NOTED)
        away.back = True
        wait_until(lambda: list(world.store.list(f"runs/{RUN}/deposit/")), "the deposit")
        wait_until(lambda: world.found().deposit == deposit_of(newest), "the newest word")
    assert len(world.said) == 1, "a store that is away is reported once"


def test_a_run_whose_checkpoints_are_gone_keeps_no_other_run_waiting(world: World) -> None:
    """Neither while the controller lives, nor when it leaves."""
    bad = after(accept(99))
    good = submit(Submitted("good-abcdefgh", bad.job, NOW))
    late = submit(Submitted("late-abcdefgh", bad.job, NOW))
    depositor = world.depositor(world.store)
    with depositor.at_work([bad]):
        wait_until(lambda: world.said, "a word about the run")
        depositor.told(good, NOTED)
        wait_until(lambda: deposits.said_of(world.store, good.run), "the deposit of another run")
        depositor.told(late, NOTED)
    assert world.found(late.run).deposit == deposit_of(late)
    assert len(world.said) == 1
    assert not list(world.store.list(f"runs/{RUN}/deposit/"))


def test_a_run_that_ended_while_its_store_was_away_is_told_by_the_next_controller(world: World) -> None:
    """The same holds for a controller that dies between the journal and the deposit."""
    with Ledger.open(f"sqlite:///{world.folders.home / 'ledger.sqlite'}") as ledger:
        first = ledger.submit(replace(submission(RUN), job=record(bundle=SHA).job, store="home"))
        with world.depositor(Away(world.store)).at_work([first]):
            wait_until(lambda: world.said, "a word about the store")
        events = [*running(), accept(10), ended(Outcome.COMPLETED), Completed(NOW, "done")]
        done = ledger.append(first, events, due_at=None)
        assert not list(world.store.list(f"runs/{RUN}/deposit/"))
        assert untold(ledger, world.folders) == (done,)
        with world.depositor(world.store).at_work(untold(ledger, world.folders)):
            pass  # leaving waits until the store was told
        said = world.found().deposit
        assert said is not None
        assert said.phase is Phase.DONE
        assert untold(ledger, world.folders) == ()


def test_a_run_that_ended_before_stores_were_told_anything_is_left_alone(world: World) -> None:
    with Ledger.open(f"sqlite:///{world.folders.home / 'ledger.sqlite'}") as ledger:
        first = ledger.submit(submission(RUN))
        ledger.append(first, [*running(), ended(Outcome.COMPLETED), Completed(NOW, "done")], due_at=None)
        assert untold(ledger, world.folders) == ()


def test_nothing_is_written_to_what_may_be_an_unmounted_disk(world: World) -> None:
    """An empty store keeps a run held. A deposit in it must not make it look like another store."""
    empty = MemoryStore()
    with pytest.raises(Transient, match="is its disk there"):
        deposit(empty, "home", after(accept(10)), world.folders)
    assert not list(empty.list(""))
    assert deposit(empty, "home", after(), world.folders) == (), "a run that has no checkpoint yet"
    assert list(empty.list(""))
    assert deposits.is_empty(empty)
    assert not deposits.is_empty(world.store)


# --- Reading what a store says ----------------------------------------------------------------------------


@pytest.fixture
def folder(world: World, tmp_path: Path) -> Path:
    """A folder store with two deposits of a run; its path."""
    store, found = FolderStore(tmp_path / "store"), after(accept(10))
    publish(store, tmp_path, 10, 20)
    deposit(store, "home", found, world.folders)
    deposit(store, "home", apply(found, accept(20)), world.folders)
    return tmp_path / "store"


def test_a_damaged_deposit_falls_back_to_the_one_before(folder: Path) -> None:
    newest = max(folder.glob("runs/*/deposit/*"))
    newest.write_bytes(newest.read_bytes()[:-2])
    said = deposits.said_of(FolderStore(folder), RUN)
    assert said is not None
    assert said.deposit is not None
    assert [each.ref.step for each in said.deposit.accepted] == [10]
    [trouble] = said.troubles
    assert newest.name in trouble


def test_what_is_not_ours_is_neither_read_nor_removed(folder: Path, world: World) -> None:
    root = folder / "runs" / RUN
    strange = [
        root / "deposit" / "latest.json",
        root / "deposit" / f"0000-0000000999-{'a' * 64}.json.bak",
        root / "material" / "README",
        folder / "runs" / "UPPER" / "deposit" / f"0000-0000000001-{'a' * 64}.json",
        folder / "runs" / "stray",
    ]
    for path in strange:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("not ours")
    store = FolderStore(folder)
    assert [said.run for said in deposits.everything(store)] == [RUN]
    deposit(store, "home", after(accept(10), accept(20), accept(30)), world.folders)
    deposits.remove(store, RUN)
    assert [path for path in strange if not path.exists()] == []
    said = deposits.said_of(store, RUN)
    assert said is not None
    assert (said.deposit, [ref.step for ref in said.checkpoints]) == (None, [10, 20])


def test_a_deposit_of_another_run_or_version_is_named_and_not_believed(folder: Path) -> None:
    newest = max(folder.glob("runs/*/deposit/*"))
    for target in (
        folder / "runs" / "other-abcdefgh" / "deposit" / newest.name,
        folder / "runs" / "other-zzzzzzzz" / "deposit" / f"0007-{newest.name.partition('-')[2]}",
        newest.with_name(f"0007-{newest.name.partition('-')[2]}"),
    ):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(newest.read_bytes())
    said = {each.run: each for each in deposits.everything(FolderStore(folder))}
    assert said["other-abcdefgh"].deposit is None
    assert "about another run" in said["other-abcdefgh"].troubles[0]
    assert said["other-zzzzzzzz"].deposit is None
    assert said[RUN].deposit is not None
    assert "another version" in said[RUN].troubles[0]


def test_a_deposit_too_large_to_believe_is_not_fetched(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.core.bounds.DEPOSIT_BYTES_MAX", 100)
    said = deposits.said_of(FolderStore(folder), RUN)
    assert said is not None
    assert said.deposit is None
    assert all("larger than" in trouble for trouble in said.troubles)


def test_an_archive_is_verified_when_it_is_fetched(folder: Path, tmp_path: Path) -> None:
    store = FolderStore(folder)
    deposits.fetch_material(store, RUN, SHA, tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == SOURCE
    with pytest.raises(NotFound):
        deposits.fetch_material(store, RUN, "c" * 64, tmp_path / "nowhere")
