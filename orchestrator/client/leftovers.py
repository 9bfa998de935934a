"""What sessions left on the platforms though no run needs it any more, and its removal.

Left over is what bears this home's mark and is of no live run of the ledger. Platforms are read before the
ledger, and a session is in the ledger before it is anywhere else: what is being prepared is never taken for
left over. Decides which; the platforms say what there is, and remove it. Must never ask the user: whoever
calls says what is to go.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

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
    RUNS = "runs"  # it still runs, and is killed
    UNKNOWN_RUN = "unknown run"  # this ledger does not know its run, which may be of another database


@dataclass(frozen=True)
class Orphan:
    """Something left over, and the platform that it is on, by its name in the config."""

    platform: str
    leftover: Leftover
    known: bool = True  # its run is in the ledger, and over

    @property
    def place(self) -> str:
        return f"{self.platform}: {self.leftover.kind} {self.leftover.name}"

    @property
    def doubt(self) -> Doubt:
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
    """What became of what was to be removed. `kept`: why it is still there, for each; `troubles`: of these,
    what the platform answered."""

    removed: tuple[Orphan, ...] = ()
    kept: Mapping[Orphan, str] = field(default_factory=dict)
    troubles: Mapping[Orphan, OrchestratorError] = field(default_factory=dict)


def configured(home: Home, clock: Clock, names: Collection[str] = ()) -> Mapping[str, Platform]:
    """The platforms of the config, or those of these names. Raises InputError for a name that is neither a
    platform nor a store of it."""
    wired = Wired.from_home(home.path, clock)
    check_names(wired.config, names)
    return {name: each for name, each in wired.platforms().items() if not names or name in names}


def check_names(config: Config, names: Iterable[str]) -> None:
    """Raises InputError for what is no platform or store of the config."""
    known = [*(each.name for each in config.platforms), *(each.name for each in config.stores)]
    strange = [name for name in names if name not in known]
    if strange:
        raise InputError(unknown(f"platform or store {strange[0]!r}", strange[0], known))


def find(home: Home, platforms: Mapping[str, Platform]) -> Leftovers:
    """What is left over on these platforms. Changes nothing. Raises what opening the ledger raises: without
    its word nothing is left over."""
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
    known = {""}  # what is of no run: a moment's container
    if ledger is not None:
        with ledger:
            runs = ledger.summaries()
            live = {each.run for each in ledger.live()}  # runs that are over too, if a session may still run
            live |= set(ledger.unreadable)
        live |= {each.run for each in runs if not each.phase.final}
        known |= {each.run for each in runs}
    for each in there:
        if each.leftover.run not in live:
            yield replace(each, known=each.leftover.run in known)


def remove(home: Home, platforms: Mapping[str, Platform], doomed: Iterable[Orphan]) -> Removal:
    """Removes these. The ledger is asked again: whoever was asked may have thought about it for long."""
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
        except OSError as error:  # one thing that resists is no reason to leave the others
            kind = AccessDenied if remedy(error) is Remedy.ACT else Transient
            troubles[each] = kind(error.strerror or str(error))
    return Removal(tuple(removed), kept | {each: str(error) for each, error in troubles.items()}, troubles)


def _cleaner(platforms: Mapping[str, Platform], name: str) -> Cleaning:
    found: object = platforms.get(name)
    if not isinstance(found, Cleaning):
        raise InputError(f"the config no longer has the platform {name!r}: put it back")
    return found
