"""`cancel`, `hold` and `release`: a user's wish, noted in the ledger; the controller grants it.

Decides which wish is in vain, which is granted already, and which would lose work that nobody agreed to lose.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from orchestrator.core.event import Wish, Wished
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import span
from orchestrator.errors import InputError, WorkWouldBeLost

if TYPE_CHECKING:
    from orchestrator.client.client import Client


class Then(StrEnum):
    """What happens next, for a wish."""

    NOTHING = "nothing"  # it is so already
    AT_ONCE = "at once"  # there is no session to end
    UNLAUNCHED = "unlaunched"  # before its session is launched
    SAVED = "saved"  # once its session has saved and left
    GIVEN_UP = "given up"  # once its session is given up, with all it did since its last checkpoint


@dataclass(frozen=True)
class WishAnswer:
    """What became of a wish. `changed` False: it was so already, `reason` says why.

    `phase` is the run's now, `wish` what the controller has yet to grant, `then` when it will; `session` is
    the one that has to end first, empty where there is none.
    """

    run: str
    changed: bool
    phase: Phase
    wish: Wish | None
    then: Then
    session: str = ""
    reason: str = ""
    controller_started: bool = False


def wish(client: Client, run: str, wish: Wish, *, discard: bool = False) -> WishAnswer:
    """Notes the wish, unless it is granted already, and makes sure that a controller runs to grant it.

    Raises InputError for a wish in vain, WorkWouldBeLost where it would lose work and not `discard`.
    """
    started = False
    with client.ledgers.runs() as ledger:
        record = ledger.record(run)
        granted = _is_granted(record, wish)
        if not granted:
            if wish is not Wish.RELEASE and not discard:
                _refuse_loss(record, wish, client.clock.now())
            if record.wish is not wish or record.fault or (discard and not record.discard):
                record = ledger.wish(run, Wished(client.clock.now(), wish, discard))
        if not record.phase.final and (not granted or record.wish is not None) and ledger.owner() is None:
            from orchestrator.client import controlling

            started = controlling.ensure(client.home, client.clock, ledger) is None
    session = record.session.name if record.session is not None else ""
    then = Then.NOTHING if granted else _then(record, wish)
    return WishAnswer(
        run, not granted, record.standing, record.wish, then, session, record.standing_reason, started
    )


def _is_granted(record: RunRecord, wish: Wish) -> bool:
    """Whether there is nothing to ask for. Raises InputError for a wish in vain."""
    phase = record.standing
    if phase.final:
        if wish is Wish.CANCEL:
            return True
        raise InputError(f"{record.run} is {phase.value}: there is nothing to {wish.value}")
    if record.wish is Wish.CANCEL and wish is not Wish.CANCEL and not record.fault:
        raise InputError(f"{record.run} is being cancelled: there is nothing to {wish.value}")
    held = phase is Phase.HELD
    return record.wish is None and ((wish is Wish.HOLD and held) or (wish is Wish.RELEASE and not held))


def _refuse_loss(record: RunRecord, wish: Wish, now: float) -> None:
    """A session that is not durable mid-run is not stopped without a word about what is lost."""
    session = record.session
    if session is None or session.traits.durable_mid_run or record.discard or session.launched_at is None:
        return
    if record.phase not in (Phase.LAUNCHING, Phase.RUNNING):
        return
    since = session.runs_since or session.launched_at
    seconds = max(0.0, now - since)
    raise WorkWouldBeLost(
        f"{session.order.platform} brings nothing before a session ends: to {wish.value} {record.run} now "
        f"would lose {span(seconds)} of work in {session.name}.",
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
