"""How a schedule limits when a run may run: whether its slice is over, and what of it is left for a session.

Pure. Reads the record only; who gives a run its slices is `orchestrator.core.schedule`.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.offer import UNDATED, Offer, Rejection, Route, until_time
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.wording import date, span

SESSION_SECONDS_MIN = 60.0  # of training; a shorter rest of a window is not worth a session
LATE_SHARE = 0.5  # a session that got less of its time than this is not counted
WHOLE_SHARE = 0.5  # a session with less of its platform's limit than this is no slice


def in_slices(record: RunRecord) -> bool:
    """Whether a schedule gives the run its time, so that it sleeps in between."""
    return record.slice is not None and not record.slice.gone


def is_over(record: RunRecord, now: float) -> bool:
    """Whether the window of the run's slice has closed. A slice without a window ends with a session."""
    return record.slice is not None and record.slice.until is not None and now >= record.slice.until


def ends_slice(record: RunRecord, session: Session) -> bool:
    """Whether this session, which is over, was the slice: there is no window, and it used its time."""
    return session.outcome is Outcome.STOPPED and is_slice(record, session)


def is_slice(record: RunRecord, session: Session) -> bool:
    """Whether the session is the whole slice: there is no window, and it was given the time that its platform
    allows. After one that had to make room early, or that its quota ended, the slice goes on."""
    if record.slice is None or record.slice.until is not None:
        return False
    budget, limit = session.order.budget_seconds, session.traits.session_seconds
    return budget is None or (limit is not None and budget >= WHOLE_SHARE * limit)


def closes(record: RunRecord) -> float | None:
    """When the window of the run's slice closes, if it has one."""
    return None if record.slice is None else record.slice.until


def sessions(record: RunRecord) -> int:
    """How many sessions the run takes before it sleeps: a slice without a window is one; 0: as many as it
    needs."""
    return int(record.slice is not None and record.slice.until is None)


def sleeping(record: RunRecord, until: float | None, why_no_more: str = "") -> str:
    """The reason of a run that sleeps."""
    if until is not None:
        return f"asleep until {date(until)}: schedule {record.schedule}"
    return f"asleep: schedule {record.schedule} {why_no_more or 'has no next fire yet'}"


def orphaned(record: RunRecord) -> str:
    """The reason of a run whose schedule was removed."""
    return (
        f"its schedule {record.schedule} was removed: `orchestrator release {record.run}` lets it run on "
        "without one, `orchestrator cancel` ends it"
    )


def leave_by(record: RunRecord, offer: Offer) -> float | None:
    """When a session on this offer must have left; None if no window limits it."""
    given = record.slice
    return None if given is None or given.until is None else given.until - offer.traits.wall_margin_seconds


def needed_seconds(offer: Offer) -> float:
    """What a session there must have of a window to be worth it."""
    traits = offer.traits
    return traits.setup_seconds + traits.wall_margin_seconds + offer.wait_seconds + SESSION_SECONDS_MIN


def worth(record: RunRecord, offers: Iterable[Offer], now: float) -> tuple[list[Offer], list[Rejection]]:
    """The offers on which what is left of the window is worth a session, and why not the others."""
    given = record.slice
    if given is None or given.until is None:
        return list(offers), []
    fit: list[Offer] = []
    short: list[Rejection] = []
    until = UNDATED if given.next_at is None else until_time(given.next_at)
    for offer in offers:
        if given.until - now >= needed_seconds(offer):
            fit.append(offer)
            continue
        left = span(max(0.0, given.until - now))
        reason = f"{left} of its window are left, too little for set-up, some training and a save"
        short.append(Rejection(offer.platform, offer.accelerator, reason, until))
    return fit, short


def asleep(record: RunRecord, offers: Iterable[Offer]) -> Route:
    """The route of a run that sleeps: every offer has to wait."""
    until = UNDATED if record.until is None else until_time(record.until)
    found = (Rejection(each.platform, each.accelerator, record.reason, until) for each in offers)
    return Route(None, (), tuple(found), ())


def began_late(session: Session) -> bool:
    """Whether the session's machine came so late that the window left it little time."""
    order, runs_since = session.order, session.runs_since
    if order.leave_by is None or order.budget_seconds is None:
        return False
    since = session.ended_at if runs_since is None else runs_since
    return since is not None and order.leave_by - since < LATE_SHARE * order.budget_seconds


def within(seconds: float | None, record: RunRecord, offer: Offer, now: float) -> float | None:
    """A session's budget, cut at the end of the window."""
    ends = leave_by(record, offer)
    if ends is None:
        return seconds
    left = max(0.0, ends - now)
    return left if seconds is None else min(seconds, left)
