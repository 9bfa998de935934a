"""Each platform's quota by its own word, what of its window our runs used and for what, what runs and what is
planned. Asks platforms and the ledger; launches and writes nothing, and needs no controller."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.client import routing
from orchestrator.core.assign import assign
from orchestrator.core.charges import Balance, Charge, Spent, balance, charges, total, window_began_at
from orchestrator.core.lifecycle import Phase
from orchestrator.core.offer import Quota, UntilKind
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Session
from orchestrator.core.wording import unknown
from orchestrator.engine.market import Market, Surveyed
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger

if TYPE_CHECKING:
    from orchestrator.client.client import Client


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


@dataclass(frozen=True)
class NoAnswer:
    """A platform whose quota is not known. `denied`: a person must act first; else it may answer later."""

    platform: str
    trouble: str
    denied: bool


@dataclass(frozen=True)
class Quotas:
    """The quotas of the platforms that were asked for, `at` unix seconds. `without_quota`: platforms that
    answered and count none."""

    at: float
    pools: tuple[Pool, ...]
    without_quota: tuple[str, ...] = ()
    no_answer: tuple[NoAnswer, ...] = ()


def quota(client: Client, platforms: Collection[str]) -> Quotas:
    """As `Client.quota` says. Asks all platforms in any case, as queued runs are planned over all of them."""
    wired = client.wired()
    _check_names(platforms, [each.name for each in wired.config.platforms])
    asked_at = client.clock.now()
    answers = routing.survey_all(wired)
    with client.ledgers.existing() as ledger:
        return of(answers, wired.market(), ledger, asked_at, client.clock.now(), platforms)


def _check_names(platforms: Iterable[str], names: Sequence[str]) -> None:
    for name in platforms:
        if name not in names:
            raise InputError(unknown(f"platform {name!r}", name, names))


def of(
    answers: Sequence[Surveyed],
    market: Market,
    ledger: Ledger | None,
    asked_at: float,
    now: float,
    platforms: Collection[str] = (),
) -> Quotas:
    """What these answers and the ledger say; `market` is a fresh one of the same platforms, which were asked
    from `asked_at` on."""
    routing.fill(market, answers, ledger, asked_at, now)
    asked = [answer for answer in answers if not platforms or answer.platform in platforms]
    names = {answer.platform for answer in asked}
    found = tuple(pool for pool in _pools(answers, market, ledger, now) if pool.platform in names)
    silent = tuple(NoAnswer(a.platform, a.trouble, a.denied) for a in asked if a.trouble is not None)
    told = {pool.platform for pool in found} | {each.platform for each in silent}
    return Quotas(now, found, tuple(a.platform for a in asked if a.platform not in told), silent)


def _pools(
    answers: Sequence[Surveyed], market: Market, ledger: Ledger | None, now: float
) -> tuple[Pool, ...]:
    """Every quota that the platforms' answers speak of."""
    live = ledger.live() if ledger is not None else ()
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
