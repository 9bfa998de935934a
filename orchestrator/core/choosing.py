"""What the plan makes of the offers that are free now: start on one of them, or wait for a better one.

The router judges each offer as if the run stayed there. Here the run's best itinerary decides, in the place
that the queue leaves it. Must never know other runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from orchestrator.core import itinerary as itineraries
from orchestrator.core.calendar import GAP_SECONDS_MIN, Opening
from orchestrator.core.itinerary import DONE, MAKES_ROOM, PROMISED, QUOTA, SOON_SECONDS, Way, fastest
from orchestrator.core.offer import Choice, Hop, Itinerary, Rejection, Route, until_time
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import date

TOLD_MAX = 8  # hops that a route tells, and the journal keeps
CLAIM_FACTOR = 1.5  # of what a session is expected to use of a quota; then it saves, and another one goes on
CLAIM_SECONDS_MIN = 1800.0  # less is not worth a session that turns out slower than expected
LATE_SECONDS = 60.0  # until an offer is looked at again that should be open by now
TURN_SECONDS = 3 * 3600.0  # after which a session without a limit makes room, if other runs wait
ALONE_SECONDS = 12 * 3600.0  # and if none does: one may come


def planned(
    record: RunRecord,
    found: Route,
    ways: Sequence[Way],
    openings: Sequence[Opening],
    others: int,
    *,
    now: float,
    done_steps: int,
) -> Route:
    """The route by the best itinerary over these ways. `found` is the one without it, which stays if the
    speed is only guessed. `others`: how many runs wait besides this one."""
    if not all(each.rate.known for each in ways):
        return making_room(record, found, openings, now)
    opens = {(each.platform, each.accelerator): each for each in openings}
    choices = [each for each in (found.chosen, *found.others) if each is not None]
    ways = _delayed(ways, opens, {_place(each) for each in choices}, now)
    best = itineraries.itinerary(record.job, ways, opens, now=now, done_steps=done_steps)
    if best is None or not best.hops:
        return found
    first, told = best.hops[0], replace(best, hops=best.hops[:TOLD_MAX])
    if first.start > now + SOON_SECONDS:
        waits = tuple(_waits(each, best) for each in choices)
        return replace(found, chosen=None, others=(), rejections=(*waits, *found.rejections), itinerary=told)
    chosen = next(each for each in choices if _place(each) == (first.platform, first.accelerator))
    stay = None if record.fruitless else _stay_seconds(record, chosen, first, ways, others)
    rest = tuple(each for each in choices if each is not chosen)
    return replace(found, chosen=replace(chosen, stay_seconds=stay), others=rest, itinerary=told)


def _delayed(
    ways: Sequence[Way], opens: Mapping[tuple[str, str], Opening], free: set[tuple[str, str]], now: float
) -> list[Way]:
    """The ways; those that should be open, but are not `free`, as if they opened a little later: a session
    there should have ended by now."""
    found = []
    for way in ways:
        opening = opens.get(way.place)
        late = opening is not None and opening.opens_at <= now + SOON_SECONDS and way.place not in free
        found.append(replace(way, not_before=max(way.not_before, now + LATE_SECONDS)) if late else way)
    return found


def making_room(record: RunRecord, found: Route, openings: Sequence[Opening], now: float) -> Route:
    """The route as it is, but its session ends when a more urgent run needs the slot. If that is almost now,
    it still gets the time of a first look at its speed: it may be what keeps the run from its place."""
    chosen = found.chosen
    if chosen is None or record.fruitless:
        return found
    opening = next((each for each in openings if (each.platform, each.accelerator) == _place(chosen)), None)
    if opening is None or (opening.until is None and opening.opens_at <= now + SOON_SECONDS):
        return found
    until = opening.until if opening.until is not None and opening.opens_at <= now + SOON_SECONDS else now
    return replace(found, chosen=replace(chosen, stay_seconds=max(GAP_SECONDS_MIN, until - now)))


def _place(choice: Choice) -> tuple[str, str]:
    return choice.offer.platform, choice.offer.accelerator


def _stay_seconds(
    record: RunRecord, chosen: Choice, first: Hop, ways: Sequence[Way], others: int
) -> float | None:
    """When the session makes room; None: when its platform ends it. A session that brought nothing is not
    cut short again."""
    length, traits = first.end - first.start, chosen.offer.traits
    limits = []
    if chosen.offer.quota is not None and first.why_it_ends != PROMISED:
        limits.append(max(CLAIM_SECONDS_MIN, CLAIM_FACTOR * length))
    elif first.why_it_ends in MAKES_ROOM:
        limits.append(length)
    if traits.session_seconds is None and chosen.offer.quota is None and traits.durable_mid_run:
        best = fastest(ways)  # another offer may open on which the run would be faster
        elsewhere = best is not None and best.place != _place(chosen)
        if others:
            limits.append(TURN_SECONDS)
        elif record.accepted or elsewhere:  # a run that never saved may save only at its end
            limits.append(ALONE_SECONDS)
    return min(limits, default=None)


def _waits(choice: Choice, best: Itinerary) -> Rejection:
    offer, first = choice.offer, best.hops[0]
    reason = (
        f"waits for {first.platform}/{first.accelerator}, which is expected to open at {date(first.start)}: "
        f"done at about {date(best.finish)} then, and at {date(choice.estimate.finish)} here alone"
    )
    return Rejection(offer.platform, offer.accelerator, reason, until_time(first.start))


# --- In words -------------------------------------------------------------------------------------------


def plan_text(route: Route, now: float) -> str:
    """`kaggle/T4x2 now until its quota is used up, then here/RTX3050: done at …; here/RTX3050 alone: …`.
    Empty if nothing was planned."""
    plan = route.itinerary
    if plan is None or not plan.hops:
        return ""
    stretches = [
        list(hops) for _, hops in groupby(plan.hops, key=lambda hop: (hop.platform, hop.accelerator))
    ]
    parts = []
    for number, hops in enumerate(stretches):
        first, last = hops[0], hops[-1]
        begins = "now" if first.start <= now + SOON_SECONDS else f"from {date(first.start)}"
        if number and first.start <= stretches[number - 1][-1].end + SOON_SECONDS:
            begins = ""
        words = (f"{first.platform}/{first.accelerator}", begins, _until_text(last))
        parts.append(" ".join(word for word in words if word))
    text = f"{', then '.join(parts)}: done at about {date(plan.finish)}"
    alone = _best_alone(
        route, None if len(stretches) > 1 else (plan.hops[0].platform, plan.hops[0].accelerator)
    )
    if alone is not None:
        text += f"; {'/'.join(_place(alone))} alone: {date(alone.estimate.finish)}"
    return text


def _until_text(hop: Hop) -> str:
    if hop.why_it_ends == QUOTA:
        return "until its quota is used up"
    if hop.why_it_ends == PROMISED:
        return f"until {date(hop.end)}, when a more urgent run needs it"
    return f"until {date(hop.end)}" if hop.why_it_ends != DONE else ""


def _best_alone(route: Route, besides: tuple[str, str] | None) -> Choice | None:
    """The earliest finish of staying on one offer that is free now."""
    choices = [each for each in (route.chosen, *route.others) if each is not None and _place(each) != besides]
    return min(choices, key=lambda each: each.estimate.finish, default=None)
