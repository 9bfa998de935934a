"""Where a job should run now: job × offers × rules × speeds × now → Route.

Every offer is chosen, possible, or rejected with a reason and the time until which the reason holds. Knows
platforms only by their offers. Reasons that never change come before reasons of the moment, and cheap checks
come before estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.core import rules as ruling
from orchestrator.core import slices
from orchestrator.core.calendar import Opening
from orchestrator.core.choosing import making_room, planned
from orchestrator.core.closing import CAPACITY_SECONDS_MAX
from orchestrator.core.estimate import estimate, hops, quota_opens_at, terms
from orchestrator.core.event import Cooldown
from orchestrator.core.fit import Fit, fit_on, may_use, too_short
from orchestrator.core.itinerary import PREFERRED_WITHIN, Way, way
from orchestrator.core.job import Job, Mode, Prefer, Rule
from orchestrator.core.offer import (
    NEVER,
    SLOT,
    UNDATED,
    Choice,
    Estimate,
    Hop,
    Offer,
    Rejection,
    Route,
    Unavailable,
    Until,
    UntilKind,
    until_human,
    until_time,
)
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.pause import pausing
from orchestrator.core.profiles import profile_of
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Measurement, rate, seconds_for, step_seconds
from orchestrator.core.wording import date, quota_text, span

LONG_OUTAGE_SECONDS = 6 * 3600.0  # after which an offer is no longer expected back at the next try
_OTHER_STORE = ("orchestrator init --help",)  # commands that add one


class Verdict(StrEnum):
    """What a submit should do with a route."""

    OK = "ok"  # launch
    TIME = "time"  # queue it, with the date
    SLOT = "slot"  # queue it: a session of ours must end first
    START = "start"  # queue it, and tell the person what to start
    HUMAN = "human"  # launch nothing; say what a person can do
    NEVER = "never"  # refuse it


@dataclass(frozen=True)
class Case:
    """All that a route depends on besides the run and the time; journalled, so that it can be judged again.

    `usage` counts our sessions per (platform, accelerator). `silent` are the rejections of platforms that
    offer nothing now because they did not answer. `unreachable`: platform, home store, and why sessions there
    do not reach it; "" is the home store of new runs. `openings`: what more urgent runs leave for this one;
    empty: the run is judged as if it were alone, on what is free now. `others`: runs that wait behind it.
    """

    offers: tuple[Offer, ...] = ()
    rules: tuple[Rule, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    usage: tuple[tuple[str, str, int], ...] = ()
    utc_offset_seconds: float = 0.0
    thorough: bool = False
    silent: tuple[Rejection, ...] = ()
    unreachable: tuple[tuple[str, str, str], ...] = ()
    openings: tuple[Opening, ...] = ()
    others: int = 0


@dataclass(frozen=True, slots=True)
class _Question:
    """One question to the router: everything that is the same for every offer."""

    job: Job
    now: float
    rules: tuple[Rule, ...]
    measurements: Sequence[Measurement]
    usage: Mapping[tuple[str, str], int]
    cooldowns: Mapping[tuple[str, str], Cooldown]
    micro_batch_caps: Mapping[str, int]
    done_steps: int
    utc_offset_seconds: float
    allow_over_horizon: bool
    thorough: bool
    rules_need_hours: bool


@dataclass(frozen=True, slots=True)
class _Candidate:
    choice: Choice
    rank: int
    quota_opens_at: float


def judge(record: RunRecord, case: Case, now: float) -> Route:
    """Where the run should go now."""
    if record.asleep:
        return slices.asleep(record, case.offers)
    offers, short = slices.worth(record, case.offers, now)
    case = replace(case, offers=tuple(offers))
    asked = _asked(record, case, now)
    found, ways = _judged(asked, _reachable(record, case))
    if record.job.route.prefer is Prefer.CHEAPEST:
        found = making_room(record, found, case.openings, now)
    elif case.openings:
        found = planned(record, found, ways, case.openings, case.others, now=now, done_steps=asked.done_steps)
    silent = (each for each in case.silent if may_use(record.job, each.platform))
    return replace(found, rejections=(*found.rejections, *short, *silent))


def ways(record: RunRecord, case: Case, now: float) -> tuple[Way, ...]:
    """How the run would go on each offer that is or will be open to it. Cheap: judges nothing that needs a
    whole estimate."""
    asked, found = _asked(record, case, now), []
    for offer in _reachable(record, case):
        fit = fit_on(asked.job, offer, asked.micro_batch_caps)
        if isinstance(fit, str):
            continue
        there = _way(asked, offer, fit, _busy(asked, offer, slots=False))
        if there is not None and not _hopeless(asked, there):
            found.append(there)
    return tuple(found)


def _hopeless(asked: _Question, there: Way) -> bool:
    """Whether the router rejects the offer for good, as far as that shows without a whole estimate."""
    job = asked.job
    if not there.rate.known or asked.done_steps >= job.work.total:
        return False
    session = replace(there.fit.terms, step=step_seconds(job.work, asked.done_steps, there.rate))
    if session.productive < session.step:
        return True
    takes = there.overhead + there.need
    return takes > job.route.finish_within_seconds and not asked.allow_over_horizon


def _way(asked: _Question, offer: Offer, fit: Fit, against: Rejection | None) -> Way | None:
    """How the run would go there, in spite of a reason that time ends; None if it does not."""
    not_before = 0.0
    if against is not None and against.until.kind is not UntilKind.SLOT:
        if against.until.kind is not UntilKind.TIME or against.until.at is None:
            return None
        not_before = against.until.at
    cooldown = asked.cooldowns.get((offer.platform, offer.accelerator))
    if cooldown is not None and cooldown.until is not None:
        not_before = max(not_before, _recovers_at(cooldown, cooldown.until))
    expected = rate(asked.job.work, fit.profile, fit.row, asked.measurements, micro_batch=fit.micro_batch)
    there = way(asked.job, offer, fit, expected, asked.done_steps, not_before)
    if not asked.rules:
        return there
    said = ruling.consult(asked.rules, offer, there.need / 3600)
    return None if said.forbidden is not None else replace(there, rank=said.rank)


def _recovers_at(cooldown: Cooldown, until: float) -> float:
    """When a session is expected to start there: when it is next tried, which is soon in a short outage. One
    that has lasted long lasts as long again. When a refusal without a known reason passes, nobody knows."""
    if cooldown.refusals:
        return until + CAPACITY_SECONDS_MAX
    lasted = cooldown.since - cooldown.began_at if cooldown.began_at else 0.0
    return max(until, cooldown.since + lasted) if lasted >= LONG_OUTAGE_SECONDS else until


def _reachable(record: RunRecord, case: Case) -> Sequence[Offer]:
    reasons = {platform: why for platform, store, why in case.unreachable if store == record.store}
    return [_reached(each, reasons.get(each.platform)) for each in case.offers] if reasons else case.offers


def _asked(record: RunRecord, case: Case, now: float) -> _Question:
    accepted = max((c.ref.step for c in record.accepted), default=0)
    return _question(
        record.job,
        now=now,
        rules=case.rules,
        measurements=case.measurements,
        usage={(platform, accelerator): count for platform, accelerator, count in case.usage},
        cooldowns=record.cooldowns,
        micro_batch_caps=dict(record.micro_batch_caps),
        done_steps=accepted,
        utc_offset_seconds=case.utc_offset_seconds,
        allow_over_horizon=accepted > 0 or _grows(record.job),
        thorough=case.thorough,
    )


def _grows(job: Job) -> bool:
    """Whether its schedule continues it in slices: the user has said when it runs, so its end is late by
    design."""
    return job.schedule is not None and job.schedule.mode is Mode.CONTINUE


def _reached(offer: Offer, why: str | None) -> Offer:
    """The offer, closed if its sessions do not reach the run's home store."""
    if why is None or (offer.unavailable is not None and offer.unavailable.until.kind is UntilKind.NEVER):
        return offer
    return replace(offer, unavailable=Unavailable(why, until_human(*_OTHER_STORE)))


def route(
    job: Job,
    offers: Iterable[Offer],
    *,
    now: float,
    rules: Sequence[Rule] = (),
    measurements: Sequence[Measurement] = (),
    usage: Mapping[tuple[str, str], int] | None = None,
    cooldowns: Sequence[Cooldown] = (),
    micro_batch_caps: Mapping[str, int] | None = None,
    done_steps: int = 0,
    utc_offset_seconds: float = 0.0,
    allow_over_horizon: bool = False,
    thorough: bool = False,
) -> Route:
    """Judges every offer and chooses.

    `rules` are the config's; the job's own and the defaults are added here. `usage` counts our sessions per
    (platform, accelerator), including stopping and stray ones. `measurements` are of this job.
    `allow_over_horizon` lifts route.finish_within, for runs that already made progress. An offer whose
    machine a person must start comes last.
    `thorough` also finds the reasons that never change behind a used slot, a cooldown or an outage. It costs
    an estimate per offer, and is for submit, plan and why.
    """
    asked = _question(
        job, now=now, rules=rules, measurements=measurements, usage=usage, cooldowns=cooldowns,
        micro_batch_caps=micro_batch_caps, done_steps=done_steps, utc_offset_seconds=utc_offset_seconds,
        allow_over_horizon=allow_over_horizon, thorough=thorough,
    )  # fmt: skip
    return _judged(asked, offers)[0]


def _question(
    job: Job,
    *,
    now: float,
    rules: Sequence[Rule],
    measurements: Sequence[Measurement],
    usage: Mapping[tuple[str, str], int] | None,
    cooldowns: Sequence[Cooldown],
    micro_batch_caps: Mapping[str, int] | None,
    done_steps: int,
    utc_offset_seconds: float,
    allow_over_horizon: bool,
    thorough: bool,
) -> _Question:
    in_force = ruling.in_force(job, rules, now=now, utc_offset_seconds=utc_offset_seconds)
    return _Question(
        job=job,
        now=now,
        rules=in_force,
        measurements=measurements,
        usage=usage or {},
        cooldowns=_by_offer(cooldowns, now),
        micro_batch_caps=micro_batch_caps or {},
        done_steps=min(done_steps, job.work.total),
        utc_offset_seconds=utc_offset_seconds,
        allow_over_horizon=allow_over_horizon,
        thorough=thorough,
        rules_need_hours=ruling.asks_for_hours(in_force),
    )


def _judged(asked: _Question, offers: Iterable[Offer]) -> tuple[Route, list[Way]]:
    """The answer for the offers as they are now, and how the run would go on each that is or will be open."""
    candidates: list[_Candidate] = []
    rejections: list[Rejection] = []
    unfit: list[Rejection] = []  # listed last: nobody can do anything about them
    found: list[Way] = []
    for offer in offers:
        fit = fit_on(asked.job, offer, asked.micro_batch_caps)
        if isinstance(fit, str):
            unfit.append(_reject(offer, fit, NEVER))
            continue
        judged = _judge(asked, offer, fit)
        if isinstance(judged, Rejection):
            rejections.append(judged)
        else:
            candidates.append(judged)
        there = _way(asked, offer, fit, judged if isinstance(judged, Rejection) else None)
        if there is not None:
            found.append(there)
    choices = _ordered(asked.job, candidates, asked.now)
    route = Route(
        chosen=choices[0] if choices else None,
        others=tuple(choices[1:]),
        rejections=(*rejections, *unfit),
        rules=tuple(ruling.describe(rule) for rule in asked.rules),
    )
    return route, found


def _by_offer(cooldowns: Sequence[Cooldown], now: float) -> dict[tuple[str, str], Cooldown]:
    # If an offer has several, the longest counts.
    lasting = [c for c in cooldowns if pausing(now, c.since, c.until)]
    lasting.sort(key=lambda c: math.inf if c.until is None else c.until)
    return {(c.platform, c.accelerator): c for c in lasting}


def _judge(asked: _Question, offer: Offer, fit: Fit) -> _Candidate | Rejection:
    if not asked.thorough and (busy := _busy(asked, offer)):
        return busy
    candidate = _estimated(asked, offer, fit)
    if isinstance(candidate, Rejection):
        return candidate
    if asked.thorough and (busy := _busy(asked, offer)):
        return busy
    return candidate if candidate.quota_opens_at <= asked.now else _out_of_quota(offer, candidate)


# --- What is wrong now ----------------------------------------------------------------------------------


def _busy(asked: _Question, offer: Offer, *, slots: bool = True) -> Rejection | None:
    key = offer.platform, offer.accelerator
    if offer.unavailable is not None:
        return _reject(offer, offer.unavailable.reason, offer.unavailable.until)
    if not asked.rules_need_hours:
        forbidden = ruling.consult(asked.rules, offer).forbidden
        if forbidden is not None:
            return _forbidden(asked, offer, forbidden)
    cooldown = asked.cooldowns.get(key)
    if cooldown is not None:
        if cooldown.until is None:
            return _reject(offer, f"given up for this run: {cooldown.reason}", NEVER)
        return _reject(offer, f"cooling down: {cooldown.reason}", until_time(cooldown.until))
    used = asked.usage.get(key, 0)
    if slots and used >= offer.slots:
        return _reject(offer, f"no free slot: {used} of {offer.slots} taken by our sessions", SLOT)
    return None


def _forbidden(asked: _Question, offer: Offer, rule: Rule) -> Rejection:
    until = ruling.objection_lasts(rule, offer, now=asked.now, utc_offset_seconds=asked.utc_offset_seconds)
    return _reject(offer, f"ruled out by the {ruling.describe(rule)}", until)


# --- What needs an estimate -----------------------------------------------------------------------------


def _estimated(asked: _Question, offer: Offer, fit: Fit) -> _Candidate | Rejection:
    job, now = asked.job, asked.now
    expected = rate(job.work, fit.profile, fit.row, asked.measurements, micro_batch=fit.micro_batch)
    session = replace(fit.terms, step=step_seconds(job.work, asked.done_steps, expected))
    if session.productive < session.step and expected.known and asked.done_steps < job.work.total:
        return _reject(offer, too_short(session), NEVER)
    figures = estimate(job, offer, expected, session, now=now, done_steps=asked.done_steps)
    hours = (figures.finish - now) / 3600
    said = ruling.consult(asked.rules, offer, hours)
    if said.forbidden is not None:
        return _forbidden(asked, offer, said.forbidden)
    # A guess is not a reason to refuse a job.
    if hours * 3600 > job.route.finish_within_seconds and expected.known and not asked.allow_over_horizon:
        return _reject(offer, _too_late(asked, figures), NEVER)
    choice = Choice(offer, fit.micro_batch, fit.accumulate, fit.row.devices, figures, said.preferred_by)
    need = seconds_for(job.work, asked.done_steps, job.work.total, expected)
    return _Candidate(choice, said.rank, quota_opens_at(offer, session, need, now))


def _too_late(asked: _Question, figures: Estimate) -> str:
    work, horizon = asked.job.work, asked.job.route.finish_within_seconds
    return (
        f"would finish in {span(figures.finish - asked.now)}, "
        f"later than route.finish_within allows ({span(horizon)}): "
        f"{work.total - asked.done_steps:,} steps at "
        f"{figures.samples_per_second / work.global_batch:.3g} steps/s ({figures.rate_source})"
    )


def _out_of_quota(offer: Offer, candidate: _Candidate) -> Rejection:
    assert offer.quota is not None
    known = offer.quota.refresh_at is not None
    opens = date(candidate.quota_opens_at)
    when = f"it is refreshed at {opens}" if known else "it is not known when the quota is refreshed"
    seconds = max(0.0, offer.quota.left_seconds)
    left = quota_text(seconds, offer.quota.units(seconds))
    return _reject(
        offer,
        f"{left} left, too little for set-up, some training and a save; {when}",
        until_time(candidate.quota_opens_at) if known else UNDATED,
    )


# --- The choice -----------------------------------------------------------------------------------------


def _ordered(job: Job, candidates: list[_Candidate], now: float) -> list[Choice]:
    """Best first: offers that need no person, then preferred ones that are not much later, then by finish and
    quota. Hours on different accelerators are compared by the units that they take."""
    unattended = [c for c in candidates if not c.choice.offer.traits.human_start] or candidates
    best = min((c.choice.estimate.finish for c in unattended), default=now)
    latest = now + (best - now) * PREFERRED_WITHIN

    def key(candidate: _Candidate) -> tuple[object, ...]:
        offer, figures = candidate.choice.offer, candidate.choice.estimate
        rank = candidate.rank if figures.finish <= latest else ruling.UNRANKED
        spent = (figures.quota_units, figures.quota_seconds)  # units are bought, and hours are given
        cost = (*spent, figures.finish) if job.route.prefer is Prefer.CHEAPEST else (figures.finish, *spent)
        return offer.traits.human_start, rank, cost, offer.platform, offer.accelerator

    return [candidate.choice for candidate in sorted(candidates, key=key)]


def _reject(offer: Offer, reason: str, until: Until) -> Rejection:
    return Rejection(offer.platform, offer.accelerator, reason, until)


# --- The answer, read -----------------------------------------------------------------------------------


def verdict(route: Route) -> Verdict:
    """What a submit should do. It waits for time or a slot before it asks a person, and for a start before a
    repair."""
    if route.chosen is not None:
        return Verdict.OK
    kinds = {rejection.until.kind for rejection in route.rejections}
    for kind, answer in (
        (UntilKind.SLOT, Verdict.SLOT),
        (UntilKind.TIME, Verdict.TIME),
        (UntilKind.START, Verdict.START),
        (UntilKind.HUMAN, Verdict.HUMAN),
    ):
        if kind in kinds:
            return answer
    return Verdict.NEVER


def opens_at(route: Route) -> float | None:
    """The earliest time at which a rejection ends by itself; None if no rejection has a known one."""
    times = [
        r.until.at for r in route.rejections if r.until.kind is UntilKind.TIME and r.until.at is not None
    ]
    return min(times, default=None)


def commands(route: Route) -> tuple[str, ...]:
    """What a person could do about the rejections, without repeats."""
    return tuple(dict.fromkeys(command for r in route.rejections for command in r.until.commands))


def plan(
    job: Job,
    route: Route,
    *,
    now: float,
    measurements: Sequence[Measurement] = (),
    done_steps: int = 0,
    limit: int = 1000,
) -> tuple[Hop, ...]:
    """The sessions that the job would need on the chosen offer, with dates, steps and quota.

    At most `limit` of them. The last one ends when the route's estimate does. Empty if nothing was chosen.
    """
    if route.chosen is None:
        return ()
    offer = route.chosen.offer
    row, profile = row_of(offer), profile_of(job, offer)
    assert row is not None
    assert profile is not None
    expected = rate(job.work, profile, row, measurements, micro_batch=route.chosen.micro_batch)
    session = terms(job, offer, step_seconds(job.work, done_steps, expected))
    return tuple(hops(job, offer, expected, session, now=now, done_steps=done_steps, limit=limit))
