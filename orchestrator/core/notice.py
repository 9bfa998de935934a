"""Which events somebody should be told of, in which words, and which notifications that makes.

Pure: record before × event × record after × targets → rows. Decides the delivery ids: whoever decides again
gets the same ones, so nothing is told twice as something new. Must never know an address, nor how a message
is sent; how often it is tried, `orchestrator.core.delivery` decides.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from orchestrator.core import bounds
from orchestrator.core.checkpoint import newest
from orchestrator.core.event import (
    Began,
    Cancelled,
    Completed,
    Deferred,
    Event,
    Faulted,
    GaveUp,
    Held,
    Started,
)
from orchestrator.core.job import NoticeKind, Notify
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Offer, Quota
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import date, span, units_text

REASON_BYTES_MAX = 2048
ID_LENGTH = 32  # hexadecimal digits: 128 bits of a SHA-256
LOW_SHARE = 0.1  # of the allowed quota
LOW_SECONDS = 2 * 3600.0  # if the platform does not say how much is allowed
UNDATED_WINDOW_SECONDS = 7 * 86400.0  # of a quota without a refresh: it is told once in so long
_WINDOW_SECONDS = 3600.0  # refresh times are rounded to this: surveys differ by seconds
_Watched = Completed | GaveUp | Cancelled | Held | Faulted | Deferred | Began | Started


@dataclass(frozen=True)
class Notice:
    """One thing that happened at `at` (unix seconds), as the ledger keeps it.

    `what`: a sentence about it. `advice`: what a person can do next. `reason`: why, often in the words of
    a platform or session: cut here, and made harmless before it is sent. `step` of `steps` is the
    newest accepted checkpoint's. Fields that do not apply are empty or None.
    """

    kind: NoticeKind
    at: float
    what: str
    advice: str = ""
    reason: str = ""
    run: str = ""
    job: str = ""
    platform: str = ""
    accelerator: str = ""
    session: str = ""
    schedule: str = ""
    step: int | None = None
    steps: int | None = None


@dataclass(frozen=True)
class Target:
    """One of the config's targets: its name, the kinds it wants, and for which jobs (patterns of their names;
    empty: for all). The config knows its address."""

    name: str
    on: frozenset[NoticeKind]
    jobs: tuple[str, ...] = ()

    def wants(self, notice: Notice) -> bool:
        """Whether it is to be told. A quota concerns every job."""
        if notice.kind not in self.on:
            return False
        return not (self.jobs and notice.job) or any(fnmatch.fnmatchcase(notice.job, p) for p in self.jobs)


@dataclass(frozen=True)
class Outgoing:
    """A notification: a notice for one target. `target` is a name in the config, or a job's own
    reference to an address, `env:NAME`."""

    id: str
    target: str
    notice: Notice


# --- Of runs --------------------------------------------------------------------------------------------


def outgoing(
    before: RunRecord, event: Event, after: RunRecord, targets: Iterable[Target]
) -> tuple[Outgoing, ...]:
    """The rows that the event makes: one for each target that wants it."""
    notice = noticed(before, event, after)
    if notice is None:
        return ()
    return addressed(notice, targets, after.job.notify, after.run, str(after.version))


def noticed(before: RunRecord, event: Event, after: RunRecord) -> Notice | None:
    """What the event has to tell; None for most."""
    if not isinstance(event, _Watched):
        return None
    match event:
        case Completed():
            return _done(after, event)
        case GaveUp():
            return _of_run(NoticeKind.FAILED, after, event.at, "failed", event.reason,
                           f"`orchestrator logs {after.run}` shows its output, and `orchestrator release "
                           f"{after.run}` tries again")  # fmt: skip
        case Cancelled():
            return _of_run(NoticeKind.CANCELLED, after, event.at, "was cancelled", event.reason,
                           f"its checkpoints are kept: `orchestrator checkpoints {after.run}`")  # fmt: skip
        case Held() | Faulted():
            return _held(before, event, after)
        case Deferred():
            told = before.deferred and before.start == event.start
            return None if told or not event.start else _waiting(after, event)
        case Began() | Started():
            return _moved(before, event, after)


def _done(run: RunRecord, event: Completed) -> Notice:
    advice = f"`orchestrator pull {run.run}` fetches the result"
    return _of_run(NoticeKind.DONE, run, event.at, "is done", event.reason, advice)


def _held(before: RunRecord, event: Held | Faulted, after: RunRecord) -> Notice | None:
    """A run that is held already only changes its reason."""
    if before.standing is Phase.HELD or after.standing is not Phase.HELD:
        return None
    advice = f"`orchestrator why {after.run}` explains it, and `orchestrator release {after.run}` continues"
    if after.awaits is not None:
        advice += f"; it continues by itself once its session's {after.awaits.value} is there"
    return _of_run(NoticeKind.HELD, after, event.at, "is held", event.reason, advice)


def _waiting(run: RunRecord, event: Deferred) -> Notice:
    advice = f"`orchestrator why {run.run}` says how to start it"
    what = "waits for a machine that a person can start"
    return _of_run(NoticeKind.WAITING, run, event.at, what, event.start, advice)


def _moved(before: RunRecord, event: Began | Started, after: RunRecord) -> Notice | None:
    if before.place is None or before.place == after.place or after.place is None:
        return None
    what = f"moved from {'/'.join(before.place)} to {'/'.join(after.place)}"
    advice = f"nothing is to be done; `orchestrator why {after.run}` says why"
    return _of_run(NoticeKind.MOVED, after, event.at, what, "", advice)


def _of_run(kind: NoticeKind, run: RunRecord, at: float, what: str, reason: str, advice: str) -> Notice:
    accepted = newest(run.accepted)
    step = accepted.ref.step if accepted else None
    order = run.session.order if run.session is not None else None
    reason = bounds.text(reason, REASON_BYTES_MAX)
    platform, accelerator = (order.platform, order.accelerator) if order else run.place or ("", "")
    reached = "" if step is None else f" at step {step:,} of {run.job.work.total:,}"
    return Notice(
        kind, at, f"{run.run} {what}{reached}", advice, reason, run.run, run.job.name, platform, accelerator,
        order.session if order else "", run.schedule, step, run.job.work.total,
    )  # fmt: skip


# --- Of quotas and schedules ----------------------------------------------------------------------------


def quotas_low(offers: Sequence[Offer], now: float) -> Iterator[tuple[Notice, str]]:
    """Each quota in these offers that is low, and the window in which it is: the same pool is told once in a
    window. Offers of one platform and pool share a quota."""
    seen: set[tuple[str, str]] = set()
    for offer in offers:
        quota = offer.quota
        if quota is None or (offer.platform, quota.pool) in seen or not _is_low(quota):
            continue
        seen.add((offer.platform, quota.pool))
        yield _quota_low(offer, quota, now), _window(quota, now)


def _is_low(quota: Quota) -> bool:
    allowed = quota.allowed_seconds
    return quota.left_seconds < (LOW_SECONDS if allowed is None else LOW_SHARE * allowed)


def _quota_low(offer: Offer, quota: Quota, now: float) -> Notice:
    name = f"{offer.platform} {quota.pool}".strip()
    what = f"the quota of {name} is low: {_amount(quota, quota.left_seconds)} left"
    if quota.allowed_seconds is not None:
        what += f" of {_amount(quota, quota.allowed_seconds)}"
    if quota.refresh_at is not None and quota.refresh_at > now:
        what += f", until {date(quota.refresh_at)}"
    platform, accelerator = offer.platform, offer.accelerator
    advice = f"`orchestrator quota {platform}` shows what used it"
    return Notice(NoticeKind.QUOTA_LOW, now, what, advice, platform=platform, accelerator=accelerator)


def _amount(quota: Quota, seconds: float) -> str:
    left = max(0.0, seconds)
    return units_text(quota.units(left)) if quota.units_per_hour else span(left)


def _window(quota: Quota, now: float) -> str:
    if quota.refresh_at is None:
        return f"{quota.pool}@{now // UNDATED_WINDOW_SECONDS:.0f}"
    return f"{quota.pool}>{round(quota.refresh_at / _WINDOW_SECONDS)}"


def schedule_missed(schedule: str, job: str, planned: float, now: float, reason: str) -> Notice:
    """The schedule of this job did not start anything at the `planned` time."""
    what = f"the schedule {schedule} missed its start of {date(planned)}"
    advice = f"`orchestrator schedule show {schedule}` has its past and next starts"
    reason = bounds.text(reason, REASON_BYTES_MAX)
    return Notice(NoticeKind.SCHEDULE_MISSED, now, what, advice, reason, job=job, schedule=schedule)


# --- To whom --------------------------------------------------------------------------------------------


def addressed(
    notice: Notice, targets: Iterable[Target], own: Notify | None, *key: str
) -> tuple[Outgoing, ...]:
    """The notice for each target that wants it, and for the job's `own` address. `key` identifies what
    happened, such as a run and its event's number: the same key gives the same delivery ids."""
    names = [target.name for target in targets if target.wants(notice)]
    if own is not None and notice.kind in own.on:
        names.append(own.url)
    return tuple(Outgoing(delivery_id(notice.kind.value, *key, name), name, notice) for name in names)


def delivery_id(*key: str) -> str:
    return hashlib.sha256("\0".join(key).encode("utf-8", "replace")).hexdigest()[:ID_LENGTH]
