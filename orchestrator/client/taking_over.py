"""Puts this copy of a home in charge of a store that another copy has used since, or from which it is behind.

Decides for which stores that is so, and brings every run that is under way past what has happened since. The
runs come first: if that is interrupted, the store is still the other's, and the next call begins again.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.client.adopting import Adopting, Adoption, Came
from orchestrator.client.home import Home
from orchestrator.core.checkpoint import newest
from orchestrator.core.run import RunRecord
from orchestrator.engine import ownership
from orchestrator.engine.ownership import Place
from orchestrator.errors import InputError, LedgerConflict
from orchestrator.ledger import Ledger, identity
from orchestrator.stores import deposits
from orchestrator.stores.store import Store

if TYPE_CHECKING:
    from orchestrator.client.client import Client


def here(home: Home, ledger: Ledger) -> Place:
    """This copy."""
    return ownership.place_of(home.path, ledger.path, socket.gethostname())


def command(
    client: Client, name: str, *, dry_run: bool, progress: Callable[[str], None] | None
) -> tuple[Adoption, ...]:
    """See `Stores.take_over`."""
    from orchestrator.client import controlling

    wired = client.wired()
    stores = wired.stores()
    if name and name not in stores:
        raise InputError(f"the config has no store {name!r}; it has: {', '.join(sorted(stores))}")
    with client.ledgers.runs() as ledger:
        found = take(client, ledger, {name} if name else stores, dry_run=dry_run, progress=progress)
        if found and not dry_run and any(each.phase is not None and not each.phase.final for each in found):
            controlling.ensure(client.home, client.clock, ledger)
    return found


def take(
    client: Client,
    ledger: Ledger,
    names: Collection[str],
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
    why: str = "",
) -> tuple[Adoption, ...]:
    """The runs under way in those of these stores that are not this copy's. `why`: it is known that they are
    not, and this is the reason. Raises the stores' errors; runs that were taken before then stay so."""
    wired = client.wired()
    under_way = [each for each in ledger.summaries() if not each.phase.final]
    found: list[Adoption] = []
    for name in sorted(names):
        mine = [each.run for each in under_way if (each.store or wired.config.home_store) == name]
        store, records = wired.store(name), tuple(ledger.records(mine))
        reason = why or _reason(store, name, ledger, records, here(client.home, ledger))
        if not reason:
            continue
        for record in records:
            if progress is not None:
                progress(record.run)
            if dry_run:
                found.append(_adoption(record))
                continue
            adopting = Adopting(client, name, store, ledger, named=True)
            try:
                after, notes = adopting.revive(record, ledger, reason)
            except LedgerConflict:  # its controller has just held it
                after, notes = adopting.revive(ledger.record(record.run), ledger, reason)
            found.append(replace(_adoption(after), notes=tuple(notes)))
        if not dry_run:
            ownership.seize(ledger, name, store, here(client.home, ledger), client.clock.now())
    return tuple(found)


def _reason(store: Store, name: str, ledger: Ledger, records: Collection[RunRecord], place: Place) -> str:
    """Why the store is not this copy's to use; empty if it is."""
    rival = ownership.rival_of(store, identity.of(ledger), place)
    if rival is not None:
        return f"taken over with the store {name} from another copy of this home, {rival.place}"
    for record in records:
        order, refs = deposits.there(store, record.run)
        made, at = ledger.made(record.run), newest(record.accepted)
        beyond = [ref for ref in refs if not ref.outputs and not made.knows(ref)
                  and (at is None or ref.step > at.ref.step)]  # fmt: skip
        if order > (record.adoptions, record.version) or beyond:
            return f"caught up with the store {name}, which knew more than this ledger"
    return ""


def _adoption(record: RunRecord) -> Adoption:
    at = newest(record.accepted)
    step = None if at is None else at.ref.step
    return Adoption(record.run, Came.TAKEN, record.standing, step, len(record.accepted))
