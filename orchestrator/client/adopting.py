"""Records runs of a store in this ledger: the machine that had them is gone.

Decides what arrives and how: a run that was over is over, any other is held for a person. Never changes a run
that the ledger has, and removes nothing. Before a run arrives, every session of its old ledger is fenced
out, if the store has registers.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from orchestrator.client import bringing, stored
from orchestrator.core import bounds
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.deposit import (
    Arrival,
    Deposit,
    adoption,
    conclusion,
    deposit_of,
    is_over,
    is_run,
    machine,
    submission,
)
from orchestrator.core.event import Adopted, Event, Released, Withdrawn
from orchestrator.core.job import Job
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import did_you_mean
from orchestrator.engine import depositing
from orchestrator.errors import (
    Conflict,
    InputError,
    LedgerConflict,
    OrchestratorError,
    Rejected,
    Transient,
)
from orchestrator.files import make_folder
from orchestrator.home import Folders
from orchestrator.ledger import DUE_NOW, Ledger
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores import deposits
from orchestrator.stores.deposits import Said
from orchestrator.stores.store import Store
from orchestrator.uplink.registers import Fence, fence_of, take_fence

if TYPE_CHECKING:
    from orchestrator.client.client import Client

FENCE_TRIES = 5
GENERATIONS_UNKNOWN = 1_000  # sessions that may have been started since a backup, if nobody knows
UNREADABLE: Final = "unreadable"
_MAY_GO_ON = frozenset(Phase) - {Phase.DONE, Phase.CANCELLED}


class Came(StrEnum):
    """What became of a run in the store."""

    ADOPTED = "adopted"
    BACK = "taken back"  # the ledger had it before another one adopted it
    TAKEN = "taken over"  # from another copy of this home
    KNOWN = "known"  # the ledger has it already; nothing changed
    PULL_ONLY = "pull only"  # the store has its checkpoints, and nothing else of it
    ENCRYPTED = "encrypted"  # what the store says of it cannot be decrypted here; nothing changed
    DAMAGED = "damaged"  # what the store says of it cannot be believed; nothing changed


@dataclass(frozen=True)
class Adoption:
    """One run of the store. `phase`: as which it arrived, or would. `step`: of its newest checkpoint.
    `notes`: what a person should know, such as an archive that the store lacks."""

    run: str
    came: Came
    phase: Phase | None
    step: int | None
    checkpoints_count: int
    notes: tuple[str, ...] = ()


def adopt(
    client: Client,
    name: str,
    runs: tuple[str, ...],
    *,
    dry_run: bool,
    given: Mapping[str, Path],
    progress: Callable[[str], None] | None,
) -> tuple[Adoption, ...]:
    """See `Stores.adopt`."""
    store = stored.opened_stores(client, name)[name]
    wanted = _wanted(store, name, runs)
    if dry_run:
        with client.ledgers.existing() as existing:
            looking = Adopting(client, name, store, existing, given, named=bool(runs))
            return tuple(looking.look(said) for said in wanted)
    make_folder(client.home.path, 0o700)
    found = []
    with client.ledgers.made() as ledger:
        for said in wanted:
            if progress is not None:
                progress(said.run)
            adopting = Adopting(client, name, store, ledger, given, named=bool(runs))
            found.append(adopting.adopt(said, ledger))
    return tuple(found)


def _wanted(store: Store, name: str, runs: tuple[str, ...]) -> tuple[Said, ...]:
    """Raises InputError for a run that the store does not have."""
    if not runs:
        return tuple(deposits.everything(store))
    found = []
    for run in runs:
        said = deposits.said_of(store, run) if is_run(run) else None
        if said is None:
            near = did_you_mean(run, deposits.names(store))
            raise InputError(
                f"the store {name} has no run called {run!r}; {near}`orchestrator ps --store {name}` "
                "lists them"
            )
        found.append(said)
    return tuple(found)


def _not_adoptable(said: Said) -> Adoption:
    if said.encrypted:
        return _result(said, Came.ENCRYPTED, None, said.troubles)
    if said.troubles:
        return _result(said, Came.DAMAGED, None, said.troubles)
    return _result(said, Came.PULL_ONLY, None, (
        "the store has no deposit of it, because an older version ran it: its checkpoints can be pulled",
    ))  # fmt: skip


def _result(said: Said, came: Came, told: Deposit | None, notes: tuple[str, ...] = ()) -> Adoption:
    phase = None
    if told is not None:
        phase = told.phase if told.phase.final else Phase.HELD
    every = [each.ref for each in told.accepted] if told is not None else list(said.checkpoints)
    refs = [ref for ref in every if not ref.outputs]
    step = max((ref.step for ref in refs), default=None)
    return Adoption(said.run, came, phase, step, len(refs), notes)


@dataclass(frozen=True)
class Adopting:
    """From one store, into one ledger. `given`: paths of inputs on this machine, by their names. `named`: the
    user named the run, so it may be taken back from a ledger that has adopted it."""

    client: Client
    name: str
    store: Store
    ledger: Ledger | None
    given: Mapping[str, Path] = field(default_factory=dict)
    named: bool = False

    def look(self, said: Said) -> Adoption:
        """What `adopt` would do with this run. Changes nothing."""
        mine = self._mine(said.run)
        if mine == UNREADABLE or (isinstance(mine, RunRecord) and not self._comes_back(mine, said)):
            return _result(said, Came.KNOWN, said.deposit, self._elsewhere(mine, said))
        if said.deposit is None:
            return _not_adoptable(said)
        return _result(said, Came.ADOPTED if mine is None else Came.BACK, said.deposit, said.troubles)

    def adopt(self, said: Said, ledger: Ledger) -> Adoption:
        looked = self.look(said)
        record = self._mine(said.run)
        if looked.came is Came.KNOWN and isinstance(record, RunRecord):
            return replace(looked, notes=(*looked.notes, *self._given_later(record)))
        if looked.came not in (Came.ADOPTED, Came.BACK):
            return looked
        assert not isinstance(record, str)
        notes: list[str] = []
        try:
            taken = self._taken(said, record, notes)
        except Rejected as error:
            return _result(said, Came.DAMAGED, None, (str(error),))
        if taken is None:
            return _not_adoptable(said)
        said, told, arrival = taken
        if record is not None:
            return self._back(ledger, record, said, told, arrival, notes)
        return self._recorded(ledger, said, told, arrival, notes)

    def _mine(self, run: str) -> RunRecord | Literal["unreadable"] | None:
        """The run in this ledger; None if it has none."""
        found = () if self.ledger is None else self.ledger.summaries(run=run)
        if self.ledger is None or not found:
            return None
        return next(iter(self.ledger.records([run])), UNREADABLE)

    def _comes_back(self, record: RunRecord, said: Said) -> bool:
        """Whether the user asks for a run that is under way in this ledger and that another one has adopted,
        or whose fence is out of this ledger's reach."""
        told = said.deposit
        if not self.named or told is None or record.phase.final or record.store not in ("", self.name):
            return False
        if told.phase.final and record.session is not None:
            return False
        if told.adoptions > record.adoptions:
            return True
        fence = fence_of(self.store, record.run)
        return fence is not None and (
            fence.adoptions > record.adoptions or fence.generation > record.generation + 1
        )

    def _elsewhere(self, record: RunRecord | str | None, said: Said) -> tuple[str, ...]:
        """Says of a run of this ledger that another one has adopted it, and what to do."""
        told = said.deposit
        if not isinstance(record, RunRecord) or record.phase.final:
            return ()
        if told is None or told.adoptions <= record.adoptions:
            return ()
        by = f"the machine {told.adopted_by}" if told.adopted_by else "another machine"
        if told.phase.final and record.session is not None:
            return (f"it is {told.phase.value} on {by}: `orchestrator cancel {record.run}` ends it here",)
        back = f"`orchestrator adopt {self.name} {record.run}` takes it back"
        return (f"{by} has adopted it; once the controller there is stopped, {back}",)

    def _given_later(self, record: RunRecord) -> list[str]:
        """Stages the inputs of a run that came before, now that the user gives their paths."""
        if not any(each.name in self.given for each in record.job.inputs):
            return []
        return bringing.staged(self.store, record.run, self._located(record.job), self._folders)

    def _taken(
        self, said: Said, record: RunRecord | None, notes: list[str]
    ) -> tuple[Said, Deposit, Arrival] | None:
        """Takes the run from every other ledger, then reads once more what the store says of it, and brings
        what it needs. None if the store says nothing any more. Raises Rejected if no number is left."""
        assert said.deposit is not None
        own = record.generation if record is not None else 0
        generation, adoptions = max(own, _highest(said)), said.deposit.adoptions + 1
        if said.deposit.phase in _MAY_GO_ON:
            fence = self._fenced(said.run, generation, adoptions, notes)
            again = deposits.said_of(self.store, said.run) or said  # its old controller may have gone on
            ours = said.deposit if record is not None and not again.encrypted else None  # it may tell of none
            said = replace(again, deposit=again.deposit or ours)
            # The next session is one above this, where no session of another ledger can be.
            generation, adoptions = max(fence.generation - 1, _highest(said) + 1), fence.adoptions
        if said.deposit is None:
            return None
        notes += said.troubles
        told = replace(said.deposit, job=self._located((record or said.deposit).job))
        if told.phase in _MAY_GO_ON:
            # From here on the old controller deletes nothing that is about to be adopted.
            deposits.write(self.store, replace(told, adoptions=adoptions, version=1, adopted_by=_here()))
            told = bringing.with_the_last(self.store, told, said, notes, own=record is not None)
            notes += bringing.brought(self.store, told.run, told.job, self._folders)
        source = f"the store {self.name}"
        return said, told, Arrival(self.client.clock.now(), source, _here(), generation, adoptions)

    def _recorded(
        self, ledger: Ledger, said: Said, told: Deposit, arrival: Arrival, notes: list[str]
    ) -> Adoption:
        make_folder(self._folders.run(told.run))  # it shows that the run lives here
        try:
            record = ledger.adopt(submission(told, self.name), adoption(told, arrival))
        except LedgerConflict:
            return _result(said, Came.KNOWN, told)  # by another adoption, just now
        self._tell(record, notes)
        return _result(said, Came.ADOPTED, told, tuple(notes))

    def _back(
        self, ledger: Ledger, record: RunRecord, said: Said, told: Deposit, arrival: Arrival, notes: list[str]
    ) -> Adoption:
        """The run has what the other ledger accepted, and what this one did, as far as the store has it."""
        told = replace(told, accepted=self._both(record, told))
        due = None if told.phase.final else DUE_NOW
        try:
            after = ledger.append(record, adoption(told, arrival), due_at=due)
        except LedgerConflict as error:
            raise Transient(f"{record.run} changed meanwhile: adopt it again") from error
        self._tell(after, notes)
        if after.session is not None:
            notes.append(f"its session {after.session.name} goes on")
            self._control(ledger, notes)
        return replace(_result(said, Came.BACK, told, tuple(notes)), phase=after.standing)

    def revive(self, record: RunRecord, ledger: Ledger, why: str) -> tuple[RunRecord, list[str]]:
        """Takes a run of an older copy of a ledger past all that happened since: no session that was started
        since may publish any more, and what the store has of the run counts. A run that was held stays so,
        and one that has ended since is over. `why`: for people.
        """
        notes: list[str] = []
        said = deposits.said_of(self.store, record.run)
        if said is not None and said.deposit is None and not said.encrypted:
            said = replace(said, deposit=deposit_of(record))  # it may still have checkpoints
        taken = None if said is None or said.deposit is None else self._taken(said, record, notes)
        if taken is None:
            after, more = self.without_store(record, ledger, self.client.clock.now(), "", why)
            return after, [*notes, *more]
        said, told, arrival = taken
        accepted = self._both(record, told)
        if is_over(record, told):
            events = conclusion(record, replace(told, accepted=accepted), arrival)
            after = ledger.append(record, events, due_at=None)
            self._tell(after, notes)
            return after, [*notes, f"it is {after.phase.value} since then"]
        event = Adopted(arrival.at, why, max(told.generation, arrival.generation),
                        accepted, arrival.adoptions, record.micro_batch_caps, arrival.by)  # fmt: skip
        after = _revived(record, event, ledger)
        self._tell(after, notes)
        return after, notes

    @staticmethod
    def without_store(
        record: RunRecord, ledger: Ledger, now: float, trouble: str, why: str
    ) -> tuple[RunRecord, list[str]]:
        """The same if its store says nothing of it, so that nobody knows how many sessions there were."""
        generation = min(record.generation + GENERATIONS_UNKNOWN, bounds.GENERATION_MAX - 1)
        event = Adopted(now, why, generation, record.stored, record.adoptions + 1,
                        record.micro_batch_caps, _here())  # fmt: skip
        told = (
            f"its store says nothing of it{f' ({trouble})' if trouble else ''}: what this ledger says counts"
        )
        return _revived(record, event, ledger), [told]

    def _both(self, record: RunRecord, told: Deposit) -> tuple[Accepted, ...]:
        """What either ledger accepted, as far as the store has it."""
        names = {each.name for each in told.accepted}
        own = [each for each in record.stored if each.name not in names]
        there = set(manifests.present(self.store, record.run, [each.name for each in own]))
        found = (*told.accepted, *(each for each in own if each.name in there))
        return tuple(sorted(found, key=lambda each: (each.ref.step, each.name)))

    def _tell(self, record: RunRecord, notes: list[str]) -> None:
        try:
            depositing.deposit(self.store, self.name, record, self._folders)
        except (OrchestratorError, OSError) as error:  # the next controller tells it
            notes.append(f"the store was not told of the adoption yet: {error}")

    def _control(self, ledger: Ledger, notes: list[str]) -> None:
        """Makes sure that a controller runs: the last one may have left when the run was taken from it."""
        from orchestrator.client import controlling

        try:
            if controlling.ensure(self.client.home, self.client.clock, ledger) is None:
                notes.append("no controller was running: started one in the background")
        except (OrchestratorError, OSError) as error:  # the run is back all the same
            notes.append(f"no controller could be started ({error}): `orchestrator up --detach` starts one")

    @property
    def _folders(self) -> Folders:
        return self.client.home.folders

    def _fenced(self, run: str, generation: int, adoptions: int, notes: list[str]) -> Fence:
        """Excludes every session and the controller of the old ledger. Returns the new fence: the number of
        the next session, and of this adoption. `generation` is the highest known, `adoptions` the number to
        expect. Raises Rejected if there is no number left."""
        # One above the highest may have been started and not be known.
        wanted = min(generation, bounds.GENERATION_MAX) + 2
        if self.store.registers is None:
            notes.append(
                f"the store {self.name} has no registers, so nothing keeps a session that still runs from "
                "writing there; what it writes is not used"
            )
            return Fence(wanted, adoptions)
        for attempt in range(FENCE_TRIES):
            try:
                return take_fence(self.store, run, wanted, adoptions)
            except Conflict:
                if attempt == FENCE_TRIES - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _located(self, job: Job) -> Job:
        """With the paths that the user gave for its inputs."""
        return replace(job, inputs=tuple(
            replace(each, origin=str(self.given[each.name].absolute())) if each.name in self.given else each
            for each in job.inputs
        ))  # fmt: skip


def _revived(record: RunRecord, event: Adopted, ledger: Ledger) -> RunRecord:
    """A session that was only prepared is let go: it would begin with an older checkpoint."""
    events: list[Event] = [event]
    if record.phase is Phase.PREPARING:
        events.insert(0, Withdrawn(event.at, event.reason))
    if record.phase in (Phase.QUEUED, Phase.PREPARING):  # it waited for no person
        events.append(Released(event.at))
    return ledger.append(record, events, due_at=DUE_NOW)


def _here() -> str:
    return machine(socket.gethostname())


def _highest(said: Said) -> int:
    """The highest generation of which the store has a trace."""
    told = said.deposit.generation if said.deposit is not None else 0
    written = (ref.generation for ref in said.checkpoints if ref.generation <= bounds.GENERATION_MAX)
    return max((told, *written))
