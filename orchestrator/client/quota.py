"""Each platform's quota as it reports it, what our runs used of it and for what, and what is running and
planned. Asks the platforms and the ledger; launches and writes nothing, and needs no controller."""

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
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import Surveyed
from orchestrator.errors import InputError
from orchestrator.ledger import Ledger

if TYPE_CHECKING:
    from orchestrator.client.client import Client


@dataclass(frozen=True)
class Used:
    """A run's part of a window in seconds, and the number of its `sessions` in it. It took so many `units`; 0
    if the platform counts time."""

    run: str
    sessions: int
    seconds: float
    spent: Spent
    units: float = 0.0


@dataclass(frozen=True)
class Running:
    """A session that is charged now. `budget_seconds` is its order's; None if it has no time limit.
    `given_up`: treated as lost, but may still be running."""

    run: str
    session: str
    accelerator: str
    seconds: float
    budget_seconds: float | None
    given_up: bool = False


@dataclass(frozen=True)
class Planned:
    """A queued run that would use the quota: `quota_seconds` from now on, which take `quota_units`. If the
    seconds are None, it waits, until `at` if the time is known."""

    run: str
    platform: str
    accelerator: str
    quota_seconds: float | None
    at: float | None
    reason: str = ""
    quota_units: float = 0.0


@dataclass(frozen=True)
class Pool:
    """One quota, the offers that share it, and the use of its present window.

    `quota` and `free_seconds` are for the first of the accelerators. `free_seconds` is what is left after our
    running sessions have used all of their budgets. `units_per_hour` has the rate of each accelerator, in
    their order, if the platform counts in units; otherwise it is empty.
    """

    platform: str
    pool: str
    accelerators: tuple[str, ...]
    quota: Quota
    free_seconds: float
    balance: Balance
    runs: tuple[Used, ...] = ()
    running: tuple[Running, ...] = ()
    planned: tuple[Planned, ...] = ()
    units_per_hour: tuple[float, ...] = ()

    @property
    def units_left(self) -> float:
        """The balance in units; 0 if the platform counts time."""
        return self.quota.units(self.quota.left_seconds)

    @property
    def units_free(self) -> float:
        """The balance after our running sessions have used all of their budgets; 0 if it counts time."""
        return self.quota.units(self.free_seconds)


@dataclass(frozen=True)
class NoAnswer:
    """A platform whose quota is unknown. `denied`: a person must act first; otherwise it may answer later."""

    platform: str
    trouble: str
    denied: bool


@dataclass(frozen=True)
class Quotas:
    """The quotas of the platforms that were asked for, `at` unix seconds. `without_quota`: platforms that
    answered but have no quota."""

    at: float
    pools: tuple[Pool, ...]
    without_quota: tuple[str, ...] = ()
    no_answer: tuple[NoAnswer, ...] = ()


def quota(client: Client, platforms: Collection[str]) -> Quotas:
    """See `Client.quota`. Always asks all platforms, because queued runs are planned over all of them."""
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
    """The quotas by these answers and the ledger. `market` is a new one of the same platforms, which were
    asked from `asked_at` on."""
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
    """Every quota in the platforms' answers."""
    live = ledger.live() if ledger is not None else ()
    shared = _shared(answers)
    free = {
        (offer.platform, offer.accelerator): offer.quota.left_seconds
        for offer in market.offers()
        if offer.quota is not None
    }
    charged = _charged(ledger, [_first(quotas) for quotas in shared.values()], now)
    planned = tuple(_planned(market, ledger, now)) if ledger is not None and shared else ()
    found = []
    for (platform, name), quotas in shared.items():
        each, accelerators = _first(quotas), tuple(quotas)
        rates = tuple(quota.units_per_hour for quota in quotas.values())
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
                free[platform, accelerators[0]],
                balance(quotas, (charge for of_run in of_pool.values() for charge in of_run)),
                tuple(_used(of_pool, quotas)),
                tuple(_running(live, of_pool, platform, accelerators)),
                tuple(_of_pool(planned, platform, accelerators)),
                rates if any(rates) else (),
            )
        )
    return tuple(found)


def _shared(answers: Iterable[Surveyed]) -> dict[tuple[str, str], dict[str, Quota]]:
    """(platform, pool) → the accelerators that share it, each with its quota."""
    found: dict[tuple[str, str], dict[str, Quota]] = {}
    for offer in (offer for answer in answers for offer in answer.offers):
        if offer.quota is not None:
            found.setdefault((offer.platform, offer.quota.pool), {})[offer.accelerator] = offer.quota
    return found


def _first(quotas: Mapping[str, Quota]) -> Quota:
    return next(iter(quotas.values()))


def _charged(ledger: Ledger | None, quotas: Sequence[Quota], now: float) -> Mapping[str, tuple[Charge, ...]]:
    """All charges of every run that may have used one of the windows."""
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
    """The run's charges; none if this version cannot read its history, because then its sessions are
    unknown."""
    history = ledger.history(run)
    return () if any(stored.trouble for stored in history) else charges((s.event for s in history), now)


def _used(charged: Mapping[str, tuple[Charge, ...]], quotas: Mapping[str, Quota]) -> Iterator[Used]:
    since = window_began_at(_first(quotas))
    for run, all_of in charged.items():
        parts = [charge if since is None else charge.since(since) for charge in all_of]
        parts = [part for part in parts if part.seconds > 0]
        if parts:
            spent = total(parts)
            units = sum(quotas[part.accelerator].units(part.seconds) for part in parts)
            yield Used(run, len(parts), spent.seconds, spent, units)


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
    """Queued runs in order of submission. Each can use what the runs before it leave."""
    for summary in reversed(ledger.summaries([Phase.QUEUED])):
        record = ledger.record(summary.run)
        route = market.route(record, ledger.measurements(record.job.name))
        assert route is not None, "every platform has answered, if only with an error"
        if route.chosen is not None:
            offer = route.chosen.offer
            market.reserve(Session(assign(record, route.chosen), offer.traits, now))
            figures = route.chosen.estimate
            yield Planned(record.run, offer.platform, offer.accelerator, figures.quota_seconds, now,
                          quota_units=figures.quota_units)  # fmt: skip
            continue
        for rejection in route.rejections:
            if rejection.until.kind in (UntilKind.TIME, UntilKind.SLOT):
                yield Planned(record.run, rejection.platform, rejection.accelerator, None, rejection.until.at,
                              rejection.reason)  # fmt: skip


def _of_pool(planned: Iterable[Planned], platform: str, accelerators: tuple[str, ...]) -> Iterator[Planned]:
    """The plans for this pool. If a run waits for several of its offers, only the first counts."""
    told = set()
    for each in planned:
        if each.platform == platform and each.accelerator in accelerators and each.run not in told:
            told.add(each.run)
            yield each
