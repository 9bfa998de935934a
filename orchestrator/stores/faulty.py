"""A store that fails at random, from a given seed. The simulation uses it to stress the product.

Decides which call fails and how. Must never know which store it wraps, nor the real time: clock and waiting
are passed in.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import CorruptCheckpoint, QuotaExhausted, Transient
from orchestrator.files import draft_folder
from orchestrator.files.hashing import digest_file
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Stat, Store


@dataclass(frozen=True)
class FaultRates:
    """Chances from 0 to 1, drawn again at every call; durations in seconds.

    `fails`: Transient, and nothing happened. `loses_reply`: Transient, although it happened. `tears`: this
    one reading has a flipped byte. `rots`: from now on, every reading of what this put stored has a flipped
    byte. `hides`: `stat` and `list` do not show what this put stored for `hidden_seconds`. `full`: a put
    finds no space. `slow`: the call takes up to `slow_seconds` longer.
    """

    fails: float = 0.0
    loses_reply: float = 0.0
    tears: float = 0.0
    rots: float = 0.0
    hides: float = 0.0
    hidden_seconds: float = 0.0
    full: float = 0.0
    slow: float = 0.0
    slow_seconds: float = 0.0


NO_FAULTS = FaultRates()


class _Faults:
    """The faults shared by a store and its registers."""

    def __init__(
        self,
        rates: FaultRates,
        chance: random.Random,
        now: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self.rates = rates
        self.chance = chance
        self._now = now
        self._wait = wait
        self._hidden_until: dict[str, float] = {}

    def before(self, operation: str) -> None:
        if self.strike(self.rates.slow):
            self._wait(self.chance.uniform(0.0, self.rates.slow_seconds))
        if self.strike(self.rates.fails):
            raise Transient("the request failed", operation=operation)

    def after(self, operation: str) -> None:
        if self.strike(self.rates.loses_reply):
            raise Transient("the reply was lost", operation=operation)

    def strike(self, rate: float) -> bool:
        return rate > 0.0 and self.chance.random() < rate

    def fill(self) -> None:
        if self.strike(self.rates.full):
            raise QuotaExhausted("the store is full", operation="put")

    def hide(self, key: str) -> None:
        """Perhaps hides a new key for a while."""
        if self.strike(self.rates.hides):
            self._hidden_until[key] = self._now() + self.rates.hidden_seconds

    def hides(self, key: str) -> bool:
        return self.rates != NO_FAULTS and self._now() < self._hidden_until.get(key, float("-inf"))

    def forget(self, key: str) -> None:
        self._hidden_until.pop(key, None)


class FaultyRegisters:
    """Implements `Registers`. A new one may be missing in `list` for a while, but `read` always finds it."""

    def __init__(self, inner: Registers, faults: _Faults) -> None:
        self._inner = inner
        self._faults = faults

    def read(self, key: str) -> Held | None:
        self._faults.before("read")
        held = self._inner.read(key)
        self._faults.after("read")
        return held

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        self._faults.before("swap")
        self._faults.fill()
        written = self._inner.swap(key, value, version)
        if version is None:
            self._faults.hide(f"register {key}")
        self._faults.after("swap")
        return written

    def list(self, prefix: str) -> Iterator[str]:
        self._faults.before("list")
        found = [key for key in self._inner.list(prefix) if not self._faults.hides(f"register {key}")]
        self._faults.after("list")
        yield from found

    def delete(self, key: str) -> None:
        self._faults.before("delete")
        self._inner.delete(key)
        self._faults.forget(f"register {key}")
        self._faults.after("delete")


class FaultyStore:
    """Implements `Store`. `rates` may be replaced at any time. With NO_FAULTS it behaves like the store that
    it wraps and hides nothing, but rotten objects stay rotten.

    `now` is the clock by which hidden objects appear. `wait` gets the extra seconds of a slow call.
    """

    def __init__(
        self,
        inner: Store,
        rates: FaultRates,
        chance: random.Random,
        *,
        now: Callable[[], float],
        wait: Callable[[float], None],
    ) -> None:
        self._inner = inner
        self._faults = _Faults(rates, chance, now, wait)
        self._rotten: set[str] = set()

    @property
    def rates(self) -> FaultRates:
        return self._faults.rates

    @rates.setter
    def rates(self, rates: FaultRates) -> None:
        self._faults.rates = rates

    @property
    def registers(self) -> Registers | None:
        inner = self._inner.registers
        return None if inner is None else FaultyRegisters(inner, self._faults)

    def put(self, key: str, source: Path, sha256: str) -> None:
        self._faults.before("put")
        self._faults.fill()
        known = self._inner.stat(key) is not None
        self._inner.put(key, source, sha256)
        if not known:
            self._faults.hide(key)
            if self._faults.strike(self.rates.rots):
                self._rotten.add(key)
        self._faults.after("put")

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self._faults.before("get")
        if key in self._rotten or self._faults.strike(self.rates.tears):
            self._get_torn(key, target, sha256, bytes_max)
        else:
            self._inner.get(key, target, sha256, bytes_max=bytes_max)
        self._faults.after("get")

    def stat(self, key: str) -> Stat | None:
        self._faults.before("stat")
        found = self._inner.stat(key)
        self._faults.after("stat")
        return None if self._faults.hides(key) else found

    def list(self, prefix: str) -> Iterator[Stat]:
        self._faults.before("list")
        found = [stat for stat in self._inner.list(prefix) if not self._faults.hides(stat.key)]
        self._faults.after("list")
        yield from found

    def delete(self, key: str) -> None:
        self._faults.before("delete")
        self._inner.delete(key)
        self._rotten.discard(key)
        self._faults.forget(key)
        self._faults.after("delete")

    def rot(self, key: str) -> None:
        """From now on every reading of the object has a flipped byte, until it is deleted."""
        self._rotten.add(key)

    def _get_torn(self, key: str, target: Path, sha256: str | None, bytes_max: int | None) -> None:
        """Behaves like a store whose transport flips a byte. With a sha256, the target never gets it."""
        with draft_folder(target.parent) as draft:
            torn = draft / target.name
            self._inner.get(key, torn, bytes_max=bytes_max)
            data = bytearray(torn.read_bytes())
            if data:
                data[self._faults.chance.randrange(len(data))] ^= 1 << self._faults.chance.randrange(8)
            torn.write_bytes(data)
            if sha256 is not None and digest_file(torn) != sha256:
                raise CorruptCheckpoint(key, f"its bytes do not have the sha256 {sha256[:12]}…")
            torn.replace(target)
