"""What a run needs from the user's config: its home store and its platforms.

Pure. Must never know what a store or platform is, only their names.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.core.draft import Decision
from orchestrator.core.event import Regained
from orchestrator.core.fault import faulted
from orchestrator.core.lifecycle import Wish
from orchestrator.core.run import RunRecord


def missing(record: RunRecord, platforms: Collection[str], stores: Collection[str]) -> tuple[str, ...]:
    """What the run needs and the config does not have, in words. Empty for a run that is over, or that its
    user cancelled with `--discard`."""
    if record.phase.final or (record.wish is Wish.CANCEL and record.discard):
        return ()
    there = {stray.platform for stray in record.strays}
    if record.session is not None:
        there.add(record.session.order.platform)
    gone = [f"store {record.store!r}"] if record.store and record.store not in stores else []
    return (*gone, *(f"platform {name!r}" for name in sorted(there) if name not in platforms))


def wanting(record: RunRecord, lacking: tuple[str, ...], now: float) -> Decision:
    """Holds the run in its phase until the config has everything again. Deletes and stops nothing."""
    return faulted(record, sentence(lacking), now, lacking)


def regained(record: RunRecord, now: float) -> Regained:
    """The event that ends the wait."""
    return Regained(now, record.missing)


def sentence(lacking: tuple[str, ...]) -> str:
    """The reason that a person reads, with what to do."""
    named = " and the ".join(lacking)
    return (
        f"it needs the {named}, which the config no longer has: put it back, and the run continues as soon "
        "as a controller runs (`orchestrator up --detach` starts one); or give the run up with "
        "`orchestrator cancel --discard`"
    )
