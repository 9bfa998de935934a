"""Removes runs that are over, altogether: what the home, the stores and the ledger have of them.

`orchestrator.pruning` removes in the home and the stores. The ledger's record goes last, so that a removal
that was interrupted can be repeated. A run that began with a checkpoint of another one has a copy of its own.
Must never touch what belongs to another run, nor what is not ours. Asks nobody: the caller shows the plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.errors import BackendError, InputError, OrchestratorError, Superseded
from orchestrator.ledger import Ledger, forgetting
from orchestrator.pruning import listing, removal, results
from orchestrator.pruning.results import Surplus
from orchestrator.pruning.rules import Judgement, Kind, Thing

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_OURS = frozenset({Kind.LOG, Kind.RESUME})
NAMED_MAX = 5
BUSY = "changed while it was removed: try again"


@dataclass(frozen=True)
class Doomed:
    """What there is of one run. `things` are in the home. `surplus`: in its home store; None if that is to
    stay. `spared`: folders of sessions, in the home, with checkpoints that never reached the store; they stay
    with it. `trouble`: why the store cannot be asked; then nothing of the run is removed. `record`: None if
    the ledger cannot read that of the run `name`."""

    record: RunRecord | None
    things: tuple[Thing, ...]
    surplus: Surplus | None = None
    trouble: OrchestratorError | None = None
    spared: tuple[str, ...] = ()
    name: str = ""

    @property
    def run(self) -> str:
        return self.name if self.record is None else self.record.run

    @property
    def home_bytes(self) -> int:
        return sum(thing.size for thing in self.things)

    @property
    def store_bytes(self) -> int:
        return self.surplus.size if self.surplus is not None else 0


@dataclass(frozen=True)
class Removed:
    """`runs` that are gone. `failed`: run → why it is still there, at least in part. `notes`: what stays."""

    runs: tuple[str, ...] = ()
    freed: int = 0
    failed: dict[str, OrchestratorError] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Removing:
    """A plan to remove these runs."""

    client: Client
    runs: tuple[Doomed, ...]

    def carry_out(self) -> Removed:
        """Removes them, one after the other. A run that cannot be removed does not keep the others."""
        gone: list[str] = []
        freed = 0
        failed: dict[str, OrchestratorError] = {}
        notes: dict[str, str] = {}
        for each in self.runs:
            try:
                if note := _removed(self.client, each):
                    notes[each.run] = note
                gone.append(each.run)
                freed += each.home_bytes + (0 if note else each.store_bytes)
            except OrchestratorError as error:
                failed[each.run] = error
        return Removed(tuple(gone), freed, failed, notes)


def plan(client: Client, given: Iterable[str], *, keep_checkpoints: bool) -> Removing:
    """What a removal of these runs would take away. Changes nothing; `carry_out` does it.

    Raises InputError for an unknown run, for one that is under way, and for one that a schedule looks at. A
    run whose record cannot be read is removed only without its checkpoints, which nobody can name.
    """
    with _on_a_full_disk(client) as ledger:
        names = dict.fromkeys(_named(ledger, each) for each in given)
        records: dict[str, RunRecord | None] = {}
        for name in names:
            records[name] = record = _read(ledger, name, keep_checkpoints)
            if record is not None:
                _check_over(ledger, record)
    found = listing.look(client.home.path)
    return Removing(client, tuple(
        _doomed(client, run, record, found.things, keep_checkpoints) for run, record in records.items()
    ))  # fmt: skip


def _read(ledger: Ledger, run: str, keep_checkpoints: bool) -> RunRecord | None:
    try:
        return ledger.record(run)
    except BackendError:
        if keep_checkpoints and not any(ledger.records([run])):
            return None
        raise


def _named(ledger: Ledger, given: str) -> str:
    """The one run that this can mean. A job's name is not enough here: elsewhere it means the newest run."""
    found = ledger.find(given)
    others = [each.run for each in ledger.summaries() if each.run.startswith(given)]
    if found != given and len(others) > 1:
        raise InputError(f"{given!r} may be {' or '.join(others[:NAMED_MAX])}: give the whole name of a run")
    return found


def _check_over(ledger: Ledger, record: RunRecord) -> None:
    """Raises InputError, with what to do, for a run that somebody still needs."""
    run = record.run
    if not record.phase.final:
        first = f"`orchestrator cancel {run}` first"
        held = record.standing is Phase.HELD
        raise InputError(f"{run} is {record.standing.value}, not over: {first}{'' if held else ', and wait'}")
    if record.session is not None or record.strays:
        raise InputError(
            f"{run} is {record.phase.value}, but a session of it is still being cleaned up: try again when "
            f"`orchestrator show {run}` no longer lists it"
        )
    for schedule in ledger.schedules.all():
        if schedule.run == run and not schedule.ended:
            raise InputError(
                f"{run} is the newest run of the schedule {schedule.name}, which looks at it before its next "
                f"fire: `orchestrator schedule rm {schedule.name}` first"
            )


def _doomed(
    client: Client, run: str, record: RunRecord | None, things: Iterable[Thing], keep_checkpoints: bool
) -> Doomed:
    mine = tuple(thing for thing in things if thing.kind in _OURS and thing.run == run)
    if keep_checkpoints or record is None:
        going = tuple(thing for thing in mine if not thing.unpublished)
        spared = tuple(thing.path for thing in mine if thing.unpublished)
        return Doomed(record, going, spared=spared, name=run)
    try:
        with _on_a_full_disk(client) as ledger:
            return Doomed(record, mine, results.of_run(client.wired().store(record.store), ledger, record))
    except OrchestratorError as error:
        return Doomed(record, mine, trouble=error)


def _removed(client: Client, doomed: Doomed) -> str:
    """Removes one run; returns what stays of it and why, if something does."""
    if doomed.trouble is not None:
        raise doomed.trouble
    note = ""
    with _on_a_full_disk(client) as ledger:
        record = _read(ledger, doomed.run, keep_checkpoints=doomed.record is None)
        if record is not None:
            _check_over(ledger, record)
            if doomed.surplus is not None:
                try:
                    note = results.remove_all(client.wired().store(record.store), ledger, record)
                except Superseded as error:
                    note = str(error)
    outcome = removal.carry_out(client.home.path, doomed.things, lambda: _again(client, doomed))
    if outcome.troubles:
        path, why = next(iter(outcome.troubles.items()))
        raise InputError(f"{client.home.path / path} cannot be removed ({why}): remove it, then try again")
    with client.ledgers.runs() as ledger:  # there is room by now
        if record is None and doomed.record is None:
            forgetting.erase_unreadable(ledger, doomed.run)
        elif record is None or not _erased(ledger, record, client.clock.now()):
            raise InputError(f"{doomed.run} {BUSY}")
    return note


def _erased(ledger: Ledger, record: RunRecord, now: float) -> bool:
    if forgetting.erase(ledger, record):
        return True
    # A damaged column may be why: with the row as its record says, it is over.
    return ledger.mend(record.run, now) and forgetting.erase(ledger, ledger.record(record.run))


@contextlib.contextmanager
def _on_a_full_disk(client: Client) -> Iterator[Ledger]:
    found = client.home.ledger_on_a_full_disk()
    if found is None:
        with client.ledgers.runs() as ledger:  # raises: there are no runs yet
            yield ledger
        return
    with found:
        yield found


def _again(client: Client, doomed: Doomed) -> tuple[Judgement, ...]:
    """Only what is this run's goes; what an interrupted prune had set aside gets its name back."""
    found = listing.look(client.home.path, measure=False)
    return tuple(
        Judgement(
            thing,
            thing.kind in _OURS and thing.run == doomed.run and thing.path not in doomed.spared,
            "its run was removed",
        )
        for thing in found.things
    )
