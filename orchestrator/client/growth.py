"""How much space the home and a store use, by kind, and how much pruning would free.

Limited to a few seconds; if that is too short, the answer says "at least". Removes nothing. Does not count
what `prune` would find in the store and on platforms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.client import controller_log
from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.core.wording import size_text
from orchestrator.home import PLATFORMS, RESULTS
from orchestrator.pruning import listing, needs, rules
from orchestrator.pruning.rules import Policy
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store

DOCTOR_SECONDS = 3.0  # for the home, and again for the store
HINT_SECONDS = 1.0
OLDER_THAN_SECONDS = 30 * 86400.0  # the default of `prune`
_ELSEWHERE = {"sessions": PLATFORMS, "results": RESULTS}


@dataclass(frozen=True)
class Growth:
    """`sizes`: kind → bytes on the disk. `complete` is False if time ran out and there may be more."""

    sizes: dict[str, int] = field(default_factory=dict)
    freed: int = 0
    complete: bool = True

    @property
    def text(self) -> str:
        found = ", ".join(f"{what} {size_text(size)}" for what, size in self.sizes.items() if size)
        freed = f"; `prune` would free {size_text(self.freed)}" if self.freed else ""
        return f"{'' if self.complete else 'at least '}{found or 'nothing yet'}{freed}"


def of_home(home: Home, clock: Clock, seconds: float = DOCTOR_SECONDS) -> Growth:
    """The space that the home uses. Raises the same errors as reading the ledger."""
    enough = _after(clock, seconds)
    found = listing.look(home.path, enough=enough)
    sizes: dict[str, int] = {}
    for thing in found.things:
        sizes[thing.kind.value] = sizes.get(thing.kind.value, 0) + thing.size
    complete = found.complete
    for what, folder in _ELSEWHERE.items():
        size, whole = listing.disk_bytes(home.path / folder, enough)
        sizes[what], complete = size, complete and whole
    folders = home.folders
    logs = (folders.controller_log, *controller_log.older(home.path), folders.crash_log)
    sizes["controller's logs"] = sum(path.stat().st_size for path in logs if path.is_file())
    ledger = home.ledger_on_a_full_disk()
    with ledger or contextlib.nullcontext():
        if ledger is not None:
            sizes["ledger"] = ledger.size()
        needed = needs.read(ledger, keep=0, shared=home.ledger_beside())
    judged = rules.judge(found.things, needed, Policy(clock.now(), OLDER_THAN_SECONDS))
    return Growth(sizes, sum(each.thing.size for each in judged if each.goes), complete)


def of_store(store: Store, clock: Clock, seconds: float = DOCTOR_SECONDS) -> Growth:
    """The space that the runs of all ledgers use in the store."""
    enough = _after(clock, seconds)
    size = sum(size for _, size in stored.sizes(store, enough))
    return Growth({"checkpoints": size}, complete=not enough())


def _after(clock: Clock, seconds: float) -> Callable[[], bool]:
    end = clock.monotonic() + seconds
    return lambda: clock.monotonic() > end
