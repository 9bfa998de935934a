"""`quota`: each platform's window by its own word, what of it our runs used and for what, what runs and what
is planned. Asks platforms and the ledger; launches and writes nothing, and needs no controller."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.output import Output
from orchestrator.client.routing import survey_all
from orchestrator.core.assign import assign
from orchestrator.core.charges import Balance, Charge, Spent, balance, charges, total, window_began_at
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Quota, UntilKind
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.wording import date, span, unknown
from orchestrator.engine.market import Market, Surveyed
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger

ALIKE_SECONDS = 60.0  # what our count and the platform's may differ by before it is worth a word
BAR_CELLS = 40


@dataclass(frozen=True)
class Used:
    """A run's part of a window, in seconds; `sessions` that have a part in it."""

    run: str
    sessions: int
    seconds: float
    spent: Spent


@dataclass(frozen=True)
class Running:
    """A session that is charged now. `budget_seconds` is its order's; None: no wall. `given_up`: taken for
    lost, and perhaps still running."""

    run: str
    session: str
    accelerator: str
    seconds: float
    budget_seconds: float | None
    given_up: bool = False


@dataclass(frozen=True)
class Planned:
    """A queued run that would spend the quota: from now on by `quota_seconds`, or (None) it waits, until
    `at` where a time is known."""

    run: str
    platform: str
    accelerator: str
    quota_seconds: float | None
    at: float | None
    reason: str = ""


@dataclass(frozen=True)
class Pool:
    """One quota: the offers that share it, and everything there is to say of its present window.
    `free_seconds` is what is left once our running sessions have used their budgets up."""

    platform: str
    pool: str
    accelerators: tuple[str, ...]
    quota: Quota
    free_seconds: float
    balance: Balance
    runs: tuple[Used, ...] = ()
    running: tuple[Running, ...] = ()
    planned: tuple[Planned, ...] = ()


def quota(call: Call) -> int:
    """Shows the quotas of all platforms, or of the one named. The exit code is of a platform's trouble."""
    wired = call.wired()
    names = [each.name for each in wired.config.platforms]
    name = call.options.name
    if name is not None and name not in names:
        raise InputError(unknown(f"platform {name!r}", name, names))
    answers = survey_all(wired)
    ledger = call.home.existing_ledger()
    with contextlib.closing(ledger) if ledger is not None else contextlib.nullcontext():
        found = pools(answers, wired.market(), ledger, call.clock.now())
    asked = [answer for answer in answers if name in (None, answer.platform)]
    return tell(call, asked, [pool for pool in found if name in (None, pool.platform)])


# --- What there is to say -------------------------------------------------------------------------------


def pools(answers: Sequence[Surveyed], market: Market, ledger: Ledger | None, now: float) -> tuple[Pool, ...]:
    """Every quota that the platforms' answers speak of; `market` is a fresh one of the same platforms."""
    for answer in answers:
        market.take(answer, now)
    live = ledger.live() if ledger is not None else ()
    market.begin(live, now)
    shared = _shared(answers)
    free = {
        (offer.platform, offer.quota.pool): offer.quota.left_seconds
        for offer in market.offers()
        if offer.quota is not None
    }
    charged = _charged(ledger, [each for each, _ in shared.values()], now)
    planned = tuple(_planned(market, ledger, now)) if ledger is not None and shared else ()
    found = []
    for (platform, name), (each, accelerators) in shared.items():
        of_pool = {
            run: tuple(c for c in all_of if c.platform == platform and c.accelerator in accelerators)
            for run, all_of in charged.items()
        }
        found.append(
            Pool(
                platform,
                name,
                accelerators,
                each,
                free[platform, name],
                balance(each, (charge for of_run in of_pool.values() for charge in of_run)),
                tuple(_used(of_pool, window_began_at(each))),
                tuple(_running(live, of_pool, platform, accelerators)),
                tuple(_of_pool(planned, platform, accelerators)),
            )
        )
    return tuple(found)


def _shared(answers: Iterable[Surveyed]) -> dict[tuple[str, str], tuple[Quota, tuple[str, ...]]]:
    """(platform, pool) → its quota, and the accelerators that spend it."""
    found: dict[tuple[str, str], tuple[Quota, tuple[str, ...]]] = {}
    for offer in (offer for answer in answers for offer in answer.offers):
        if offer.quota is not None:
            key = offer.platform, offer.quota.pool
            _, others = found.get(key, (offer.quota, ()))
            found[key] = offer.quota, (*others, offer.accelerator)
    return found


def _charged(ledger: Ledger | None, quotas: Sequence[Quota], now: float) -> Mapping[str, tuple[Charge, ...]]:
    """What every run that may have a part in one of the windows was charged, in all its time."""
    if ledger is None or not quotas:
        return {}
    began = [window_began_at(each) for each in quotas]
    since = min((at for at in began if at is not None), default=None) if None not in began else None
    return {
        summary.run: _charges(ledger, summary.run, now)
        for summary in reversed(ledger.summaries())
        if since is None or summary.ended_at is None or summary.ended_at >= since
    }


def _charges(ledger: Ledger, run: str, now: float) -> tuple[Charge, ...]:
    """None of a run whose history this version cannot read: its sessions cannot be told from it."""
    history = ledger.history(run)
    return () if any(stored.trouble for stored in history) else charges((s.event for s in history), now)


def _used(charged: Mapping[str, tuple[Charge, ...]], since: float | None) -> Iterator[Used]:
    for run, all_of in charged.items():
        parts = [charge if since is None else charge.since(since) for charge in all_of]
        parts = [part for part in parts if part.seconds > 0]
        if parts:
            spent = total(parts)
            yield Used(run, len(parts), spent.seconds, spent)


def _running(
    live: Iterable[RunRecord],
    charged: Mapping[str, tuple[Charge, ...]],
    platform: str,
    accelerators: tuple[str, ...],
) -> Iterator[Running]:
    for record in live:
        order = record.session.order if record.session is not None else None
        for charge in charged.get(record.run, ()):
            if charge.running and order is not None and order.session == charge.session:
                yield Running(record.run, charge.session, charge.accelerator, charge.seconds,
                              order.budget_seconds)  # fmt: skip
        for stray in record.strays:
            if not stray.ended and stray.platform == platform and stray.accelerator in accelerators:
                seconds = sum(c.seconds for c in charged.get(record.run, ()) if c.session == stray.session)
                yield Running(record.run, stray.session, stray.accelerator, seconds, None, given_up=True)


def _planned(market: Market, ledger: Ledger, now: float) -> Iterator[Planned]:
    """Queued runs in order of submission, each with what those before it leave."""
    for summary in reversed(ledger.summaries([Phase.QUEUED])):
        record = ledger.record(summary.run)
        route = market.route(record, ledger.measurements(record.job.name))
        assert route is not None, "every platform has answered, if only with an error"
        if route.chosen is not None:
            offer = route.chosen.offer
            market.reserve(Session(assign(record, route.chosen), offer.traits, now))
            seconds = route.chosen.estimate.quota_seconds
            yield Planned(record.run, offer.platform, offer.accelerator, seconds, now)
            continue
        for rejection in route.rejections:
            if rejection.until.kind in (UntilKind.TIME, UntilKind.SLOT):
                yield Planned(record.run, rejection.platform, rejection.accelerator, None, rejection.until.at,
                              rejection.reason)  # fmt: skip


def _of_pool(planned: Iterable[Planned], platform: str, accelerators: tuple[str, ...]) -> Iterator[Planned]:
    """Of a run that waits for several of the pool's offers, the first."""
    told = set()
    for each in planned:
        if each.platform == platform and each.accelerator in accelerators and each.run not in told:
            told.add(each.run)
            yield each


# --- In words -------------------------------------------------------------------------------------------


def tell(call: Call, asked: Sequence[Surveyed], found: Sequence[Pool]) -> int:
    """Prints the quotas and what was wrong with the platforms that were asked; returns the exit code."""
    out, now = call.out, call.clock.now()
    troubled = [answer for answer in asked if answer.trouble is not None]
    with_quota = {pool.platform for pool in found} | {answer.platform for answer in troubled}
    without = [answer.platform for answer in asked if answer.platform not in with_quota]
    out.document({
        "quotas": found, "without_quota": without,
        "no_answer": [{"platform": a.platform, "trouble": a.trouble, "denied": a.denied} for a in troubled],
    })  # fmt: skip
    for number, pool in enumerate(found):
        if number:
            out.say()
        _show(out, pool, now)
    if without and not found and not troubled:
        names = ", ".join(without)
        out.say(f"{names} has no quota" if len(without) == 1 else f"no platform has a quota: {names}")
    if found and troubled:
        out.say()
    for answer in troubled:
        out.say(
            f"{out.paint(answer.platform, 'bold')}: no answer, so its quota is not known: {answer.trouble}"
        )
        if answer.denied:
            out.say(f"  this would help: {call.command('doctor', answer.platform)}")
    if any(answer.denied for answer in troubled):
        return Exit.HUMAN
    return Exit.UNAVAILABLE if troubled else Exit.OK


def _show(out: Output, pool: Pool, now: float) -> None:
    title = f"{pool.platform} {pool.pool}".strip()
    out.say(f"{out.paint(title, 'bold')}  {_bar(out, pool)}".rstrip())
    out.facts(_facts(pool, now))
    _show_runs(out, pool)
    if pool.running:
        out.say()
        headers = ("RUNS NOW", "ON", "TOOK", "BUDGET")
        out.table(headers, [_running_row(each) for each in pool.running], right=frozenset({2}))
    if pool.planned:
        out.say()
        headers = ("PLANNED", "ON", "QUOTA", "WHEN")
        out.table(headers, [_planned_row(each, now) for each in pool.planned], right=frozenset({2}))


def _bar(out: Output, pool: Pool) -> str:
    """The window at a glance: used by our runs, used by others, set aside for what runs, and free."""
    allowed, used = pool.quota.allowed_seconds, pool.balance.used
    if not allowed or used is None:
        return ""
    ours = min(used, pool.balance.ours.seconds)
    free = min(pool.free_seconds, pool.quota.left_seconds - pool.quota.reserved_seconds)
    ends = [min(1.0, max(0.0, at / allowed)) for at in (ours, used, allowed - max(0.0, free), allowed)]
    cells = [round(end * BAR_CELLS) for end in ends]
    marks = (("█", "cyan"), ("▓", "yellow"), ("▒", "cyan"), ("░", "dim"))
    parts = zip(marks, [0, *cells], cells, strict=False)
    return "".join(out.paint(mark * max(0, to - start), colour) for (mark, colour), start, to in parts)


def _facts(pool: Pool, now: float) -> list[tuple[str, str]]:
    given = pool.quota
    rows = [("for", ", ".join(pool.accelerators)), ("window", _window_text(pool, now))]
    if given.allowed_seconds is not None:
        rows += [("allowed", span(given.allowed_seconds)), ("used", _used_text(pool.balance))]
    if given.reserved_seconds > 0:
        rows.append(("reserved", f"{span(given.reserved_seconds)} by the platform, for sessions that run"))
    left = span(max(0.0, given.left_seconds))
    if pool.free_seconds < given.left_seconds:
        left += f", {span(pool.free_seconds)} of it beyond the budgets of our sessions that run"
    return [*rows, ("left", left)]


def _window_text(pool: Pool, now: float) -> str:
    refresh, since = pool.quota.refresh_at, pool.balance.since
    if refresh is None:
        return "its refresh is not known"
    begun = f"since {date(since)}, " if since is not None else ""
    if refresh <= now:
        return f"{begun}was to be refreshed {date(refresh)}"
    return f"{begun}refreshed {date(refresh)}, in {span(refresh - now)}"


def _used_text(found: Balance) -> str:
    assert found.used is not None
    assert found.others is not None
    used, ours = span(max(0.0, found.used)), span(found.ours.seconds)
    if found.others > ALIKE_SECONDS:
        others = f"{span(found.others)} by others (your own notebooks, what the platform rounds)"
        return f"{used}: {ours} by our runs, {others}"
    if found.others < -ALIKE_SECONDS:
        return f"{used}; our runs took {ours}: the platform counts {span(-found.others)} less, so far"
    return used if found.ours.seconds == 0 else f"{used}, all by our runs"


def _show_runs(out: Output, pool: Pool) -> None:
    if not pool.runs:
        return
    rows = [(each.run, each.spent) for each in pool.runs]
    if len(rows) > 1:
        rows.append(("all", pool.balance.ours))
    headers = ["OUR RUNS", "USED", "USEFUL", "SET-UP", "REDONE", "LOST"]
    unsaved = any(spent.open > 0 for _, spent in rows)
    if unsaved:
        headers.append("UNSAVED")
    cells = []
    for run, spent in rows:
        parts = [spent.seconds, spent.useful, spent.set_up, spent.redone, spent.lost]
        parts += [spent.open] if unsaved else []
        cells.append((run, *(span(part) if part >= 0.5 else "–" for part in parts)))
    out.say()
    out.table(headers, cells, right=frozenset(range(1, len(headers))))


def _running_row(each: Running) -> tuple[str, ...]:
    budget = "no wall" if each.budget_seconds is None else span(each.budget_seconds)
    if each.given_up:
        budget = "given up for lost, fenced, perhaps still running"
    return each.session, each.accelerator, span(each.seconds), budget


def _planned_row(each: Planned, now: float) -> tuple[str, ...]:
    if each.quota_seconds is not None:
        return each.run, each.accelerator, span(each.quota_seconds), "now"
    until = "" if each.at is None or each.at <= now else f" until {date(each.at)}"
    return each.run, each.accelerator, "–", f"waits{until}: {each.reason}"
