"""What is expected of every run, and of a job as if it were submitted now. Launches and writes nothing.

Asks every platform and reads the ledger and the controller's readings; `orchestrator.core.outlook` lays the
runs out. Must never record a run, print, or ask a platform twice.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client import deadlines, foreseen, live, planning, routing
from orchestrator.client.fetching_inputs import Fetching
from orchestrator.client.planning import Frozen, Plan
from orchestrator.client.wiring import Wired
from orchestrator.core.estimate import quota_allowed
from orchestrator.core.job import Job
from orchestrator.core.layout import Standing
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Choice, Route
from orchestrator.core.outlook import Expected, outlook
from orchestrator.core.pace import told
from orchestrator.core.prices import Prices
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Scene, Watched
from orchestrator.core.schedule import Schedule
from orchestrator.engine.coming import coming
from orchestrator.home import Folders
from orchestrator.ledger import Ledger

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.engine.market import Market

WAITING_MAX = 500  # runs of the queue that are laid out, the oldest first
WEEK_SECONDS = 7 * 86400.0


@dataclass(frozen=True)
class Fits:
    """How many runs of a job, from its beginning, fit into what a quota allows in `window_seconds`."""

    platform: str
    accelerator: str
    runs: int
    window_seconds: float
    quota_seconds: float
    quota_units: float = 0.0


@dataclass(frozen=True)
class Outlook:
    """What is expected at `at`, in unix seconds. `runs`: those that run, then the others as they start.

    `plan`: of the job that was asked about, whose run is the one of standing `asked`. `fits`: for each offer
    with a quota. `deadline`: the one that was asked about, of the
    job or else of every run that has none of its own. `timezone` is the config's, and `prices` are what
    it says. `left_out`: waiting runs that were too many to be laid out.
    """

    at: float
    runs: tuple[Expected, ...]
    timezone: str
    plan: Plan | None = None
    fits: tuple[Fits, ...] = ()
    deadline: float | None = None
    prices: Prices | None = None
    left_out: int = 0

    @property
    def asked(self) -> Expected | None:
        return next((each for each in self.runs if each.standing is Standing.ASKED), None)

    def cost(self, run: Expected) -> float | None:
        """What its sessions cost by the config's prices; None if there are none."""
        return None if self.prices is None else self.prices.cost(run.hops)


def find(
    client: Client,
    job: str | os.PathLike[str] | None,
    platforms: tuple[str, ...],
    deadline: str | float | None,
) -> Outlook:
    """See `orchestrator.client.ahead`."""
    wired, now = client.wired(), client.clock.now()
    zone = wired.config.timezone
    due = deadlines.due(deadline, now, zone)
    frozen = None if job is None else _frozen(wired, job, platforms, due)
    with client.ledgers.existing() as ledger:
        market = routing.market(wired, ledger)
        now = client.clock.now()
        running, waiting, left_out = _runs(ledger)
        asked = None if frozen is None else _asked(frozen.job, now, due)
        fires, unkept = coming(_schedules(ledger, wired, asked), now, "" if asked is None else asked.schedule)
        jobs = {each.job.name: each.job for each in (*running, *waiting)}
        jobs |= {each.job.name: each.job for each in fires}
        if asked is not None:
            jobs[asked.job.name] = asked.job
        scene = Scene(
            now, market.case(()), running, waiting, () if asked is None else (asked,), fires, unkept,
            watched=_watched(wired.folders, running, now),
            measurements={name: routing.measured(ledger, each) for name, each in jobs.items()},
        )  # fmt: skip
        runs = outlook(scene)
        if asked is None:
            runs = tuple(_due(each, due) for each in runs)
        plan: Plan | None = None
        fits: tuple[Fits, ...] = ()
        if frozen is not None and asked is not None:
            plan = _plan(wired, market, frozen, asked, ledger)
            fits = tuple(_fits(plan.route))
    return Outlook(now, runs, zone, plan, fits, due, wired.config.prices, left_out)


def _frozen(
    wired: Wired, job: str | os.PathLike[str], platforms: tuple[str, ...], due: float | None
) -> Frozen:
    parsed = planning.parse(wired, job, platforms)
    if due is not None and parsed.job.schedule is not None:
        raise deadlines.none_of_a_schedule(job)
    planning.check_secrets(wired, parsed.job)
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        return planning.freeze(parsed, Path(folder), Fetching(wired, brings=False))


def _plan(wired: Wired, market: Market, frozen: Frozen, asked: RunRecord, ledger: Ledger | None) -> Plan:
    route = market.route(asked, routing.measured(ledger, asked.job), thorough=True)
    assert route is not None, "every platform has answered, if only with an error"
    return planning.planned(wired, frozen, route, ledger, market.offers())


def _due(run: Expected, deadline: float | None) -> Expected:
    """A run without a deadline of its own is judged by the one that was asked about."""
    return run if run.deadline is not None or deadline is None else replace(run, deadline=deadline)


def _runs(ledger: Ledger | None) -> tuple[tuple[RunRecord, ...], tuple[RunRecord, ...], int]:
    """The runs with a session, those that wait, and how many more wait."""
    if ledger is None:
        return (), (), 0
    queued = [each for each in ledger.summaries({Phase.QUEUED}) if not each.unreadable]
    oldest = [each.run for each in reversed(queued)][:WAITING_MAX]
    running = tuple(each for each in ledger.live() if each.session is not None)
    waiting = tuple(each for each in ledger.records(oldest) if each.session is None)
    return running, waiting, len(queued) - len(oldest)


def _asked(job: Job, now: float, due: float | None) -> RunRecord:
    """The run that a submit would record, or that the schedule of its name would begin."""
    return RunRecord(job.name, job, now, deadline=due, schedule="" if job.schedule is None else job.name)


def _schedules(ledger: Ledger | None, wired: Wired, asked: RunRecord | None) -> tuple[Schedule, ...]:
    """All schedules, and the one that the job that was asked about would get, or edit."""
    found = {} if ledger is None else {each.name: each for each in ledger.schedules.all()}
    if asked is not None and asked.schedule:
        store, now = wired.config.home_store, asked.submitted_at
        new = Schedule(asked.schedule, asked.job, store, now, now)
        found[asked.schedule] = replace(found.get(asked.schedule, new), job=asked.job, ended="")
    return tuple(found.values())


def _watched(folders: Folders, running: Iterable[RunRecord], now: float) -> dict[str, Watched]:
    """What the controller has seen of the sessions; else what their newest readings say."""
    found = foreseen.watched(folders, now)
    for record in running:
        session, known = record.session, found.get(record.run)
        if session is None:
            continue
        known = known if known is not None and known.session == session.name else None
        if known is not None and known.pace is not None:
            continue
        reading = live.read(folders, record.run, session.name)
        status = None if reading is None else reading.observation.status
        if reading is not None and status is not None:
            pace = told(record.job.work, session, status, reading.at)
            turn = None if known is None else known.turn
            found[record.run] = Watched(record.run, session.name, pace, status, turn)
    return found


def _fits(route: Route) -> Iterable[Fits]:
    """For each offer with a quota that the job may use: by what a whole run would take of it there."""
    for choice in (route.chosen, *route.others):
        if choice is not None and (found := _fit(choice)) is not None:
            yield found


def _fit(choice: Choice) -> Fits | None:
    offer, takes = choice.offer, choice.estimate.quota_seconds
    quota = offer.quota
    if quota is None or takes <= 0:
        return None
    window = quota.window_seconds or WEEK_SECONDS
    allowed = quota_allowed(offer, quota)
    if window <= WEEK_SECONDS:
        allowed, window = allowed * WEEK_SECONDS / window, WEEK_SECONDS
    if not allowed < float("inf"):
        return None
    return Fits(offer.platform, offer.accelerator, int(allowed // takes), window, takes,
                choice.estimate.quota_units)  # fmt: skip
