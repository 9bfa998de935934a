"""Our own sessions never take more of a balance than there was, on whichever accelerators they run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.offer import Offer, Quota
from orchestrator.core.order import Order
from orchestrator.core.run import RunRecord
from orchestrator.core.session import ClosedSession, Session
from orchestrator.engine.market import Market
from orchestrator.engine.surveying import SURVEY_SECONDS, Surveyed
from tests.core.runs import NOW, TRAITS, assigned, record

EPSILON = 1e-6
ORDER: Order = assigned().order


@dataclass
class Account:
    """A platform with one balance, and a controller that only launches. Each session takes all it may."""

    balance: float
    rates: tuple[float, ...]
    now: float = NOW
    polls: int = 0
    taken: float = 0.0
    live: dict[str, tuple[Session, float, float]] = field(default_factory=dict)  # with rate and end
    names: int = 0
    market: Market = field(default_factory=lambda: Market(("colab",)))

    def offers(self) -> tuple[Offer, ...]:
        left = max(0.0, self.balance - self.taken)
        return tuple(
            Offer("colab", f"gpu{i}", TRAITS, 99, Quota.of_units(left, rate))
            for i, rate in enumerate(self.rates)
        )

    def wait(self, seconds: float) -> None:
        """Time passes; a session whose budget is over ends and is closed."""
        until = self.now + seconds
        for name, (_, rate, end) in list(self.live.items()):
            self.taken += rate / 3600 * (min(until, end) - min(self.now, end))
            if end <= until:
                self.close(name, end)
        self.now = until
        self.market.begin(self.records(), self.now)

    def close(self, name: str, at: float) -> None:
        session, _, _ = self.live.pop(name)
        self.market.remember([ClosedSession(name, "colab", session.order.accelerator, session.assigned_at,
                                            session.budget_seconds, at)])  # fmt: skip

    def survey(self, answers_after: float) -> None:
        self.polls += 1
        assert self.market.surveys.due(self.now, self.polls * 2 * SURVEY_SECONDS) == ["colab"]
        answer = Surveyed("colab", self.offers())
        self.wait(answers_after)
        self.market.take(answer, self.now)
        self.market.begin(self.records(), self.now)

    def records(self) -> list[RunRecord]:
        return [replace(record(), session=session) for session, _, _ in self.live.values()]

    def launch(self, which: int, delay: float) -> None:
        offers = self.market.offers()
        if not offers:
            return
        offer = offers[which % len(offers)]
        assert offer.quota is not None
        budget = offer.quota.left_seconds - TRAITS.wall_margin_seconds
        if budget <= 0:
            return
        self.names += 1
        name = f"run-s{self.names:02d}"
        order = replace(ORDER, session=name, platform="colab", accelerator=offer.accelerator,
                        budget_seconds=budget)  # fmt: skip
        intended = Session(order, TRAITS, self.now)
        self.market.reserve(intended)
        self.wait(delay)
        session = replace(intended, launched_at=self.now, began_at=self.now)
        self.live[name] = session, offer.quota.units_per_hour, self.now + session.budget_seconds
        self.market.begin(self.records(), self.now)

    def stop(self, which: int) -> None:
        if self.live:
            self.close(sorted(self.live)[which % len(self.live)], self.now)


seconds = st.floats(0.0, 4 * 3600.0)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("launch"), st.integers(0, 3), st.just(0.0)),
        st.tuples(st.just("wait"), seconds),
        st.tuples(st.just("survey"), st.floats(0.0, 60.0)),
        st.tuples(st.just("stop"), st.integers(0, 9)),
    ),
    max_size=12,
)


@given(st.floats(0.0, 200.0), st.lists(st.floats(0.07, 15.0), min_size=1, max_size=4), steps)
def test_a_balance_is_never_overspent_across_accelerators(
    balance: float, rates: list[float], script: list[tuple[str, float]]
) -> None:
    account = Account(balance, tuple(rates))
    account.survey(0.0)
    for verb, *arguments in script:
        getattr(account, verb)(*arguments)
        assert account.taken <= balance + EPSILON
    account.wait(1e9)
    assert account.taken <= balance + EPSILON
    account.survey(0.0)
    left = [o.quota.units(o.quota.left_seconds) for o in account.market.offers() if o.quota is not None]
    assert left == pytest.approx([balance - account.taken] * len(rates), abs=EPSILON), "and it is all offered"
