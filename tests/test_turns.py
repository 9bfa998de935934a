"""Whose turn it is in a tick, and how the others heed the refusal of one run: the real market, no ledger."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from orchestrator.core.event import Cooldown
from orchestrator.core.lifecycle import Wish
from orchestrator.core.offer import Offer
from orchestrator.core.queueing import Kept, Reserve
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Measurement
from orchestrator.engine import queue as queues
from orchestrator.engine.market import Market
from orchestrator.engine.queue import Queue
from orchestrator.engine.refusals import REFUSED_SECONDS_MAX
from orchestrator.engine.surveying import Surveyed
from tests.core.offers import HOUR, NOW, gpu, kaggle, record


def market_of(*offers: Offer) -> Market:
    market = Market(tuple(dict.fromkeys(offer.platform for offer in offers)))
    market.surveys.due(NOW, 0.0)
    for name in dict.fromkeys(offer.platform for offer in offers):
        market.take(Surveyed(name, tuple(offer for offer in offers if offer.platform == name)), NOW)
    market.begin((), NOW)
    return market


class Barrier:
    """Remembers what went wrong with which run."""

    def __init__(self) -> None:
        self.met: dict[str, str] = {}

    @contextmanager
    def __call__(self, run: str, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception:  # noqa: BLE001 as the engine's
            self.met[run] = doing


def none_measured(_job: str) -> tuple[Measurement, ...]:
    return ()


def queue_of(market: Market, barrier: Barrier | None = None) -> Queue:
    return Queue(market, none_measured, barrier or Barrier())


def by_name(*records: RunRecord) -> dict[str, RunRecord]:
    return {each.run: each for each in records}


def turns(queue: Queue, due: dict[str, RunRecord], waiting: dict[str, RunRecord]) -> list[str]:
    return [turn.record.run for turn in queue.turns(due, waiting, NOW)]


def test_the_least_work_is_asked_first_whoever_is_due() -> None:
    small, large = record(1), record(20)
    assert turns(queue_of(market_of(gpu())), by_name(large), by_name(small)) == ["run-1", "run-20"]


def test_who_cannot_start_is_asked_only_when_due_or_when_the_offers_changed() -> None:
    small, large = record(1), record(20)
    queue = queue_of(market_of(gpu()))
    assert turns(queue, {}, by_name(small, large)) == ["run-1"]
    queue.stir(["run-20"])
    assert queue.stirred
    assert turns(queue, {}, by_name(small, large)) == ["run-1", "run-20"]
    assert not queue.stirred


def test_a_run_gets_what_the_more_urgent_ones_leave() -> None:
    found = list(queue_of(market_of(gpu())).turns(by_name(record(1), record(20)), {}, NOW))
    assert found[0].openings[0].opens_at == NOW
    assert found[1].openings[0].opens_at > NOW + 3 * HOUR
    assert [turn.others for turn in found] == [1, 1]


def test_a_tick_asks_only_so_many_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "LAID_OUT_MAX", 2)
    monkeypatch.setattr(queues, "JUDGED_MAX", 3)
    waiting = by_name(*(record(hours) for hours in range(1, 11)))
    queue = queue_of(market_of(gpu()))
    queue.stir(waiting)
    asked: list[str] = []
    while queue.stirred:
        asked += [run for run in turns(queue, {}, waiting) if run not in asked]
    assert sorted(asked) == sorted(waiting)


def test_a_place_is_kept_for_a_schedule_that_fires_soon() -> None:
    nightly = record(1, run="nightly")
    queue = Queue(market_of(gpu()), none_measured, Barrier())
    assert queue.keep(Reserve((Kept(nightly, NOW + HOUR),)))
    [turn] = queue.turns(by_name(record(20)), {}, NOW)
    assert (turn.record.run, turn.openings[0].opens_at, turn.openings[0].until) == ("run-20", NOW, NOW + HOUR)


def test_who_waits_for_something_else_has_no_turn() -> None:
    held = replace(record(1), wish=Wish.HOLD)
    pausing = replace(record(2), until=NOW + 60.0, paused_at=NOW)
    assert turns(queue_of(market_of(gpu())), {}, by_name(held, pausing)) == []


def test_a_run_that_cannot_be_laid_out_hinders_nobody() -> None:
    broken = replace(record(1), accepted=(None,))  # type: ignore[arg-type]
    barrier = Barrier()
    asked = turns(queue_of(market_of(gpu()), barrier), by_name(broken, record(2)), {})
    assert "run-2" in asked
    assert barrier.met == {"run-1": "laying out"}


# --- Refusals -------------------------------------------------------------------------------------------


def refused(since: float = NOW, seconds: float = 60.0) -> Cooldown:
    return Cooldown("kaggle", "T4x2", since + seconds, "no capacity", since=since)


def is_open(market: Market, at: float) -> bool:
    market.begin((), at)
    return market.has_room()


def test_a_refusal_for_want_of_capacity_closes_the_offer_to_all() -> None:
    market = market_of(kaggle())
    market.refusals.add(refused())
    market.begin((), NOW)
    [offer] = market.offers()
    assert offer.unavailable is not None
    assert "no capacity" in offer.unavailable.reason
    assert not is_open(market, NOW + 59.0)
    assert is_open(market, NOW + 61.0)


def test_the_pause_doubles_while_the_others_are_refused_too_up_to_a_limit() -> None:
    market, at, pauses = market_of(kaggle()), NOW, []
    for _ in range(8):
        market.begin((), at)
        market.refusals.add(refused(at))
        lasts = next(seconds for seconds in range(1, 2000) if is_open(market, at + seconds))
        pauses.append(lasts)
        at += lasts
    assert pauses[:3] == [60, 120, 240]
    assert max(pauses) == REFUSED_SECONDS_MAX


def test_a_clock_that_was_set_back_ends_the_pause() -> None:
    market = market_of(kaggle())
    market.refusals.add(refused())
    market.begin((), NOW)
    assert is_open(market, NOW - HOUR)
