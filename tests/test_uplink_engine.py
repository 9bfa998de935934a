"""What the engine does for sessions with an uplink: the fence, the last look, leftovers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core.action import Collect, Discard, Done, Failed, Prepare, Report, Stop, Trouble
from orchestrator.core.offer import Uplink as Kind
from orchestrator.engine.perform import Backends, perform
from orchestrator.errors import Rejected, Superseded, Transient
from orchestrator.home import Folders
from orchestrator.platforms.simulated import Scenario, SimulatedPlatform
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.memory import MemoryRegisters, MemoryStore
from orchestrator.stores.register import Held
from orchestrator.stores.store import Store
from orchestrator.uplink.layout import fence_key
from orchestrator.uplink.registers import ask_to_leave, check_fence, raise_fence
from tests.core.runs import RUN, assigned
from tests.simulation.clock import VirtualClock
from tests.test_uplink import KEYS, ORDER, Session, session, store

__all__ = ["session", "store"]  # fixtures


class Engine:
    """One platform whose sessions ship their outbox, and one store, for single actions."""

    def __init__(self, folder: Path, store: Store) -> None:
        platform = SimulatedPlatform("here", Scenario(), VirtualClock())
        self.backends = Backends({"here": platform}, {"home": store}, "home", Folders(folder / "home"), str)

    def prepares(self, generation: int) -> Report:
        order = replace(assigned(generation).order, platform="here")
        return perform(Prepare(order, store="home", uplink=Kind.STORE), self.backends)

    def collects(self, last: bool, incarnation: str | None = "aaaa") -> Report:
        action = Collect(
            RUN, ORDER.session, "here", 1, incarnation, frozenset(), last, store="home", uplink=Kind.STORE
        )
        return perform(action, self.backends)

    def discards(self) -> Report:
        return perform(Discard(ORDER.session, "here", "home", Kind.STORE), self.backends)


def test_the_fence_is_raised_before_a_session_and_before_the_last_look(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    engine = Engine(tmp_path, store)
    assert isinstance(engine.prepares(1), Done)
    session.saves(1)
    session.ships()
    report = engine.collects(last=False)
    assert isinstance(report, Done)
    assert [each.ref.step for each in report.checkpoints] == [1]
    session.saves(2)
    session.ships()
    report = engine.collects(last=True)
    assert isinstance(report, Done)
    assert [each.ref.step for each in report.checkpoints] == [1, 2]
    session.saves(3)
    with pytest.raises(Superseded):
        session.ships()
    late = engine.prepares(1)  # from a controller that should be gone, or an old copy of the home
    assert isinstance(late, Failed)
    assert late.trouble is Trouble.NAME_TAKEN
    assert isinstance(engine.prepares(3), Done)
    check_fence(store, RUN, 3)


def test_a_fence_out_of_reach_is_not_chased_session_by_session(tmp_path: Path, store: MemoryStore) -> None:
    """A session that may write to the store could have raised it."""
    engine = Engine(tmp_path, store)
    raise_fence(store, RUN, 10**6)
    refused = engine.prepares(1)
    assert isinstance(refused, Failed)
    assert refused.trouble is Trouble.REJECTED
    assert f"`orchestrator adopt home {RUN}` goes on above it" in refused.message


def test_what_a_session_left_in_the_store_goes_but_not_the_fence(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    engine = Engine(tmp_path, store)
    session.logs("it begins\n")
    session.saves(1)
    session.ends()
    session.ships(2)
    assert isinstance(engine.collects(last=True), Done)
    for _ in range(2):
        assert isinstance(engine.discards(), Done)
    assert list(store.list(KEYS.root)) == []
    assert list(store.registers.list("")) == [fence_key(RUN)]
    assert [ref.step for ref in stored.names(store, RUN)] == [1]


def test_a_session_can_be_discarded_without_its_store(tmp_path: Path, store: MemoryStore) -> None:
    """As when its run was given up, because the config no longer has the store."""
    engine = Engine(tmp_path, store)
    engine.backends = replace(engine.backends, stores={})
    assert isinstance(engine.discards(), Done)


def test_a_store_that_has_lost_a_claim_is_asked_again(tmp_path: Path) -> None:
    """As where its disk is not mounted: what a session had published is not given up for that."""
    store = FolderStore(tmp_path / "store")
    engine = Engine(tmp_path, store)
    assert isinstance(engine.prepares(1), Done)
    session = Session(tmp_path, store)
    session.saves(1)
    session.ships()
    (tmp_path / "store").rename(tmp_path / "away")
    report = engine.collects(last=True)
    assert isinstance(report, Failed)
    assert report.trouble is Trouble.TRANSIENT
    assert not (tmp_path / "store").exists()
    (tmp_path / "away").rename(tmp_path / "store")
    report = engine.collects(last=True)
    assert isinstance(report, Done)
    assert [each.ref.step for each in report.checkpoints] == [1]


def test_a_session_that_never_claimed_left_nothing(tmp_path: Path, store: MemoryStore) -> None:
    gone = Engine(tmp_path, store).collects(last=True, incarnation=None)
    assert isinstance(gone, Failed)
    assert gone.trouble is Trouble.NOT_FOUND


def test_a_store_without_registers_takes_no_uplink(tmp_path: Path) -> None:
    plain = MemoryStore()
    plain.registers = None  # type: ignore[assignment]
    with pytest.raises(Rejected):
        raise_fence(plain, RUN, 1)
    refused = Engine(tmp_path, plain).prepares(1)
    assert isinstance(refused, Failed)
    assert refused.trouble is Trouble.REJECTED


def test_a_session_that_its_platform_cannot_reach_is_asked_through_the_store(
    tmp_path: Path, session: Session, store: MemoryStore
) -> None:
    engine = Engine(tmp_path, store)
    assert isinstance(engine.prepares(1), Done)
    ask_to_leave(store, RUN, 2)  # of a session that is not the current one
    assert not _asked(session)
    for _ in range(2):
        ask_to_leave(store, RUN, 1)
        assert raise_fence(store, RUN, 1) == 1  # a prepare that is repeated takes nothing back
    assert _asked(session)
    assert raise_fence(store, RUN, 2) == 2
    assert not check_fence(store, RUN, 2).leave, "the next session is not asked"


def test_a_stop_goes_through_the_store_only_with_a_generation(tmp_path: Path, store: MemoryStore) -> None:
    engine = Engine(tmp_path, store)
    assert isinstance(engine.prepares(1), Done)
    session = assigned().order.session
    for stop, asked in ((Stop(session, "here"), False), (Stop(session, "here", "home", 1), True)):
        perform(stop, engine.backends)
        assert check_fence(store, RUN, 1).leave is asked


def _asked(session: Session) -> bool:
    session.uplink.beat()
    return session.uplink.asked_to_leave


class Silent(MemoryRegisters):
    def read(self, key: str) -> Held | None:
        raise Transient(f"no answer for {key}")


def test_a_session_that_cannot_hear_it_is_not_stopped_unless_it_is_given_up(tmp_path: Path) -> None:
    store = MemoryStore()
    store.registers = Silent()
    engine = Engine(tmp_path, store)
    session = assigned().order.session
    stop = Stop(session, "here", "home", 1)
    answer = perform(stop, engine.backends)
    assert isinstance(answer, Failed)
    assert answer.trouble is Trouble.TRANSIENT
    assert isinstance(perform(replace(stop, discard=True), engine.backends), Done)


@pytest.mark.parametrize("doubts", [True, False])
def test_one_answer_that_nothing_is_left_is_doubted(
    tmp_path: Path, session: Session, store: MemoryStore, doubts: bool
) -> None:
    """The uplink had stopped to ship. What it shipped counts once the answer is believed."""
    engine = Engine(tmp_path, store)
    assert isinstance(engine.prepares(1), Done)
    session.saves(1)
    session.ships()
    action = Collect(
        RUN,
        ORDER.session,
        "here",
        1,
        "aaaa",
        frozenset(),
        True,
        store="home",
        uplink=Kind.STORE,
        doubts=doubts,
    )
    answer = perform(action, engine.backends)
    if doubts:
        assert isinstance(answer, Failed)
        assert answer.trouble is Trouble.NOT_FOUND
    else:
        assert isinstance(answer, Done)
        assert [each.ref.step for each in answer.checkpoints] == [1]
