"""How a run would go on one offer: its sessions one after the other, quota windows, and expected loss.

Assumptions that no platform documents are constants here. Decides nothing: `orchestrator.core.route` compares
the estimates. Must never know rules, slots or other offers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.core.job import Job, Work
from orchestrator.core.offer import Estimate, Hop, Offer, Quota, Uplink
from orchestrator.core.speed import Rate, samples_for, step_after

# 12 bytes a parameter, written at 1,316 MB/s: docs/references/training.md#size-and-speed-of-a-checkpoint
BYTES_PER_PARAMETER = 12.0
WRITE_BYTES_PER_SECOND = 1.3e9
SAVE_SECONDS_MIN = 1.0
# Assumed: 40 s to upload 963 MB.
UPLOAD_BYTES_PER_SECOND = 24e6
# Assumed (docs/references/training.md#checkpoint-interval): a free session is lost every 2 to 8 hours where
# sessions are evicted, and every 100 hours where they are not. The user's own machine fails once a month.
# What our own sessions met counts more: the assumption weighs as much as so many losses, or hours.
MTBF_OWNED_SECONDS = 30 * 86400.0
MTBF_LENT_SECONDS = 4 * 3600.0
MTBF_BATCH_SECONDS = 100 * 3600.0
ASSUMED_LOSSES = 0.5
ASSUMED_SECONDS_MAX = 6 * 3600.0
LOSS_SHARE_MAX = 1000.0  # of the training time: more is never, too
INTERVAL_SECONDS = 300.0  # the longest automatic one: docs/references/training.md#checkpoint-interval
INTERVAL_SECONDS_MIN = 60.0
SHIP_SECONDS = 60.0  # an uplink looks for a new checkpoint this often
UPLOAD_FACTOR = 1.2  # between the starts of two of its uploads
WINDOW_SECONDS = 7 * 86400.0  # of a quota without a known refresh
SESSIONS_MAX = 64  # simulated one by one; the rest is assumed to continue at the same pace


@dataclass(frozen=True)
class Terms:
    """The overhead and limits of one session, in seconds. `budget` is infinite without a session limit.
    `wait`: the time before its start, which costs no quota."""

    setup: float
    save: float
    budget: float
    step: float
    wait: float = 0.0

    @property
    def productive(self) -> float:
        """Seconds of training in the longest session."""
        return self.budget - self.setup - self.save


@dataclass(frozen=True)
class ExpectedSession:
    """A session that the estimate expects, in unix seconds. `productive`: its seconds of training.
    `by_quota`: the quota ends it, not the session limit."""

    start: float
    end: float
    productive: float
    by_quota: bool
    last: bool


def checkpoint_bytes(work: Work) -> float:
    """The expected size of one checkpoint; 0 if the job does not give its parameters."""
    return (work.parameters or 0.0) * BYTES_PER_PARAMETER


def save_seconds(job: Job, offer: Offer) -> float:
    """The expected time from a save request until the checkpoint is safe from the session's end."""
    size = checkpoint_bytes(job.work)
    write = max(SAVE_SECONDS_MIN, size / WRITE_BYTES_PER_SECOND)
    return write + (size / UPLOAD_BYTES_PER_SECOND if offer.traits.uplink is Uplink.STORE else 0.0)


def terms(job: Job, offer: Offer, step_seconds: float = 0.0) -> Terms:
    """The terms of a session that starts with the full quota of a window."""
    wall = offer.traits.session_seconds
    quota = None if offer.quota is None else quota_allowed(offer, offer.quota)
    limits = [limit for limit in (wall, quota) if limit is not None]
    budget = min(limits) - offer.traits.wall_margin_seconds if limits else math.inf
    return Terms(
        offer.traits.setup_seconds, save_seconds(job, offer), budget, step_seconds, offer.wait_seconds
    )


def quota_opens_at(offer: Offer, terms: Terms, need_seconds: float, now: float) -> float:
    """When the quota allows a session worth its set-up: `now`, or the next refresh, known or assumed."""
    if offer.quota is None:
        return now
    left = quota_left(offer, offer.quota, now)
    return now if _worthwhile(offer, terms, left, need_seconds) else next_refresh(offer.quota, now)


def _worthwhile(offer: Offer, terms: Terms, left: float, need: float) -> bool:
    productive = left - offer.traits.wall_margin_seconds - terms.setup - terms.save
    return productive > 0 and productive >= min(
        need, terms.productive, max(terms.step, terms.setup + terms.save)
    )


def rolled_over(offer: Offer, now: float) -> Offer:
    """The offer, with a full quota if its quota's window has ended since the platform reported it."""
    quota = offer.quota
    if quota is None or quota.refresh_at is None or quota.refresh_at > now:
        return offer
    left = quota_left(offer, quota, now)
    if left == math.inf:
        return offer
    return replace(offer, quota=replace(quota, left_seconds=left, refresh_at=next_refresh(quota, now)))


def quota_left(offer: Offer, quota: Quota, now: float) -> float:
    """What is left of the quota now, in seconds: all of it, if its window has ended since it was reported."""
    stale = quota.refresh_at is not None and quota.refresh_at <= now
    return quota_allowed(offer, quota) if stale else quota.left_seconds


def quota_allowed(offer: Offer, quota: Quota) -> float:
    """The seconds of a full window; if nobody says: what is left now, but at least one whole session."""
    if quota.allowed_seconds is not None:
        return quota.allowed_seconds
    return max(quota.left_seconds, offer.traits.session_seconds or 0.0) or math.inf


def next_refresh(quota: Quota, now: float) -> float:
    """When the next window begins; assumed, if nobody says."""
    window = quota.window_seconds or WINDOW_SECONDS
    refresh = now + window if quota.refresh_at is None else quota.refresh_at
    if refresh <= now:
        refresh += window * (math.floor((now - refresh) / window) + 1)
    return refresh


def expected_sessions(need: float, offer: Offer, terms: Terms, now: float) -> Iterator[ExpectedSession]:
    """The sessions that `need` seconds of training take, one after the other, starting at `now`.

    Needs `terms.productive` > 0; yields until the training is done, without a limit.
    """
    margin, overhead = offer.traits.wall_margin_seconds, terms.setup + terms.save
    left = allowed = refresh = window = math.inf
    if offer.quota is not None:
        left, allowed = quota_left(offer, offer.quota, now), quota_allowed(offer, offer.quota)
        refresh, window = next_refresh(offer.quota, now), offer.quota.window_seconds or WINDOW_SECONDS
    time = now
    while need > 0:
        if not _worthwhile(offer, terms, left, need):
            time, left, refresh = max(time, refresh), allowed, refresh + window
        time += terms.wait
        if time >= refresh:
            left, refresh = allowed, refresh + window * (math.floor((time - refresh) / window) + 1)
        longest = min(terms.budget, left - margin) - overhead
        productive = min(need, longest)
        end = time + overhead + productive
        need = 0.0 if need <= longest else need - productive
        yield ExpectedSession(time, end, productive, by_quota=left - margin < terms.budget, last=need <= 0)
        left -= end - time
        if end >= refresh:
            left, refresh = allowed - (end - refresh), refresh + window
        time = end


def loss_seconds(job: Job, offer: Offer, terms: Terms, need: float) -> float:
    """The expected time for repeated training and set-ups because of lost sessions.

    Training is safe in stretches: between two checkpoints, or if the session is not durable, between its
    start and its end. A loss repeats the part of a stretch that was done, and a set-up. With a rate of losses
    h and a set-up of R seconds, a stretch of T seconds takes (e^(hT) - 1) · (1/h + R) on average
    (docs/references/training.md#checkpoint-interval). If T is far longer than sessions live, it never ends.
    """
    stretch, again = min(need, terms.productive), terms.setup
    kept = kept_seconds(job, offer) if offer.traits.durable_mid_run else math.inf
    if kept < stretch:
        stretch, again = kept, terms.setup + terms.save
    if stretch <= 0:
        return 0.0
    failure = mean_time_to_failure(offer)
    taken = math.expm1(min(stretch / failure, 100.0)) * (failure + again)
    return need * min(max(0.0, taken / stretch - 1.0), LOSS_SHARE_MAX)


def mean_time_to_failure(offer: Offer) -> float:
    """For how many seconds a session runs on average until its platform takes it away.

    The rate of losses is the mean of a Gamma distribution: an assumption about the kind of platform, and the
    lifetimes of our own sessions there. Platforms that hand over what a session left run it as a batch job,
    and do not evict it.
    """
    traits, lived = offer.traits, offer.lifetimes
    batch = traits.hands_over or not traits.durable_mid_run
    lent = MTBF_BATCH_SECONDS if batch else MTBF_LENT_SECONDS
    assumed = MTBF_OWNED_SECONDS if traits.owned else lent
    if lived is None:
        return assumed
    weight = min(ASSUMED_LOSSES * assumed, ASSUMED_SECONDS_MAX)
    return (weight + lived.seconds) / (weight / assumed + lived.lost)


def interval_seconds(job: Job, offer: Offer) -> float:
    """How often a session is expected to save, by the rule of `orchestrator.agent.plan`: it measures what a
    save costs, which is assumed here. At most, if nothing was measured on the offer."""
    if job.checkpoint.interval_seconds is not None:
        return job.checkpoint.interval_seconds
    if offer.lifetimes is None:
        return INTERVAL_SECONDS
    cost = max(SAVE_SECONDS_MIN, checkpoint_bytes(job.work) / WRITE_BYTES_PER_SECOND)
    optimum = math.sqrt(2.0 * cost * mean_time_to_failure(offer))
    return max(INTERVAL_SECONDS_MIN, min(optimum, INTERVAL_SECONDS))


def kept_seconds(job: Job, offer: Offer) -> float:
    """How often the work of a durable session becomes safe from its loss: with every checkpoint, or with each
    one that its uplink ships. An uplink ships the newest, and holds back when uploads take long."""
    interval = interval_seconds(job, offer)
    if offer.traits.uplink is not Uplink.STORE:
        return interval
    upload = checkpoint_bytes(job.work) / UPLOAD_BYTES_PER_SECOND
    return max(interval, UPLOAD_FACTOR * upload) + SHIP_SECONDS


def estimate(job: Job, offer: Offer, rate: Rate, terms: Terms, *, now: float, done_steps: int) -> Estimate:
    """When the rest of the job would finish if it started now and ran only on this offer."""
    samples = samples_for(job.work, done_steps, job.work.total)
    need = samples / rate.samples_per_second
    loss = loss_seconds(job, offer, terms, need)
    finish, sessions, used = _simulate(need + loss, offer, terms, now)
    best = samples / rate.high
    worst = samples / rate.low
    return Estimate(
        start=now,
        finish=finish,
        finish_low=_simulate(best + loss * best / need, offer, terms, now)[0] if need else now,
        finish_high=_simulate(worst + loss * worst / need, offer, terms, now)[0] if need else now,
        sessions=sessions,
        quota_seconds=used if offer.quota is not None else 0.0,
        expected_loss_seconds=loss,
        samples_per_second=rate.samples_per_second,
        rate_source=rate.source,
        quota_units=offer.quota.units(used) if offer.quota is not None else 0.0,
    )


def _simulate(need: float, offer: Offer, terms: Terms, now: float) -> tuple[float, int, float]:
    """(finish, sessions, seconds in sessions)."""
    end, sessions, used, done = now, 0, 0.0, 0.0
    for session in islice(expected_sessions(need, offer, terms, now), SESSIONS_MAX):
        end, sessions = session.end, sessions + 1
        used += session.end - session.start
        done += session.productive
        if session.last:
            return end, sessions, used
    more = need / done if done else 1.0
    return now + (end - now) * more, math.ceil(sessions * more), used * more


def hops(
    job: Job, offer: Offer, rate: Rate, terms: Terms, *, now: float, done_steps: int, limit: int = 1000
) -> Iterator[Hop]:
    """A hop for each session of the estimate, with its steps. The expected loss slows all of them equally."""
    need = samples_for(job.work, done_steps, job.work.total) / rate.samples_per_second
    slowdown = 1 + loss_seconds(job, offer, terms, need) / need if need else 1.0
    trained, step = 0.0, done_steps
    expected = expected_sessions(need * slowdown, offer, terms, now)
    for session in islice(expected, limit):
        trained += session.productive / slowdown
        reached = job.work.total if session.last else step_after(job.work, done_steps, trained, rate)
        used = 0.0 if offer.quota is None else session.end - session.start
        units = 0.0 if offer.quota is None else offer.quota.units(used)
        why = "done" if session.last else "quota used up" if session.by_quota else "session limit"
        yield Hop(offer.platform, offer.accelerator, session.start, session.end, step, reached, used, why,
                  units)  # fmt: skip
        step = reached
