"""When a run with a session will end, if it stays on the offer of that session.

Covers what lies between now and the end: the rest of this session, further sessions with their limits,
set-ups, saves and quota windows, and the phases of the work. Must never know other runs:
`orchestrator.core.outlook` lays out all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.core.estimate import SESSIONS_MAX, expected_sessions, loss_seconds, save_seconds, terms
from orchestrator.core.foreseen import Forecast
from orchestrator.core.job import Job, Work
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer
from orchestrator.core.order import AgentStatus, Order
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.pace import Pace
from orchestrator.core.profiles import profile_of
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.speed import (
    Evidence,
    Measurement,
    Rate,
    rate,
    relative_cost,
    samples_for,
    step_after,
    step_seconds,
)

RANGE_Z = 1.2816  # of a normal distribution: the range holds 8 times of 10
# What an agent leaves unused at the end of its budget, and how long it assumes a save and a publication take
# until it has measured them. As in `orchestrator.agent`; a test compares them.
LEAVE_MARGIN_SECONDS = 120.0
LEAVE_MARGIN_SHARE = 0.1
SAVE_GUESS_SECONDS = 3.0
SAVE_GUESS_SHARE = 0.1
NOW_SIGMA_MIN = 0.02  # of ln rate for the rest of a session, however steady it was; assumption
COST_SHARE = 0.3  # one standard deviation of what a session costs besides its training; assumption
TURN_SHARE = 0.5  # the same of the time between two sessions, which is a matter of polls
COST_SECONDS = 1.0
TURN_POLLS = 2.0  # of the platform, between a session's end and the next launch
TURN_SECONDS = 2.0  # for collecting and preparing in between; assumption


@dataclass(frozen=True)
class Costs:
    """What a session takes besides its training, in seconds. `setup`: from its launch until it trains at full
    speed. `leave`: from the request to leave, or the last step, until it is over. `turn`: from its end until
    the launch of the next one, or until the run is known to be done."""

    setup: float
    leave: float
    turn: float

    def within(self, z: float) -> Costs:
        """The same, `z` standard deviations away."""
        shares = (COST_SHARE, COST_SHARE, TURN_SHARE)
        costs = zip((self.setup, self.leave, self.turn), shares, strict=True)
        return Costs(*(max(0.0, each + z * (share * each + COST_SECONDS)) for each, share in costs))


@dataclass(frozen=True)
class Rest:
    """What remains of a session and of the job: the training stops at `until`, at `step`, with `samples`
    left (at the reference cost), and the session is over at `over_at`."""

    until: float
    over_at: float
    step: int
    samples: float


@dataclass(frozen=True)
class View:
    """What is known of a run's session: its pace (None: it does not train yet), the rate of later sessions on
    the same `offer`, and their costs."""

    job: Job
    session: Session
    offer: Offer
    pace: Pace | None
    later: Rate
    costs: Costs
    status: AgentStatus | None
    done_steps: int
    now: float

    def rest(self, slower: float = 0.0, dearer: float = 0.0) -> Rest:
        """The rest of the session, if its training is slower and its costs are higher by so many standard
        deviations."""
        work, costs, pace = self.job.work, self.costs.within(dearer), self.pace
        if pace is None:
            since = self.session.runs_since or self.session.launched_at or self.now + costs.turn
            speed, sigma = self.later.samples_per_second, self.later.sigma
            begins, step = max(self.now, since + costs.setup), self.done_steps
        else:
            speed, sigma, begins, step = pace.samples_per_second, pace.sigma, pace.at, pace.step
        speed *= math.exp(-slower * max(NOW_SIGMA_MIN, sigma))
        need = samples_for(work, step, work.total)
        leaves = leaves_at(self.session, self.status, costs.leave, self.now)
        longest = math.inf if leaves is None else max(0.0, leaves - begins)
        if need <= longest * speed:
            until = max(self.now, begins + need / speed)
            return Rest(until, until + costs.leave, work.total, 0.0)
        until = max(self.now, begins + longest)
        reached = step_after(work, step, longest, replace(self.later, samples_per_second=speed))
        return Rest(until, until + costs.leave, reached, need - longest * speed)

    def end(self, slower: float = 0.0, dearer: float = 0.0) -> tuple[float, int] | None:
        """(the run's end, sessions until then); None if later sessions would be too short to train."""
        rest, costs = self.rest(slower, dearer), self.costs.within(dearer)
        if rest.samples <= 0:
            return rest.over_at + costs.turn, 1
        offer = learned(self.job, self.offer, costs)
        session = terms(self.job, offer, step_seconds(self.job.work, rest.step, self.later))
        if session.productive <= 0:
            return None
        need = rest.samples / (self.later.samples_per_second * math.exp(-slower * self.later.sigma))
        need += loss_seconds(self.job, offer, session, need)
        end, more, trained = rest.over_at, 0, 0.0
        for each in islice(expected_sessions(need, offer, session, rest.over_at), SESSIONS_MAX):
            end, more, trained = each.end, more + 1, trained + each.productive
            if each.last:
                return end + costs.turn, 1 + more
        share = need / trained  # the others are assumed to continue at the same pace
        return rest.over_at + (end - rest.over_at) * share, 1 + math.ceil(more * share)


def forecast(view: View | None) -> Forecast | None:
    """The end of the run and its range; None if nothing is known of it. What the training's rate and the
    sessions' costs may add is independent of each other."""
    middle = None if view is None else view.end()
    if view is None or middle is None:
        return None
    end, sessions = middle
    early, late = (
        [(each := view.end(*ends)) and abs(each[0] - end) for ends in ((z, 0.0), (0.0, z))]
        for z in (-RANGE_Z, RANGE_Z)
    )
    latest = None if None in late else end + math.hypot(*filter(None, late))
    earliest = max(view.now, end - math.hypot(*filter(None, early)))
    return Forecast(view.now, end, earliest, latest, sessions)


def view(
    record: RunRecord, offer: Offer | None, measurements: Sequence[Measurement], now: float, *,
    pace: Pace | None = None, status: AgentStatus | None = None, turn: float | None = None,
) -> View | None:  # fmt: skip
    """What is known of the run's session; None if its speed is a guess, or if it depends on a person.

    `offer`: as the market has it, if it has it. `measurements` are of this job. `turn`: as measured between
    earlier sessions of the run, in seconds.
    """
    session = record.session
    waits = record.fault or record.wish is not None or record.phase is Phase.STOPPING
    if session is None or waits or session.outcome is not None:
        return None
    job, order = record.job, session.order
    place = offer or Offer(order.platform, order.accelerator, session.traits, own=order.own)
    later = _later(job, order, measurements, pace)
    if later is None:
        return None
    begun = session.launched_at
    setup = None if pace is None or begun is None else max(0.0, pace.full_speed_at - begun)
    leave = None if status is None else status.save_seconds
    return View(
        job, session, place, pace, later, costs(job, place, setup=setup, leave=leave, turn=turn), status,
        order.resume_step, now,
    )  # fmt: skip


def _later(job: Job, order: Order, measurements: Sequence[Measurement], mine: Pace | None) -> Rate | None:
    """The rate of later sessions there; None if it is a guess."""
    profile, row = profile_of(job, order), row_of(order)
    if profile is None or row is None or order.precision not in row.peak_flops:
        return None
    profile = replace(profile, precision=order.precision)
    known = [*measurements, *([] if mine is None else [measurement(job.work, order, mine)])]
    found = rate(job.work, profile, row, known, micro_batch=order.micro_batch)
    return None if found.evidence is Evidence.GUESS else found


def measurement(work: Work, order: Order, mine: Pace) -> Measurement:
    """The pace of a session as a measurement of its job."""
    speed = mine.samples_per_second / relative_cost(work, mine.step)
    return Measurement(order.accelerator, order.precision, order.micro_batch, speed, max(1.0, mine.seconds),
                       mine.at, mine.step, order.own)  # fmt: skip


# --- What a session costs -------------------------------------------------------------------------------


def costs(
    job: Job, offer: Offer, *, setup: float | None = None, leave: float | None = None,
    turn: float | None = None,
) -> Costs:  # fmt: skip
    """The costs of a session on the offer: those measured, else those assumed."""
    return Costs(
        offer.traits.setup_seconds if setup is None else setup,
        save_seconds(job, offer) if leave is None else leave,
        TURN_POLLS * offer.traits.poll_seconds + TURN_SECONDS if turn is None else turn,
    )


def learned(job: Job, offer: Offer, session: Costs) -> Offer:
    """The offer with these costs instead of its own, so that every estimate counts them."""
    traits, quota = offer.traits, offer.quota
    limits = [
        each for each in (traits.session_seconds, None if quota is None else quota.left_seconds) if each
    ]
    unused = margin(min(limits) - traits.wall_margin_seconds) if limits else 0.0
    unused += session.leave - save_seconds(job, offer)  # the estimate subtracts that one by itself
    wall_margin = max(0.0, traits.wall_margin_seconds + unused)
    traits = replace(traits, setup_seconds=session.setup, wall_margin_seconds=wall_margin)
    return replace(offer, traits=traits, wait_seconds=offer.wait_seconds + session.turn)


def margin(budget: float) -> float:
    """What an agent with this budget leaves unused at its end, in seconds."""
    return min(LEAVE_MARGIN_SECONDS, LEAVE_MARGIN_SHARE * max(0.0, budget))


def leaves_at(session: Session, status: AgentStatus | None, leave: float, now: float) -> float | None:
    """When the agent will ask the training to save and leave; None: nothing limits the session."""
    budget = session.order.budget_seconds
    if budget is None:
        return None
    if status is not None and status.deadline is not None and math.isfinite(status.deadline):
        # Both times are by the agent's clock, which may be wrong.
        ends = now + min(max(0.0, status.deadline - status.written_at), budget)
    else:
        began = session.runs_since or session.launched_at
        ends = (now if began is None else began) + budget
    known = status is not None and status.save_seconds is not None
    saving = leave if known else min(SAVE_GUESS_SECONDS, SAVE_GUESS_SHARE * budget)
    return max(now, ends - margin(budget) - saving)
