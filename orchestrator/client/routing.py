"""Asks the platforms and the router for a user: where a run would go now, and where it was sent.

Launches and writes nothing. `core.route` decides; this module does not.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.client.wiring import Wired
from orchestrator.core import wire
from orchestrator.core.accelerators import catalogue
from orchestrator.core.calendar import Opening
from orchestrator.core.choosing import plan_text as plan_text  # for front ends
from orchestrator.core.estimate import interval_seconds, mean_time_to_failure
from orchestrator.core.job import Claim, Job
from orchestrator.core.layout import queued
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.core.offer import Choice, Route, Until, UntilKind
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.profiles import profile_key, profile_of
from orchestrator.core.queueing import lay_out
from orchestrator.core.route import ways
from orchestrator.core.run import CLOSED_SECONDS, RunRecord
from orchestrator.core.speed import Measurement, rate
from orchestrator.core.wording import count_text, date, span
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import Surveyed, survey
from orchestrator.ledger import Ledger, Stored
from orchestrator.platforms.platform import Platform

if TYPE_CHECKING:
    from orchestrator.client.client import Client

QUEUED_MAX = 1000  # waiting runs among which the place of one is looked for
SURVEY_SECONDS = 30.0  # after this a platform counts as not answering


@dataclass(frozen=True)
class Routing:
    """Where a run goes. `decided` is the newest route that the controller decided on, at `decided_at` (unix
    seconds). `now` is where it would go now; only for a run that waits for a place to run."""

    now: Route | None
    decided: Route | None
    decided_at: float | None

    @property
    def route(self) -> Route | None:
        """The present route, else the decided one; None before the first decision."""
        return self.now if self.now is not None else self.decided


@dataclass(frozen=True)
class JudgedClaim:
    """A profile's claim, compared with the physical bound.

    `plausible` says in words whether it is plausible, and `steps_per_second_max` is what the accelerator's
    peak allows at the job's batch. If the bound is unknown, they are empty and None.
    """

    accelerator: str
    claim: Claim
    plausible: str
    steps_per_second_max: float | None


def survey_all(wired: Wired) -> tuple[Surveyed, ...]:
    """Every configured platform's answer. Asks all at the same time, and does not wait for one that hangs."""
    platforms = wired.platforms()
    answers: queue.SimpleQueue[Surveyed] = queue.SimpleQueue()

    def ask(name: str, platform: Platform) -> None:
        answers.put(survey(name, platform))

    for name, platform in platforms.items():
        threading.Thread(target=ask, args=(name, platform), daemon=True).start()
    found: dict[str, Surveyed] = {}
    end = wired.clock.monotonic() + SURVEY_SECONDS
    while len(found) < len(platforms):
        try:
            answer = answers.get(timeout=max(0.0, end - wired.clock.monotonic()))
        except queue.Empty:
            break
        found[answer.platform] = answer
    silent = f"no answer within {span(SURVEY_SECONDS)}"
    return tuple(found.get(name) or Surveyed(name, trouble=silent) for name in platforms)


def market(wired: Wired, ledger: Ledger | None) -> Market:
    """The present offers, minus what our own sessions use of them."""
    found, asked_at = wired.market(), wired.clock.now()
    fill(found, survey_all(wired), ledger, asked_at, wired.clock.now())
    return found


def fill(
    market: Market, answers: Iterable[Surveyed], ledger: Ledger | None, asked_at: float, now: float
) -> None:
    """Gives a new market these answers, asked for at `asked_at`, and what our own sessions use of the offers.

    Sessions that ended a moment ago count, too, because the answers may not include them yet.
    """
    if ledger is not None:  # first: a market that has answers takes them for newer
        market.remember(ledger.closed_since(now - CLOSED_SECONDS))
    for answer in answers:
        market.take(answer, asked_at)
    if ledger is None:
        market.begin((), now)
        return
    for place in market.losses.wanted:
        market.losses.learn(place, ledger.lifetimes(*place))
    market.begin(ledger.live(), now)


def route_of(wired: Wired, ledger: Ledger | None, record: RunRecord) -> Route:
    """Where the run would go now, in the place that the queue leaves it, and every reason against every other
    offer."""
    return route_in(market(wired, ledger), ledger, record)


def route_in(market: Market, ledger: Ledger | None, record: RunRecord) -> Route:
    """As `route_of`, in a market that every platform has answered."""
    openings, others = _place(market, ledger, record)
    case = market.case(measured(ledger, record.job), openings, others)
    route = market.judged(record, replace(case, thorough=True))
    assert route is not None, "every platform has answered, if only with an error"
    return route


def _place(market: Market, ledger: Ledger | None, record: RunRecord) -> tuple[tuple[Opening, ...], int]:
    """What more urgent runs leave for this one, and how many runs wait besides it."""
    waiting = [record]
    if ledger is not None:
        names = [each.run for each in ledger.summaries({Phase.QUEUED}, limit=QUEUED_MAX)]
        found = ledger.records(name for name in names if name != record.run)
        waiting += [each for each in found if each.wish is None and not each.fault and not each.asleep]
    queue = [
        queued(each, ways(each, market.case(measured(ledger, each.job)), market.now), market.now)
        for each in waiting
    ]
    for place in lay_out(queue, market.calendar()):
        if place.waiting.record.run == record.run:
            return place.openings, len(waiting) - 1
    return (), len(waiting) - 1


def routing(client: Client, run: str) -> Routing:
    """See `Run.route`."""
    with client.ledgers.runs() as ledger:
        record = ledger.record(run)
        decided_at, decided = _journalled(ledger.history(run)) or (None, None)
        waits = record.phase is Phase.QUEUED
        waits = waits or (record.standing is Phase.HELD and record.wish is Wish.RELEASE)
        now = route_of(client.wired(), ledger, record) if waits else None
    return Routing(now, decided, decided_at)


def _journalled(history: Iterable[Stored]) -> tuple[float, Route] | None:
    """The newest route in the journal, with its time."""
    for stored in reversed(tuple(history)):
        given = stored.inputs.get("route") if isinstance(stored.inputs, dict) else None
        if given is None:
            continue
        try:
            return stored.event.at, wire.decode(Route, given)
        except ValueError:  # from an older version, or with numbers that are not finite
            continue
    return None


def measured(ledger: Ledger | None, job: Job) -> tuple[Measurement, ...]:
    return ledger.measurements(job.name) if ledger is not None else ()


def rate_is_known(choice: Choice, job: Job) -> bool:
    """Whether the estimate is based on a measurement, a claim or a bound."""
    profile, row = profile_of(job, choice.offer), row_of(choice.offer)
    if profile is None or row is None:
        return True
    prior = rate(job.work, profile, row, (), micro_batch=choice.micro_batch)
    return prior.known or choice.estimate.rate_source != prior.source


def profile_text(choice: Choice, job: Job) -> str:
    """`profile gpu>=24GB`: which of several profiles it uses, if that is not one of its own name."""
    key = profile_key(job, choice.offer)
    if key is None or key == choice.offer.accelerator or len(job.profiles) == 1:
        return ""
    return f"profile {key}"


def needs_torch(choice: Choice) -> str:
    """Which torch builds work there, if the usual ones do not; else empty."""
    row = row_of(choice.offer)
    return "" if row is None else row.needs_torch or ""


def losses_text(choice: Choice, job: Job) -> str:
    """`sessions on colab/T4 are lost about every 98 min (7 of the last 9); checkpoints about every 2 min`.
    Empty if no session there has ended yet."""
    offer, lived = choice.offer, choice.offer.lifetimes
    if lived is None:
        return ""
    where = f"{offer.platform}/{offer.accelerator}"
    if not lived.lost:
        if lived.sessions == 1:
            return f"the one session on {where} so far was not lost"
        return f"none of {count_text(lived.sessions, 'session')} on {where} was lost so far"
    every = span(mean_time_to_failure(offer))
    lost = f"sessions on {where} are lost about every {every} ({lived.lost} of the last {lived.sessions})"
    if not offer.traits.durable_mid_run:
        return lost
    return f"{lost}; checkpoints about every {span(interval_seconds(job, offer))}"


def claims(job: Job, measurements: tuple[Measurement, ...] = ()) -> Iterator[JudgedClaim]:
    """Every profile's claim, judged."""
    for name, profile in job.profiles:
        row = catalogue.get(name)
        if profile.claim is None or row is None or profile.precision not in row.peak_flops:
            continue
        found = rate(job.work, profile, row, measurements, micro_batch=profile.micro_batch)
        if found.claim is None or found.bound is None:
            yield JudgedClaim(name, profile.claim, "", None)
        else:
            yield JudgedClaim(name, profile.claim, found.claim.value, found.bound / job.work.global_batch)


def until_text(until: Until) -> str:
    """How long a rejection holds, in words."""
    match until.kind:
        case UntilKind.NEVER:
            return "permanently"
        case UntilKind.SLOT:
            return "until one of our sessions ends"
        case UntilKind.START:
            return "until a person starts it"
        case UntilKind.HUMAN:
            return "until a person acts"
        case UntilKind.TIME:
            return "for some time" if until.at is None else f"until {date(until.at)}"
