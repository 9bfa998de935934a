"""Platforms and stores that the config no longer has, but runs still need."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.config import Config
from orchestrator.core.lifecycle import Phase
from orchestrator.core.needs import missing
from orchestrator.ledger import Ledger

_NAMED = 3
_ACTIVE = tuple(phase for phase in Phase if not phase.final)


def lost(ledger: Ledger, config: Config) -> dict[str, list[str]]:
    """What is missing (such as `store 'home'`) → the runs that need it."""
    platforms = frozenset(each.name for each in config.platforms)
    stores = frozenset(each.name for each in config.stores)
    there = ledger.live()
    seen = {record.run for record in there}
    suspects = [
        each.run
        for each in ledger.summaries(_ACTIVE)
        if each.store and each.store not in stores and each.run not in seen
    ]
    found: dict[str, list[str]] = {}
    for record in (*there, *ledger.records(suspects)):
        for what in missing(record, platforms, stores):
            found.setdefault(what, []).append(record.run)
    return dict(sorted(found.items()))


def sentence(what: str, runs: Sequence[str]) -> str:
    """The warning at the start of a controller and after a submit."""
    more = len(runs) - _NAMED
    named = ", ".join(runs[:_NAMED]) + (f" and {more:,} more" if more > 0 else "")
    return f"the config no longer has the {what}; these runs are held until it is back: {named}"


def schedules(ledger: Ledger, config: Config) -> dict[str, str]:
    """The schedules that need what the config no longer has → what that is, in words."""
    platforms = frozenset(each.name for each in config.platforms)
    stores = frozenset(each.name for each in config.stores)
    found: dict[str, str] = {}
    for each in ledger.schedules.all():
        wanted = each.job.route.platforms
        if each.store and each.store not in stores:
            found[each.name] = f"store {each.store!r}"
        elif wanted and not platforms.intersection(wanted):
            found[each.name] = f"platform {' or '.join(map(repr, wanted))}"
    return found


def schedule_sentence(name: str, what: str) -> str:
    """The warning about a schedule."""
    return (
        f"the config no longer has the {what}, which the schedule {name} needs: put it back, or submit the "
        f"job again, or remove the schedule with `orchestrator schedule rm {name}`"
    )
