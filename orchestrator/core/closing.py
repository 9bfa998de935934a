"""What follows the end of a session: the run is done, queued for the next session, held, or given up.

Pure. Reads the record in phase COLLECTING, after all its checkpoints were accepted, and returns the one event
that closes the session's generation.
"""

from __future__ import annotations

import re

from orchestrator.core.checkpoint import newest
from orchestrator.core.event import Cancelled, Completed, Cooldown, GaveUp, Held, Requeued
from orchestrator.core.lifecycle import Wish
from orchestrator.core.order import Order, Outcome
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.slices import began_late
from orchestrator.core.wording import count_text

CAPACITY_SECONDS = 15.0  # the first cooldown after "no capacity"; doubles with every strike
CAPACITY_SECONDS_MAX = 3600.0
DATED_SECONDS_MAX = 900.0  # likewise, if the platform said when to ask again
FRUITLESS_SECONDS = 5.0  # the first pause after a session without a new checkpoint; doubles
REFUSED_SECONDS = 120.0  # the first cooldown after a refusal; doubles with every one in a row
REFUSALS_MAX = 10  # in a row, over about five hours: then a person must look
NOT_COUNTED = frozenset(
    {Outcome.QUOTA_EXHAUSTED, Outcome.NO_CAPACITY, Outcome.REFUSED, Outcome.REJECTED, Outcome.DENIED}
)
PLATFORMS_DOING = frozenset({Outcome.LOST})  # the job is not to blame, so the run does not fail of it
# What a command, its framework or our agent says on a full disk.
_NO_ROOM = re.compile(
    r"No space left on device|Disk quota exceeded|Errno (?:28|122)\b|disk is full|free\) is full"
    r"|do(?:es)? not fit on the disk|no inodes left"
)
RELEASE = "`orchestrator release` tries again"

Closing = Completed | Requeued | GaveUp | Cancelled | Held


def closing(record: RunRecord, now: float) -> Closing:
    """The event that closes the current session.

    Waiting for quota or capacity never counts against the run. A session with a newer checkpoint resets the
    count of sessions without one.
    """
    session = record.session
    assert session is not None
    assert session.outcome is not None
    best = newest(record.accepted)
    step = best.ref.step if best else 0
    if _completed(session, step, best is not None):
        return Completed(now, session.message)
    if record.wish is Wish.CANCEL:
        return cancelled(record, now)
    progressed = step > session.order.resume_step
    fruitless = 0 if progressed else record.fruitless
    if record.wish is Wish.HOLD:
        return Held(now, "held on request", micro_batch_cap=_smaller(record, session))
    if session.outcome is Outcome.DIVERGED:
        return GaveUp(now, _with_tail(f"diverged: {session.message}", session))
    if session.outcome in (Outcome.DENIED, Outcome.REJECTED):  # the run is held when no other offer is left
        denied = Cooldown(session.order.platform, session.order.accelerator, None, session.message, since=now)
        return Requeued(now, session.message, fruitless, cooldown=denied)
    if session.outcome in NOT_COUNTED:
        return Requeued(now, session.message, fruitless, cooldown=_capacity_cooldown(record, session, now))
    if session.outcome is Outcome.OUT_OF_MEMORY:
        return _after_out_of_memory(record, session, now, progressed)
    if progressed or record.forgone or (session.outcome is Outcome.STOPPED and began_late(session)):
        return Requeued(now, session.message, fruitless)
    return _fruitless(record, session, now)


def cancelled(record: RunRecord, now: float) -> Cancelled:
    best = newest(record.accepted)
    return Cancelled(now, f"cancelled; newest checkpoint: {best.name if best else 'none'}")


def _completed(session: Session, step: int, any_checkpoint: bool) -> bool:
    """A platform's "complete" is a success only with our result and the checkpoint that it names, if it names
    one."""
    if session.outcome is not Outcome.COMPLETED or session.step is None:
        return session.outcome is Outcome.COMPLETED
    return any_checkpoint and step >= session.step


def _capacity_cooldown(record: RunRecord, session: Session, now: float) -> Cooldown:
    refused = session.outcome is Outcome.REFUSED
    return cooldown(record, session.order, now, session.message, session.until, refused=refused)


def cooldown(
    record: RunRecord,
    order: Order,
    now: float,
    reason: str,
    until: float | None = None,
    *,
    refused: bool = False,
) -> Cooldown:
    """The cooldown of the order's offer: longer with every strike, at least as long as the platform said, and
    then not much longer.

    `refused`: the platform gave a reason that may or may not pass. After REFUSALS_MAX of these in a row, the
    cooldown lasts until a person acts.
    """
    here = (order.platform, order.accelerator)
    before = next((c for c in record.cooldowns if (c.platform, c.accelerator) == here), None)
    strikes = 1 + (before.strikes if before is not None else 0)
    refusals = (1 + (before.refusals if before is not None else 0)) if refused else 0
    first, row = (REFUSED_SECONDS, refusals) if refused else (CAPACITY_SECONDS, strikes)
    longest = CAPACITY_SECONDS_MAX if until is None else DATED_SECONDS_MAX
    pause = min(first * 2.0 ** min(row - 1, 20), longest)
    end = max(until or 0.0, now + pause) if refusals < REFUSALS_MAX else None
    if end is None:
        reason = f"{reason} ({refusals} times in a row)"
    began_at = _row_began(before, now)
    return Cooldown(*here, end, reason, strikes, since=now, refusals=refusals, began_at=began_at)


def _row_began(before: Cooldown | None, now: float) -> float:
    """When the offer first refused this run in a row. A new row begins if it was not asked for long."""
    if before is None or before.until is None or now - before.until > before.until - before.since:
        return now
    return before.began_at or before.since


def _after_out_of_memory(record: RunRecord, session: Session, now: float, progressed: bool) -> Requeued:
    order, fruitless = session.order, 0 if progressed else record.fruitless
    failed = f"out of memory with micro-batch {order.micro_batch} on {order.accelerator}"
    smaller = _smaller(record, session)
    if smaller is not None:
        reason = f"{failed}; the next session uses {smaller[1]}"
        return Requeued(now, reason, fruitless, micro_batch_cap=smaller)
    reason = f"{failed}, and no smaller one is valid"
    if progressed:  # a memory leak: from the newest checkpoint it gets further
        return Requeued(now, reason, 0)
    never = Cooldown(order.platform, order.accelerator, None, reason, since=now)
    return Requeued(now, reason, fruitless, cooldown=never)


def _smaller(record: RunRecord, session: Session) -> tuple[str, int] | None:
    """The next smaller micro-batch after an out-of-memory; None for another outcome, or if none is valid."""
    order = session.order
    if session.outcome is not Outcome.OUT_OF_MEMORY:
        return None
    smaller = record.job.work.next_micro_batch(order.micro_batch, order.devices)
    return None if smaller is None else (order.accelerator, smaller)


def _fruitless(record: RunRecord, session: Session, now: float) -> Requeued | GaveUp | Held:
    count = record.fruitless + 1
    allowed = record.job.without_progress
    if _NO_ROOM.search(session.message) and not session.hopeless:  # until somebody frees some
        do = "remove some files" if "inodes" in session.message else "free some space"
        return Held(now, f"{session.message}; {do} on {session.order.platform}, then {RELEASE}")
    if session.hopeless and not any(each.ref.generation for each in record.accepted):
        return GaveUp(
            now, _with_tail(f"{session.message}; it would fail again, so it is not repeated", session)
        )
    if session.crash is not None and session.crash == record.crash:
        at = f" at step {session.crash[1]:,}" if session.crash[1] else ""
        reason = f"the same error{at} as in the session before, so it is not repeated: {session.message}"
        return GaveUp(now, _with_tail(reason, session))
    if count >= allowed and session.outcome in PLATFORMS_DOING:
        stuck = f"no newer checkpoint in {count_text(count, 'session')} in a row"
        return Held(now, f"{stuck}; the last one: {session.message}; {RELEASE}")
    if count >= allowed:
        sessions = "session" if count == 1 else "sessions in a row"
        stalled = f"no newer checkpoint in {count} {sessions} (retry.without_progress)"
        reason = f"{stalled}; the last one: {session.message}"
        return GaveUp(now, _with_tail(reason, session))
    pause = FRUITLESS_SECONDS * 2.0 ** min(count - 1, 10)
    reason = f"{session.message} ({count} of {allowed} without progress)"
    return Requeued(now, reason, count, cooldown=_elsewhere(session, now), until=now + pause)


def _elsewhere(session: Session, now: float) -> Cooldown | None:
    """What is missing on this platform need not be missing on those where the run has trained before."""
    if not session.hopeless:
        return None
    return Cooldown(session.order.platform, session.order.accelerator, None, session.message, since=now)


def _with_tail(reason: str, session: Session) -> str:
    return reason if not session.tail else f"{reason}\n{session.tail}"
