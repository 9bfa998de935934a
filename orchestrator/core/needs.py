"""What a run needs from the user's config: its home store and its platforms.

Pure. Must never know what a store or platform is, only their names.
"""

from __future__ import annotations

from collections.abc import Collection

from orchestrator.core.closing import cancelled, closing
from orchestrator.core.draft import Decision, Draft, Inputs
from orchestrator.core.event import Confirmed, Ended, Launched, Regained, Withdrawn
from orchestrator.core.fault import faulted
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord


def missing(record: RunRecord, platforms: Collection[str], stores: Collection[str]) -> tuple[str, ...]:
    """What the run needs and the config does not have, in words. Empty for a run that is over."""
    if record.phase.final:
        return ()
    session = record.session
    there = session is None or session.order.platform in platforms
    if there and not record.strays and (not record.store or record.store in stores):
        return ()  # asked for every decision
    gone = [store_text(record.store)] if record.store and record.store not in stores else []
    return (*gone, *(_platform(name) for name in platforms_of(record) if name not in platforms))


def platforms_of(record: RunRecord) -> tuple[str, ...]:
    """The platforms where the run has a session or something that one left."""
    there = {stray.platform for stray in record.strays}
    if record.session is not None:
        there.add(record.session.order.platform)
    return tuple(sorted(there))


def _platform(name: str) -> str:
    return f"platform {name!r}"


def store_text(name: str) -> str:
    """A store in words, among what a run lacks."""
    return f"store {name!r}"


def wanting(record: RunRecord, lacking: tuple[str, ...], now: float, elsewhere: str = "") -> Decision:
    """Holds the run in its phase until it has everything again. Deletes and stops nothing. A run that its
    user cancelled with `--discard` does not wait. `elsewhere`: why the store is not this ledger's."""
    if record.wish is Wish.CANCEL and record.discard:
        return _given_up(record, lacking, now)
    return faulted(record, elsewhere or sentence(lacking), now, lacking)


def regained(record: RunRecord, now: float) -> Regained:
    """The event that ends the wait."""
    return Regained(now, record.missing)


def sentence(lacking: tuple[str, ...]) -> str:
    """The reason that a person reads, with what to do."""
    return (
        f"it needs the {named(lacking)}, which the config no longer has: put it back, and the run continues "
        "as soon as a controller runs (`orchestrator up --detach` starts one); or give the run up with "
        "`orchestrator cancel --discard`"
    )


def named(lacking: tuple[str, ...]) -> str:
    return " and the ".join(lacking)


# --- A run that is given up without them ------------------------------------------------------------------


def ends_at_once(record: RunRecord, lacking: tuple[str, ...]) -> bool:
    """Whether giving up the run gives up its session, too: without its platform it cannot be stopped, and
    without the store nothing of it can be brought home."""
    session = record.session
    return (
        session is None or _platform(session.order.platform) in lacking or store_text(record.store) in lacking
    )


def left_there(record: RunRecord, lacking: tuple[str, ...]) -> tuple[str, ...]:
    """The missing platforms where something of the run stays when it is given up."""
    return tuple(name for name in platforms_of(record) if _platform(name) in lacking)


def _given_up(record: RunRecord, lacking: tuple[str, ...], now: float) -> Decision:
    """Gives up what is on the missing platforms, and with the session there the run. What is on platforms of
    the config is stopped and discarded later, as of any lost session."""
    draft = Draft(record, Inputs(now))
    if ends_at_once(record, lacking):
        _end(draft, lacking)
    for stray in draft.record.strays:
        if _platform(stray.platform) in lacking:
            draft.note(
                f"what {stray.session} left on {stray.platform} stays there, and it may still run there: put "
                f"{stray.platform} back into the config, and `orchestrator doctor --clean` removes it"
            )
            draft.emit(Confirmed(now, stray.session, given_up=True))
    return Decision(draft.record, tuple(draft.events), ())


def _end(draft: Draft, lacking: tuple[str, ...]) -> None:
    phase, now = draft.record.phase, draft.now
    why = f"given up without the {named(lacking)}"
    if phase is Phase.PREPARING:
        draft.emit(Withdrawn(now, why))
    if draft.record.session is None:
        draft.emit(cancelled(draft.record, now))
        return
    if phase is Phase.LAUNCHING and draft.session.launched_at is None:
        draft.emit(Launched(now))  # it may have taken effect
    if phase is not Phase.COLLECTING:
        draft.emit(Ended(now, Outcome.LOST, why, confirmed=False))
    draft.emit(closing(draft.record, now))
