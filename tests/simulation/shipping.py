"""A world in which every session ships its own outbox, and everything goes wrong that concerns shipping.

Sessions are started twice and given up while they live, so that two incarnations publish at once. An uplink's
network is away for hours, its credentials expire for a while, and its process dies between any two steps. The
store's listings and look-ups are late by minutes. It lies to uplinks in one way: it acknowledges a put and
loses the object. What it acknowledges to the controller, and every register, it keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from orchestrator.core.offer import Uplink as UplinkKind
from orchestrator.core.order import Order
from orchestrator.errors import AccessDenied
from orchestrator.platforms.simulated import Scenario, SimulatedPlatform
from orchestrator.session.outbox import Outbox
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Stat, Store
from orchestrator.uplink.latest import Latest
from orchestrator.uplink.shipping import Uplink
from tests.simulation.draws import HOUR
from tests.simulation.uplinks import WatchedUplinkStore
from tests.simulation.world import World


@dataclass(frozen=True)
class Weather:
    """What an uplink meets. `expires`: the chance that a call is the first to find its credentials expired,
    for `expired_seconds`. `loses`: the chance that a put is acknowledged and lost."""

    expires: float
    expired_seconds: float
    loses: float


class ShippingWorld(World):
    """See the module."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        self._draw = draw = Random(f"shipping {seed}")
        self._weather = Weather(
            expires=draw.choice((0.0, 0.005, 0.02)),
            expired_seconds=draw.choice((60.0, 600.0)),
            loses=draw.choice((0.0, 0.0, 0.01, 0.05)),
        )
        hides = draw.choice((0.0, 0.1, 0.5, 0.9))
        seconds = draw.choice((20.0, 60.0, 300.0))
        self.store.rates = replace(self.store.rates, hides=hides, hidden_seconds=seconds)
        self.witness.hidden_seconds = seconds

    def calm(self) -> None:
        super().calm()
        self._weather = Weather(0.0, 0.0, 0.0)

    def _platform(self, name: str, scenario: Scenario) -> SimulatedPlatform:
        draw = Random(f"shipping {scenario.seed}")
        faults = replace(
            scenario.faults,
            double_start=draw.choice((0.0, 0.3, 0.8)),
            partitioned=draw.choice((0.0, 0.3, 0.6)),
            killed=draw.choice((0.0, 0.2, 0.5)),
            uplink_cut=draw.choice((0.0, 0.3, 0.6)),
            uplink_cut_seconds=draw.choice((600.0, 1800.0, 3 * HOUR)),
            uplink_dies=draw.choice((0.0, 0.02, 0.2)),
        )
        changed = replace(
            scenario,
            faults=faults,
            uplink=UplinkKind.STORE,
            uplink_seconds=draw.choice((15.0, 15.0, 60.0)),
            checkpoint_seconds=draw.choice((15.0, 30.0, 100.0)),
            absence_seconds=0.0,
            speaks=False,
        )
        return super()._platform(name, self._placed(changed, draw))

    def _placed(self, scenario: Scenario, draw: Random) -> Scenario:
        """What other worlds have otherwise."""
        del draw
        return scenario

    def _uplink(self, order: Order, incarnation: str, outbox: Outbox) -> Uplink:
        """As the program beside a real agent makes it."""
        scratch = self.folders.home / "uplinks" / incarnation
        stormy = StormyStore(self.store, self._draw, self.clock.elapsed, lambda: self._weather)
        store = WatchedUplinkStore(stormy, self.witness, order, incarnation)
        latest = Latest(outbox, order, incarnation, scratch)
        uplink = Uplink(store, order, incarnation, latest, scratch, latest.wants)
        latest.published, latest.begun = uplink.published, uplink.begun
        return uplink


class StormyStore:
    """The home store as one uplink reaches it."""

    def __init__(
        self, inner: Store, chance: Random, now: Callable[[], float], weather: Callable[[], Weather]
    ) -> None:
        self._inner = inner
        self._chance = chance
        self._now = now
        self._weather = weather
        self._expired_until = 0.0

    def check(self) -> None:
        """Raises AccessDenied while the credentials are expired."""
        weather = self._weather()
        if weather.expires > 0.0 and self._chance.random() < weather.expires:
            self._expired_until = self._now() + weather.expired_seconds
        if weather.expires > 0.0 and self._now() < self._expired_until:
            raise AccessDenied("the credentials have expired")

    @property
    def registers(self) -> Registers:
        assert self._inner.registers is not None
        return _StormyRegisters(self._inner.registers, self)

    def put(self, key: str, source: Path, sha256: str) -> None:
        self.check()
        loses = self._weather().loses
        if loses == 0.0 or self._chance.random() >= loses:
            self._inner.put(key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self.check()
        self._inner.get(key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        self.check()
        return self._inner.stat(key)

    def list(self, prefix: str) -> Iterator[Stat]:
        self.check()
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self.check()
        self._inner.delete(key)


class _StormyRegisters:
    def __init__(self, inner: Registers, store: StormyStore) -> None:
        self._inner = inner
        self._store = store

    def read(self, key: str) -> Held | None:
        self._store.check()
        return self._inner.read(key)

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        self._store.check()
        return self._inner.swap(key, value, version)

    def list(self, prefix: str) -> Iterator[str]:
        self._store.check()
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._store.check()
        self._inner.delete(key)
