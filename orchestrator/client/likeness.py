"""What the machines that share a ledger must have in common, and what this one lacks to take over.

The controller writes into the ledger which platforms and stores it has, without their secrets, and the ids of
its home on the platforms: by these it finds its sessions there, so every controller of the ledger has the
same. Asks the home store for one checkpoint, and no platform: that is what `doctor` does.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.client.lost import lost, schedules
from orchestrator.client.wiring import Wired
from orchestrator.config import Config
from orchestrator.core import wire
from orchestrator.core.lifecycle import Phase
from orchestrator.core.wording import span
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.files import make_folder, read_small, rename, write_whole
from orchestrator.home import HOME_ID, HOME_ID_BEFORE
from orchestrator.ledger import Ledger, LedgerReader, Takeover
from orchestrator.platforms import catalog
from orchestrator.references import REFERENCE, resolve
from orchestrator.stores import checkpoints
from orchestrator.stores.portable import is_on_this_machine

RUNS_LOOKED_AT = 200
CLOCK_SECONDS_MAX = 60.0  # by so much two machines' clocks may differ


@dataclass(frozen=True)
class Likeness:
    """A controller's part of it. `platforms`: name → type. `stores`: name → type and a digest of the options
    that say where it is. `homes`: platform → the id of the home there. `host`: whose this is."""

    host: str = ""
    home_store: str = ""
    platforms: Mapping[str, str] = field(default_factory=dict)
    stores: Mapping[str, str] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)


def settle(ledger: LedgerReader, wired: Wired, say: Callable[[str], None]) -> Likeness:
    """Gives this home the ids that the ledger's controllers have on the platforms. To call before any
    platform is used. Returns what to tell the others."""
    homes = dict(_told(ledger).homes)
    for each in wired.config.platforms:
        if each.type in catalog.IDENTIFIED:
            homes[each.name] = _identified(wired.folders.platform(each.name), each.name, homes, say)
    return of(wired.config, homes)


def tell(takeover: Takeover, mine: Likeness) -> None:
    """Lets the other machines know."""
    takeover.tell(wire.encode(mine).decode())


def of(config: Config, homes: Mapping[str, str]) -> Likeness:
    return Likeness(
        socket.gethostname(),
        config.home_store,
        {each.name: each.type for each in config.platforms},
        {each.name: f"{each.type} {_digest(each.options)}" for each in config.stores},
        homes,
    )


def doubts(ledger: Ledger, wired: Wired) -> Iterator[str]:
    """What this machine lacks to take over from another one, in sentences. Empty if nothing is known to be
    missing."""
    if not ledger.is_shared:
        yield (
            "the ledger is a file, so a standby on another machine cannot use it, only one on this machine; "
            "for another machine, set `database: postgresql://…` in config.yaml"
        )
        return
    yield from _clock(ledger, wired)
    yield from _differences(of(wired.config, {}), _told(ledger))
    for what, runs in lost(ledger, wired.config).items():
        yield f"runs need the {what}, which config.yaml here does not have ({', '.join(runs[:3])})"
    for name, what in schedules(ledger, wired.config).items():
        yield f"the schedule {name} needs the {what}, which config.yaml here does not have"
    yield from _unresolved(wired)
    yield from _without_secrets(ledger)
    with suppress(OrchestratorError):  # doctor looks at the stores
        yield from _of_home_store(ledger, wired)


def _clock(ledger: Ledger, wired: Wired) -> Iterator[str]:
    theirs = ledger.server_time()
    ahead = 0.0 if theirs is None else wired.clock.now() - theirs
    if abs(ahead) > CLOCK_SECONDS_MAX:
        how = f"{span(abs(ahead))} {'ahead of' if ahead > 0 else 'behind'}"
        yield (
            f"the clock here is {how} that of the PostgreSQL server: fires and pauses would come at the "
            "wrong time; set it, for example by NTP"
        )


def _told(ledger: LedgerReader) -> Likeness:
    try:
        return wire.decode(Likeness, ledger.alike().encode())
    except ValueError:  # no controller has told yet
        return Likeness()


def _identified(folder: Path, name: str, homes: Mapping[str, str], say: Callable[[str], None]) -> str:
    file = folder / HOME_ID
    mine = (read_small(file) or b"").decode("ascii", "replace").strip()
    wanted = homes.get(name) or mine or uuid.uuid4().hex
    if mine != wanted:
        make_folder(folder, 0o700)
        if mine:
            rename(file, folder / HOME_ID_BEFORE)
            say(
                f"on {name} this home now goes by the id of the ledger's other machines; what it had there "
                f"by its old id ({folder / HOME_ID_BEFORE}) is no longer cleaned up from here"
            )
        write_whole(file, wanted.encode())
    return wanted


def _digest(options: Mapping[str, object]) -> str:
    """Of the options except references: where secrets lie may differ from machine to machine."""
    plain = {key: value for key, value in options.items() if not _is_reference(value)}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _is_reference(value: object) -> bool:
    return isinstance(value, str) and REFERENCE.fullmatch(value) is not None


def _differences(mine: Likeness, theirs: Likeness) -> Iterator[str]:
    there = f"on {theirs.host}"
    if not theirs.host or theirs.host == mine.host:
        return
    if mine.home_store != theirs.home_store:
        yield f"the home store is {mine.home_store} here and {theirs.home_store} {there}"
    for kind, here, others in (
        ("platform", mine.platforms, theirs.platforms),
        ("store", mine.stores, theirs.stores),
    ):
        for name in sorted(others):
            if name not in here:
                yield f"the {kind} {name} is in the config {there}, and not here"
            elif here[name] != others[name]:
                yield f"the {kind} {name} has another type or other options {there} than here"


def _unresolved(wired: Wired) -> Iterator[str]:
    def walk(tree: object) -> Iterator[str]:
        if isinstance(tree, dict | list):
            for value in tree.values() if isinstance(tree, dict) else tree:
                yield from walk(value)
        elif _is_reference(tree):
            yield str(tree)

    for reference in dict.fromkeys(walk(wired.config.document.tree)):
        try:
            resolve(reference, wired.config.home)
        except InputError as error:
            yield f"the config refers to {reference}: {error}"


def _without_secrets(ledger: Ledger) -> Iterator[str]:
    active = [each.run for each in ledger.summaries([p for p in Phase if not p.final], RUNS_LOOKED_AT)]
    coming = [each for each in ledger.schedules.all() if not each.ended]
    needed = {name: f"the schedule {each.name}" for each in coming for name in each.job.secrets}
    needed |= {name: record.run for record in ledger.records(active) for name in record.job.secrets}
    for name, whose in sorted(needed.items()):
        if name not in os.environ:
            yield f"{whose} needs the secret {name}, which is not in this environment: export {name}=…"


def _of_home_store(ledger: Ledger, wired: Wired) -> Iterator[str]:
    name, store = wired.config.home_store, wired.store("")
    record = next((each for each in ledger.live() if each.accepted and each.store in ("", name)), None)
    newest = record.accepted[-1].name if record is not None else ""
    if record is not None and not checkpoints.present(store, record.run, [newest]):
        yield (
            f"the store {name} here does not have the checkpoint {newest} of {record.run}: is it the same "
            "one as on the other machine?"
        )
    elif is_on_this_machine(store):
        yield f"the home store {name} is on this machine: the other machines must see the same one, always"
