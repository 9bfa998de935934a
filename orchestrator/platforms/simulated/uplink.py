"""The process that ships a modelled agent's outbox: when it acts, and when it cannot reach the store.

How to ship an outbox is passed in by whoever creates the platform. So nothing here knows a store, a fence or
a claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from random import Random
from typing import Protocol

from orchestrator.core.checkpoint import Manifest
from orchestrator.core.order import Order, Outcome
from orchestrator.errors import BackendError, Superseded
from orchestrator.platforms.simulated.agent import SimulatedAgent
from orchestrator.platforms.simulated.outbox import SimulatedOutbox
from orchestrator.platforms.simulated.scenario import Scenario
from orchestrator.session.outbox import Outbox


class Shipping(Protocol):
    """Ships one agent's outbox. All verbs raise Superseded if somebody else may publish."""

    @property
    def done(self) -> bool:
        """Whether everything was shipped, including the result."""

    @property
    def published(self) -> Mapping[str, Manifest]:
        """Its checkpoints in the store, by name."""

    @property
    def asked_to_leave(self) -> bool:
        """Whether the controller wants the session to save and leave."""

    def beat(self) -> None: ...

    def ship(self) -> Iterator[None]: ...

    def retire(self) -> object: ...


Uplinks = Callable[[Order, str, Outbox], Shipping]  # of an order and its incarnation


class SimulatedUplink:
    """Drives one agent's shipping at drawn moments, as long as its machine lives. `start` makes the process
    that ships; if that dies, it is started again."""

    def __init__(
        self,
        agent: SimulatedAgent,
        local: SimulatedOutbox,
        start: Callable[[], Shipping],
        scenario: Scenario,
        random: Random,
    ) -> None:
        self.agent = agent
        self._local = local
        self._start = start
        self._shipping = start()
        self._dies = scenario.faults.uplink_dies
        self._seconds = scenario.uplink_seconds
        self._random = random
        self._beat_at = self._ship_at = agent.life.started_at
        self._steps: Iterator[None] | None = None  # a shipment under way
        self._shipped = False  # and its superseded ones are to be deleted
        self._leaves = False  # its agent was asked to
        self._over = False

    def next_event(self) -> float:
        """When it acts next; infinity once it is over."""
        if self._over or not self.agent.running:
            return math.inf
        return self._reached(min(self._beat_at, self._ship_at))

    def _reached(self, at: float) -> float:
        fate = self.agent.fate
        return fate.cut_until if fate.cut_from <= at < fate.cut_until else at

    def advance(self, to: float) -> None:
        """Runs on until `to`, which the agent has reached."""
        while (at := self.next_event()) <= to:
            self._local.at = at
            try:
                self._happen(at)
            except Superseded as superseded:  # nobody needs this session any more: its machine is released
                self._over = True
                self.agent.kill(at, Outcome.LOST, str(superseded))
                self.agent.advance(to)

    def _happen(self, at: float) -> None:
        if self._beat_at <= self._ship_at:
            self._beat_at = at + self._seconds
            with suppress(BackendError):
                self._shipping.beat()
            if self._shipping.asked_to_leave and not self._leaves:
                self._leaves = True
                self.agent.leave(at)
            return
        try:
            self._step(at)
        except BackendError:  # of the store: try again later
            self._rest(at)
        steps = (each.ref.step for each in self._shipping.published.values())
        self.agent.shipped_step = max(self.agent.shipped_step, *steps, -1)
        if self._dies > 0.0 and self._random.random() < self._dies:  # whatever it was doing
            self._shipping = self._start()
            self._rest(at)
        if self._shipping.done and self.agent.result is not None:  # otherwise the training has forged one
            self._over = True
            self.agent.shipped(at)

    def _step(self, at: float) -> None:
        """One step of a shipment; time passes between a look at the fence and what it allows."""
        if self._shipped:
            self._rest(at)
            self._shipping.retire()
            return
        if self._steps is None:
            self._steps = self._shipping.ship()
        try:
            next(self._steps)
        except StopIteration:
            self._steps, self._shipped = None, True
        self._ship_at = at + 0.2 * self._pause()

    def _rest(self, at: float) -> None:
        self._steps, self._shipped = None, False
        self._ship_at = at + self._pause()

    def _pause(self) -> float:
        most = 0.2 if self.agent.result is not None else 1.0
        return self._random.uniform(0.1, most) * self._seconds
