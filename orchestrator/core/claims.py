"""What our own sessions use of the offers: records × surveys → claims; offers × claims → what is left.

Pure, and based only on the ledger's records: every process that reads them and asks the platforms sees the
same offers. Must never know which offer is chosen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from orchestrator.core.estimate import rolled_over
from orchestrator.core.offer import Offer
from orchestrator.core.run import RunRecord
from orchestrator.core.session import ClosedSession, Session, Stray


class Claim(NamedTuple):
    """What one session uses of its offer: `seconds` of the quota that the platform has not counted yet, and a
    slot, unless the session is over. A tuple, because every tick makes one for every session."""

    session: str
    platform: str
    accelerator: str
    seconds: float
    slot: bool = True


def claims(
    records: Iterable[RunRecord], closed: Iterable[ClosedSession], as_of: Mapping[str, float], now: float
) -> tuple[Claim, ...]:
    """One claim for each session of these runs, and for each of the `closed` ones, that uses anything.

    `as_of`: when each platform was last asked, in unix seconds. It has counted what was used before that.
    """
    found: dict[str, Claim] = {}
    for record in records:
        if record.session is not None and record.holds_slot:
            claim = claim_of(record.session, as_of)
            found[claim.session] = claim
        for stray in record.strays:
            if not stray.ended:
                found[stray.session] = _of_stray(stray, as_of, now)
    for each in closed:
        seconds = uncounted(each, as_of.get(each.platform, now), now)
        if each.session not in found and seconds > 0.0:
            found[each.session] = Claim(each.session, each.platform, each.accelerator, seconds, slot=False)
    return tuple(found.values())


def claim_of(session: Session, as_of: Mapping[str, float]) -> Claim:
    """What the session may still use of the quota that was left when the platform was asked: the rest of its
    budget."""
    order, seconds, since = session.order, session.budget_seconds, session.runs_since
    if since is not None:
        seconds -= max(0.0, as_of.get(order.platform, since) - since)
    return Claim(order.session, order.platform, order.accelerator, max(0.0, seconds))


def _of_stray(stray: Stray, as_of: Mapping[str, float], now: float) -> Claim:
    """A session given up as lost may run until its session limit. It may also start late."""
    asked = as_of.get(stray.platform, now)
    seconds = 0.0 if stray.until is None else max(0.0, stray.until - asked)
    if stray.seconds_max is not None:
        seconds = min(seconds, stray.seconds_max)
    return Claim(stray.session, stray.platform, stray.accelerator, seconds)


def uncounted(closed: ClosedSession, as_of: float, now: float) -> float:
    """The most that a session which is over can have used after the platform was asked, in seconds."""
    gone_at = min(closed.gone_at, now)  # the clock may have been ahead
    return max(0.0, min(closed.seconds_max, gone_at - max(as_of, closed.since)))


def used(offers: Sequence[Offer], taken: Iterable[Claim]) -> dict[tuple[str, str], int]:
    """(platform, accelerator) → the slots our sessions use, there and on offers that share them."""
    alone: dict[tuple[str, str], int] = {}
    for claim in taken:
        if claim.slot:
            key = claim.platform, claim.accelerator
            alone[key] = alone.get(key, 0) + 1
    if not any(offer.slot_pool for offer in offers):
        return {(o.platform, o.accelerator): alone.get((o.platform, o.accelerator), 0) for o in offers}
    shared: dict[tuple[str, str], set[str]] = {}
    for offer in offers:
        if offer.slot_pool:
            shared.setdefault((offer.platform, offer.slot_pool), set()).add(offer.accelerator)
    found = {}
    for offer in offers:
        names = shared.get((offer.platform, offer.slot_pool), set()) | {offer.accelerator}
        found[offer.platform, offer.accelerator] = sum(alone.get((offer.platform, n), 0) for n in names)
    return found


def less(offers: Sequence[Offer], taken: Sequence[Claim], now: float) -> tuple[Offer, ...]:
    """The offers with our claims subtracted from their quotas; if a quota's window ended, the next begins."""
    quotas = {(o.platform, o.accelerator): o.quota for o in offers if o.quota is not None}
    claimed: dict[tuple[str, str], float] = {}
    for claim in taken:
        quota = quotas.get((claim.platform, claim.accelerator))
        if quota is not None:
            pool = claim.platform, quota.pool
            claimed[pool] = claimed.get(pool, 0.0) + quota.taken(claim.seconds)
    return tuple(_less(rolled_over(offer, now), claimed) for offer in offers)


def _less(offer: Offer, claimed: Mapping[tuple[str, str], float]) -> Offer:
    quota = offer.quota
    if quota is None:
        return offer
    ours = quota.lasts(claimed.get((offer.platform, quota.pool), 0.0))
    left = max(0.0, quota.left_seconds - ours)
    return replace(offer, quota=replace(quota, left_seconds=left))
