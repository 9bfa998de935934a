"""Finds and removes what sessions left on the platforms and no run needs any more.

A thing is left over if it bears this home's mark but belongs to no live run of the ledger. Platforms are read
before the ledger, and a session is in the ledger before it is anywhere else. So a session in preparation
never counts as left over. This module decides what is left over; the platforms list and remove things. Must
never ask the user: the caller says what to remove.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from orchestrator.client.adding import how_to_add
from orchestrator.client.home import Home
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.config import Config
from orchestrator.core.wording import unknown
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Remedy, Transient, remedy
from orchestrator.platforms.platform import Cleaning, Leftover, Platform


class Doubt(StrEnum):
    """Why the removal of something left over might lose something."""

    NONE = "none"
    RUNS = "runs"  # it still runs, and removal kills it
    TRIAL = "trial"  # a trial that is under way made it: nobody else removes it
    UNKNOWN_RUN = "unknown run"  # this ledger does not know its run, which may be in another database


@dataclass(frozen=True)
class Orphan:
    """Something left over, and the name of its platform in the config."""

    platform: str
    leftover: Leftover
    known: bool = True  # its run is in the ledger, and over

    @property
    def place(self) -> str:
        return f"{self.platform}: {self.leftover.kind} {self.leftover.name}"

    @property
    def doubt(self) -> Doubt:
        if self.leftover.in_trial:
            return Doubt.TRIAL
        if self.leftover.alive:
            return Doubt.RUNS
        return Doubt.NONE if self.known else Doubt.UNKNOWN_RUN


@dataclass(frozen=True)
class Leftovers:
    """What is left over, and the platforms that did not answer, each with its error."""

    orphans: tuple[Orphan, ...] = ()
    troubles: Mapping[str, OrchestratorError] = field(default_factory=dict)


@dataclass(frozen=True)
class Removal:
    """The result of a removal. `kept`: things that are still there, and why. `troubles`: the platforms'
    errors for some of these."""

    removed: tuple[Orphan, ...] = ()
    kept: Mapping[Orphan, str] = field(default_factory=dict)
    troubles: Mapping[Orphan, OrchestratorError] = field(default_factory=dict)


def configured(home: Home, clock: Clock, names: Collection[str] = ()) -> Mapping[str, Platform]:
    """The platforms of the config, or those with these names. Raises InputError for a name that is neither a
    platform nor a store."""
    wired = Wired.from_home(home.path, clock)
    check_names(home, wired.config, names)
    return {name: each for name, each in wired.platforms().items() if not names or name in names}


def check_names(home: Home, config: Config, names: Iterable[str]) -> None:
    """Raises InputError for a name that is neither a platform nor a store of the config."""
    known = [*(each.name for each in config.platforms), *(each.name for each in config.stores)]
    strange = [name for name in names if name not in known]
    if strange:
        text = unknown(f"platform or store {strange[0]!r}", strange[0], known)
        if steps := how_to_add(home, strange[0]):
            text += f"\nTo use {strange[0]}: {steps}"
        raise InputError(text)


def find(home: Home, platforms: Mapping[str, Platform]) -> Leftovers:
    """What is left over on these platforms. Changes nothing.

    Raises the same errors as opening the ledger, because without it nothing counts as left over.
    """
    there: list[Orphan] = []
    troubles: dict[str, OrchestratorError] = {}
    for name, platform in platforms.items():
        try:
            if isinstance(platform, Cleaning):
                there += (Orphan(name, each) for each in platform.leftovers())
        except OrchestratorError as error:
            troubles[name] = error
    return Leftovers(tuple(_of_no_live_run(home, there)) if there else (), troubles)


def _of_no_live_run(home: Home, there: Iterable[Orphan]) -> Iterator[Orphan]:
    ledger = home.ledger_on_a_full_disk()
    live: set[str] = set()
    known = {""}  # "": things of no run, such as a short-lived container
    if ledger is not None:
        with ledger:
            runs = ledger.summaries()
            live = {each.run for each in ledger.live()}  # also runs that are over, if a session may still run
            live |= set(ledger.unreadable)
        live |= {each.run for each in runs if not each.phase.final}
        known |= {each.run for each in runs}
    for each in there:
        if each.leftover.run not in live:
            yield replace(each, known=each.leftover.run in known)


def remove(home: Home, platforms: Mapping[str, Platform], doomed: Iterable[Orphan]) -> Removal:
    """Removes these. Reads the ledger again, because the user may have taken long to answer."""
    doomed = tuple(doomed)
    still = list(_of_no_live_run(home, doomed))
    places = {each.place for each in still}
    kept = {each: "its run is live" for each in doomed if each.place not in places}
    removed: list[Orphan] = []
    troubles: dict[Orphan, OrchestratorError] = {}
    for each in still:
        try:
            _cleaner(platforms, each.platform).remove(each.leftover)
            removed.append(each)
        except OrchestratorError as error:
            troubles[each] = error
        except OSError as error:  # one failure must not keep the others from being removed
            kind = AccessDenied if remedy(error) is Remedy.ACT else Transient
            troubles[each] = kind(error.strerror or str(error))
    return Removal(tuple(removed), kept | {each: str(error) for each, error in troubles.items()}, troubles)


def _cleaner(platforms: Mapping[str, Platform], name: str) -> Cleaning:
    found: object = platforms.get(name)
    if not isinstance(found, Cleaning):
        raise InputError(f"the config no longer has the platform {name!r}: put it back")
    return found
