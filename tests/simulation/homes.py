"""A world whose home is copied, or put back as it was some time before. The store and platforms are the same.

A copy's controller runs beside that of the original; later a person takes over with the one that waits, or
leaves the other in charge. `world.ledger` is from then on the ledger of the home that goes on. What the
controller of each home does in the store is watched. Platforms and the store keep their usual faults, but no
object is late or torn, so that what is there can be gone on from.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from orchestrator import Client, config
from orchestrator.client import taking_over
from orchestrator.client.home import Home
from orchestrator.client.wiring import Wired
from orchestrator.config import Config
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Adopted, Assigned, CheckpointAccepted, Prepared
from orchestrator.core.order import Order
from orchestrator.engine import depositing
from orchestrator.engine.engine import Watchers
from orchestrator.engine.ownership import InCharge
from orchestrator.engine.perform import Backends
from orchestrator.errors import OrchestratorError
from orchestrator.home import Folders
from orchestrator.ledger import identity
from orchestrator.session.outbox import Outbox
from orchestrator.stores.faulty import NO_FAULTS, FaultyStore
from orchestrator.stores.register import Registers
from orchestrator.stores.store import Stat, Store
from orchestrator.uplink.shipping import Uplink
from tests.simulation import checks
from tests.simulation.checks import Check
from tests.simulation.ledger import SimulatedLedger
from tests.simulation.uplinks import WatchedUplinkStore
from tests.simulation.users import Users
from tests.simulation.workers import SimulatedWorkers
from tests.simulation.world import World

LOOK_SECONDS = 60.0
HEARD_SECONDS = 1800.0  # after a take-over, the other home has heard of it
# What one home has of its own; the world has those of the home that it plays.
_PARTS = ("ledger", "users", "folders", "store", "_workers", "_engine", "_takeover", "charge")


@dataclass
class House:
    """One home. `told`: what its controllers warned of. `parts`: see _PARTS."""

    told: list[str] = field(default_factory=list)
    parts: dict[str, Any] = field(default_factory=dict)
    look_at: float = 0.0
    deposited: dict[str, int] = field(default_factory=dict)  # run → its version that the store was told


@dataclass(frozen=True)
class Handover:
    """From here on this ledger goes on alone. `steps`: what the other one had accepted of each run, and
    `versions`: how far this one was."""

    ledger: SimulatedLedger
    former: SimulatedLedger
    steps: dict[str, int]
    versions: dict[str, int]


class HomesWorld(World):
    """See the module. `fouls`: what one home did to the other's checkpoints."""

    charge: InCharge | None

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self._draw = draw = Random(f"homes {seed}")
        self._folder = folder
        self.is_copy = draw.random() < 0.5
        self.begins_at = draw.uniform(200.0, 1500.0)
        self.ends_at = self.begins_at + draw.uniform(200.0, 2400.0)
        self.fouls: list[str] = []
        self.both_in_charge = False
        self.handover: Handover | None = None
        self.here = House()
        self.ledgers = [self.ledger]
        self.houses = [self.here]
        self._old: SimulatedLedger | None = None
        self._former: SimulatedLedger | None = None  # of the home that a person takes over from
        self._settled_at = 0.0
        self.ledger.changed = lambda _record: None
        self.users.busy = False
        self.charge = None
        self.store.rates = replace(self.store.rates, tears=0.0, hides=0.0)
        self._uplink_store = self.store
        self.store = self._store(self.ledger)

    # --- What is otherwise here -------------------------------------------------------------------------

    def _store(self, ledger: SimulatedLedger) -> FaultyStore:
        inner = _HomesStore(self.memory, self, ledger)
        chance = Random(self._draw.random())
        return FaultyStore(
            inner, self._uplink_store.rates, chance, now=self.clock.elapsed, wait=lambda _seconds: None
        )

    def _uplink(self, order: Order, incarnation: str, outbox: Outbox) -> Uplink:
        store = WatchedUplinkStore(self._uplink_store, self.witness, order, incarnation)
        return Uplink(store, order, incarnation, outbox, self._folder / "uplinks" / incarnation)

    def _watchers(self) -> Watchers:
        return Watchers()

    def _backends(self) -> Backends:
        assert self.charge is not None
        return replace(super()._backends(), ownership=self.charge)

    def _up(self) -> None:
        self.here.look_at = 0.0
        place = taking_over.here(Home(self.folders.home), self.ledger)
        self.charge = InCharge(self.ledger, {"home": self.store}, place, self.clock, self.here.told.append)
        super()._up()

    def _down(self, *, clean: bool = False) -> None:
        if clean and self.charge is not None and not self.charge.elsewhere("home"):
            identity.change(self.ledger, running=False)
        self.charge = None
        super()._down()

    def calm(self) -> None:
        if len(self.houses) > 1 and self.handover is None:
            self.ends_at = 0.0
        super().calm()
        self._uplink_store.rates = NO_FAULTS
        for house in self.houses:
            if house is not self.here:
                house.parts["store"].rates = NO_FAULTS

    def finished(self) -> bool:
        return self.clock.elapsed() >= self._settled_at and super().finished()

    # --- Playing ----------------------------------------------------------------------------------------

    def _enter(self, house: House) -> None:
        self.here.parts = {name: getattr(self, name) for name in _PARTS}
        self.here = house
        vars(self).update(house.parts)

    def _tick(self) -> None:
        """One of the home that goes on, and while the other one may do harm, one of that."""
        now = self.clock.elapsed()
        if self._old is None and now >= self.begins_at:
            self._copy()
        elif self._old is not None and self.handover is None and now >= self.ends_at:
            self._end()
        self._tick_here()
        for house in self.houses:
            if house is not self.here and now < self._settled_at:
                self._tick_there(house)

    def _tick_here(self) -> None:
        if self._engine is None:
            self._up()
        assert self.charge is not None
        if self.clock.elapsed() >= self.here.look_at:
            self.here.look_at = self.clock.elapsed() + LOOK_SECONDS
            with suppress(OrchestratorError):
                self.charge.check("home")
        if self.charge.catches_up:
            with suppress(OrchestratorError):
                self._take("put back")
        if self.charge.taken_over():  # in production, the controller starts anew
            self._down()
            self._up()
        super()._tick()
        self._deposit()

    def _deposit(self) -> None:
        """What the depositor does beside the engine."""
        assert self.charge is not None
        for run in self.runs:
            record = self.record(run)
            if self.here.deposited.get(run) != record.version:
                with suppress(OrchestratorError):
                    self.charge.check("home")
                    depositing.deposit(self.store, "home", record, self.folders)
                    self.here.deposited[run] = record.version

    def _tick_there(self, house: House) -> None:
        one = self.here
        self._enter(house)
        try:
            with self._mortality():
                self._tick_here()
        finally:
            self._enter(one)

    def _copy(self) -> None:
        """Makes a copy of the ledger, which a controller uses at once, or which is put back later."""
        clean = self.is_copy and self._draw.random() < 0.5
        if clean:
            self._down(clean=True)
        self._old = self.ledger.copied(self._folder / "copy.sqlite")
        if self.is_copy:
            self._settled_at = math.inf
            house = self._house(Folders(self._folder / "two"))
            if clean and self._draw.random() < 0.5:
                self._tick_there(house)

    def _house(self, folders: Folders) -> House:
        """A home with the copy of the ledger."""
        assert self._old is not None
        self._old.before, self._old.after = self._before_append, self.killer.perhaps
        users = Users(self._old, self.clock, Random(self._draw.random()))
        users.busy, users.calm = False, self._calm
        workers = SimulatedWorkers(self.clock, Random(self._draw.random()), 0.05)
        house = House()
        values = (self._old, users, folders, self._store(self._old), workers, None, None, None)
        house.parts = dict(zip(_PARTS, values, strict=True))
        self.houses.append(house)
        self.ledgers.append(self._old)
        return house

    def _end(self) -> None:
        """An older ledger is put back, or a person decides which of two homes goes on."""
        former = self.ledger
        if not self.is_copy:
            self._down(clean=self._draw.random() < 0.5)
            self._enter(self._house(self.folders))
            del self.houses[0]
            self._hand_over(former)
        elif self._former is not None:  # was interrupted
            self._take_over(self._former)
        elif waiting := [house for house in self.houses if self._waits(house)]:
            takes = len(waiting) == len(self.houses) or self._draw.random() < 0.7
            house = self._draw.choice(waiting if takes else [h for h in self.houses if h not in waiting])
            other = next(each for each in self.houses if each is not house)
            former = self.ledger if other is self.here else other.parts["ledger"]
            if house is not self.here:
                self._enter(house)
            if takes:
                self._former = former
                self._take_over(former)
            else:
                self._hand_over(former)
        elif self.clock.elapsed() > self.ends_at + HEARD_SECONDS and all(map(self._charge_of, self.houses)):
            self.both_in_charge = True
            self._hand_over(next(h for h in self.houses if h is not self.here).parts["ledger"])

    def _charge_of(self, house: House) -> InCharge | None:
        found: InCharge | None = self.charge if house is self.here else house.parts["charge"]
        return found

    def _waits(self, house: House) -> bool:
        charge = self._charge_of(house)
        return charge is not None and bool(charge.elsewhere("home"))

    def _take_over(self, former: SimulatedLedger) -> None:
        """As `orchestrator adopt --take-over` does."""
        with suppress(OrchestratorError):
            self._take("")
            self._hand_over(former)

    def _take(self, why: str) -> None:
        taking_over.take(_Client(self), self.ledger, {"home"}, why=why)

    def _hand_over(self, former: SimulatedLedger) -> None:
        best = {run: newest(former.latest(run).accepted) for run in self.runs}
        steps = {run: 0 if found is None else found.ref.step for run, found in best.items()}
        versions = {run: self.ledger.latest(run).version for run in self.runs}
        self.handover = Handover(self.ledger, former, steps, versions)
        self._settled_at = self.clock.elapsed() + HEARD_SECONDS

    # --- Looking ----------------------------------------------------------------------------------------

    def deletes(self, ledger: SimulatedLedger, key: str) -> None:
        """A home may delete what only another one has accepted in no case."""
        _, run, kind, name, *_ = key.split("/")
        if kind not in ("checkpoints", "blobs"):
            return
        for other in self.ledgers:
            if other is ledger:
                continue
            theirs = {each.name for each in other.latest(run).accepted}
            mine = set(_accepted(ledger, run))
            if kind == "blobs":
                theirs, mine = set(map(_lineage, theirs)), set(map(_lineage, mine))
            if name in theirs - mine:
                self.fouls.append(f"{key} was deleted, which only another home had accepted")


def _lineage(name: str) -> str:
    return name.partition("-")[2]


def _accepted(ledger: SimulatedLedger, run: str) -> Iterator[str]:
    """All that it ever accepted."""
    for item in ledger.history(run):
        if isinstance(item.event, CheckpointAccepted):
            yield item.event.checkpoint.name
        elif isinstance(item.event, Adopted):
            yield from (each.name for each in item.event.accepted)


class _HomesStore:
    """The store as one home's controller uses it. Objects never change there, so nothing is replaced unless
    it is deleted first."""

    def __init__(self, inner: Store, world: HomesWorld, ledger: SimulatedLedger) -> None:
        self._inner = inner
        self._world = world
        self._ledger = ledger

    @property
    def registers(self) -> Registers | None:
        return self._inner.registers

    def put(self, key: str, source: Path, sha256: str) -> None:
        self._inner.put(key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self._inner.get(key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        return self._inner.stat(key)

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        if self._inner.stat(key) is not None:
            self._world.deletes(self._ledger, key)
        self._inner.delete(key)


class _Client(Client):
    """A person at the home that is played, for whom its config names the world's store."""

    def __init__(self, world: HomesWorld) -> None:
        super().__init__(Home(world.folders.home), clock=world.clock)
        self._store = world.store

    def wired(self) -> Wired:
        return _Wired(_config(), self.clock, self.home.folders, memory=self._store)


@dataclass(frozen=True)
class _Wired(Wired):
    memory: Store | None = None

    def store(self, name: str) -> Store:
        assert name == "home"
        assert self.memory is not None
        return self.memory


@cache
def _config() -> Config:
    with TemporaryDirectory() as folder:
        stores = {"home": {"type": "folder", "path": folder}}
        (Path(folder) / "config.yaml").write_text(yaml.safe_dump({"stores": stores, "home_store": "home"}))
        return config.load(Path(folder))


# --- The checks -------------------------------------------------------------------------------------------


def nothing_of_another_home_is_deleted(world: World) -> list[str]:
    """No home deletes a checkpoint that only another copy of it has accepted."""
    assert isinstance(world, HomesWorld)
    return world.fouls


def one_home_is_in_charge(world: World) -> list[str]:
    """Of two homes that use one store, one waits."""
    assert isinstance(world, HomesWorld)
    return ["neither of two homes waits for the other"] if world.both_in_charge else []


def goes_on_from_what_the_store_has(world: World) -> list[str]:
    """No session is prepared from less than what the other home, or this one before it was put back, had
    accepted."""
    assert isinstance(world, HomesWorld)
    found, over = [], world.handover
    for run in world.runs if over is not None else ():
        assert over is not None
        order = None
        for item in over.ledger.history(run, over.versions[run]):
            if isinstance(item.event, Assigned):
                order = item.event.order
            elif isinstance(item.event, Prepared) and order is not None:
                step = over.steps[run]
                if order.resume_step < step:
                    found.append(
                        f"{order.session} began at {order.resume_step}, although {step} was accepted"
                    )
    return found


def both_homes_tell_of_it(world: World) -> list[str]:
    """Each of two homes hears of the other. A home that was put back says what it took from the store."""
    assert isinstance(world, HomesWorld)
    over = world.handover
    if over is None:
        return []
    events = (item.event for run in world.runs for item in over.ledger.history(run))
    if world.is_copy or any(isinstance(event, Adopted) for event in events):
        return ["a home told nothing of the other" for house in world.houses if not house.told]
    return []


ALL: tuple[Check, ...] = (
    nothing_of_another_home_is_deleted,
    one_home_is_in_charge,
    goes_on_from_what_the_store_has,
    both_homes_tell_of_it,
    checks.one_incarnation_a_generation,
    checks.accepted_checkpoints_are_kept,
    checks.resumes_at_the_newest,
    checks.what_can_finish_does,
    checks.the_result_is_exact,
)
