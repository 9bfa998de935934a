"""A world whose platforms and store have bugs: any verb may raise an unforeseen error at random moments.

Behind the engine's barrier only the affected run notices. People release the held runs, and once the bugs are
fixed every run finishes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import TypeVar

from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.session import StopReply
from orchestrator.engine.perform import Backends
from orchestrator.platforms.platform import Platform, Sight
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials
from orchestrator.stores.store import Stat, Store
from tests.simulation.world import World

T = TypeVar("T")


class Bugs:
    """Raises by chance, before a call or after it has taken effect. `rate` 0 means fixed."""

    def __init__(self, draw: Random, rate: float) -> None:
        self._draw = draw
        self.rate = rate
        self.met = 0

    def around(self, call: Callable[[], T]) -> T:
        self._perhaps()
        answer = call()
        self._perhaps()
        return answer

    def _perhaps(self) -> None:
        if self.rate > 0.0 and self._draw.random() < 0.5 * self.rate:
            self.met += 1
            raise self._error()

    def _error(self) -> Exception:
        return self._draw.choice(
            (
                KeyError("a field that was always there"),
                AssertionError(),
                RecursionError("maximum depth exceeded"),
                UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
                MemoryError(),
                ZeroDivisionError("0"),
                OverflowError("int too large to convert to float"),
                AttributeError("no attribute 'x'"),
                TypeError("unhashable"),
                ValueError("\ud800 \x1b[2J" + "x" * 5000),
                StopIteration(),
                OSError("?"),
            )
        )


class BuggyPlatform:
    """Implements `Platform` around another."""

    def __init__(self, inner: Platform, bugs: Bugs) -> None:
        self._inner = inner
        self._bugs = bugs

    @property
    def name(self) -> str:
        return self._inner.name

    def survey(self) -> tuple[Offer, ...]:
        return self._bugs.around(self._inner.survey)

    def prepare(self, order: Order, materials: Materials) -> str | None:
        return self._bugs.around(lambda: self._inner.prepare(order, materials))

    def launch(self, order: Order) -> None:
        self._bugs.around(lambda: self._inner.launch(order))

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        return self._bugs.around(lambda: self._inner.observe(names))

    def open(self, name: str) -> Outbox:
        return self._bugs.around(lambda: self._inner.open(name))

    def stop(self, name: str) -> StopReply:
        return self._bugs.around(lambda: self._inner.stop(name))

    def discard(self, name: str) -> None:
        self._bugs.around(lambda: self._inner.discard(name))


class BuggyStore:
    """Implements `Store` around another."""

    def __init__(self, inner: Store, bugs: Bugs) -> None:
        self._inner = inner
        self._bugs = bugs
        self.registers = inner.registers

    def put(self, key: str, source: Path, sha256: str) -> None:
        self._bugs.around(lambda: self._inner.put(key, source, sha256))

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self._bugs.around(lambda: self._inner.get(key, target, sha256, bytes_max=bytes_max))

    def stat(self, key: str) -> Stat | None:
        return self._bugs.around(lambda: self._inner.stat(key))

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from self._bugs.around(lambda: list(self._inner.list(prefix)))

    def delete(self, key: str) -> None:
        self._bugs.around(lambda: self._inner.delete(key))


class BuggyWorld(World):
    """`told` holds the controller's log. Some of the runs that meet a bug are held until released."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(seed, folder)
        draw = Random(seed)
        self.bugs = Bugs(Random(draw.random()), draw.choice((0.005, 0.02, 0.1)))
        self.store_bugs = Bugs(Random(draw.random()), draw.choice((0.0, 0.001, 0.01)))
        self.told: list[str] = []

    def calm(self) -> None:
        super().calm()
        self.bugs.rate = self.store_bugs.rate = 0.0

    def _backends(self) -> Backends:
        platforms = {name: BuggyPlatform(inner, self.bugs) for name, inner in self.platforms.items()}
        store = BuggyStore(self.store, self.store_bugs)
        return Backends(platforms, {"home": store}, "home", self.folders, lambda name: name, self._unforeseen)

    def _unforeseen(self, doing: str, error: Exception) -> None:
        self.told.append(f"{doing}: {error!r}")
