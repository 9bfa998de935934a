"""`cancel`, `hold` and `release`: records a user's wish in the ledger; the controller grants it.

Decides which wish is impossible, which is already granted, and which would lose work without consent.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.core import needs
from orchestrator.core.event import Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import span
from orchestrator.errors import InputError, WorkWouldBeLost

if TYPE_CHECKING:
    from orchestrator.client.client import Client


class Then(StrEnum):
    """What happens next, for a wish."""

    NOTHING = "nothing"  # the wish was granted already
    AT_ONCE = "at once"  # there is no session to end
    UNLAUNCHED = "unlaunched"  # granted before its session is launched
    SAVED = "saved"  # granted once its session has saved and left
    REGAINED = "regained"  # granted once the config has again what the run needs
    ABANDONED = "abandoned"  # at once: its session is given up, because the config lacks what it needs
    GIVEN_UP = "given up"  # granted once its session is dropped, with its work since its last checkpoint


@dataclass(frozen=True)
class WishAnswer:
    """The answer to a wish. If `changed` is False, it was granted already, and `reason` says why.

    `phase` is the run's present phase. `wish` is what the controller has yet to grant, and `then` is when it
    will. `session` has to end first; it is empty if there is none. `missing` is what the config
    must have again first, such as `store 'home'`. `left_on`: the platforms that the config no longer has and
    where something of the run stays.
    """

    run: str
    changed: bool
    phase: Phase
    wish: Wish | None
    then: Then
    session: str = ""
    reason: str = ""
    controller_started: bool = False
    missing: tuple[str, ...] = ()
    left_on: tuple[str, ...] = ()


def wish(client: Client, run: str, wish: Wish, *, discard: bool = False) -> WishAnswer:
    """Records the wish, unless it is already granted, and makes sure that a controller runs to grant it.

    Raises InputError for an impossible wish, and WorkWouldBeLost if it would lose work without `discard`.
    """
    started = False
    with client.ledgers.runs() as ledger:
        record = ledger.record(run)
        granted = _is_granted(record, wish)
        missing = () if granted else record.missing
        if not granted:
            if wish is not Wish.RELEASE and not discard:
                _refuse_loss(record, wish, client.clock.now())
            if record.wish is not wish or record.fault or (discard and not record.discard):
                record = ledger.wish(run, Wished(client.clock.now(), wish, discard))
        if not record.phase.final and (not granted or record.wish is not None) and ledger.owner() is None:
            from orchestrator.client import controlling

            started = controlling.ensure(client.home, client.clock, ledger) is None
    session = record.session.name if record.session is not None else ""
    left_on: tuple[str, ...] = ()
    if granted:
        then = Then.NOTHING
    elif missing and record.wish is Wish.CANCEL and record.discard:
        then = Then.ABANDONED if needs.ends_at_once(record, missing) else _then(record, wish)
        missing, left_on = (), needs.left_there(record, missing)
    else:
        then = Then.REGAINED if missing else _then(record, wish)
    reason = record.standing_reason
    return WishAnswer(
        run, not granted, record.standing, record.wish, then, session, reason, started, missing, left_on
    )


def _is_granted(record: RunRecord, wish: Wish) -> bool:
    """Whether the wish is already granted. Raises InputError for an impossible wish."""
    phase = record.standing
    if phase.final:
        if wish is Wish.CANCEL:
            return True
        raise InputError(f"{record.run} is {phase.value}: there is nothing to {wish.value}")
    if record.wish is Wish.CANCEL and wish is not Wish.CANCEL and (record.missing or not record.fault):
        raise InputError(f"{record.run} is being cancelled: there is nothing to {wish.value}")
    if record.missing and record.phase is not Phase.HELD:
        return False  # it is held only until the config has it again
    held = phase is Phase.HELD
    return record.wish is None and ((wish is Wish.HOLD and held) or (wish is Wish.RELEASE and not held))


def _refuse_loss(record: RunRecord, wish: Wish, now: float) -> None:
    """Raises WorkWouldBeLost if stopping the session would lose work that is not durable mid-run."""
    session = record.session
    if session is None or session.traits.durable_mid_run or record.discard or session.launched_at is None:
        return
    if record.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return
    since = session.runs_since or session.launched_at
    seconds = max(0.0, now - since)
    raise WorkWouldBeLost(
        f"{session.order.platform} returns nothing before a session ends: if you {wish.value} {record.run} "
        f"now, {span(seconds)} of work in {session.name} are lost.",
        run=record.run,
        session=session.name,
        seconds=seconds,
    )


def _then(record: RunRecord, wish: Wish) -> Then:
    session = record.session
    if wish is Wish.RELEASE or session is None:
        return Then.AT_ONCE
    if record.phase is Phase.PREPARING:
        return Then.UNLAUNCHED
    return Then.GIVEN_UP if record.discard and not session.traits.durable_mid_run else Then.SAVED
