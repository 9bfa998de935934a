"""A store that retries: it repeats the verbs of another store while they raise a `Transient` that was not
retried yet.

Decides when to retry and when to give up. Must never know which store it wraps. Every verb is idempotent, so
a try whose reply was lost does no harm. A swap whose reply was lost is recognised by its value.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import tenacity

from orchestrator.errors import Conflict, Transient, is_worth_retrying
from orchestrator.stores.checkup import Checkup, Remark
from orchestrator.stores.opening import carried
from orchestrator.stores.portable import Portable, is_on_this_machine
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Stat, Store, Upload, abort, absence, is_empty, snapshot, uploads


class RetryingRegisters:
    """Implements `Registers`. Retries as `again` says."""

    def __init__(self, inner: Registers, again: tenacity.Retrying) -> None:
        self._inner = inner
        self._again = again

    def read(self, key: str) -> Held | None:
        return self._again(self._inner.read, key)

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        """A try whose reply was lost may have written its value, which is recognised by its bytes."""
        lost = False

        def attempt() -> str:
            nonlocal lost
            try:
                return self._inner.swap(key, value, version)
            except Transient:
                lost = True
                raise
            except Conflict:
                held = self._inner.read(key) if lost else None
                if held is None or held.value != value:
                    raise
                return held.version

        return self._again(attempt)

    def list(self, prefix: str) -> Iterator[str]:
        yield from self._again(lambda: tuple(self._inner.list(prefix)))

    def delete(self, key: str) -> None:
        self._again(self._inner.delete, key)


class RetryingStore:
    """Implements `Store` and `Portability`. Pauses double from `pause_seconds_min` to `pause_seconds_max`.
    Each is shortened at random by up to half. After `attempts` tries, raises the last `Transient`."""

    def __init__(
        self,
        inner: Store,
        *,
        attempts: int = 5,
        pause_seconds_min: float = 0.5,
        pause_seconds_max: float = 30.0,
        chance: random.Random | None = None,
        sleep: Callable[[float], None] = tenacity.nap.sleep,
    ) -> None:
        self._inner = inner
        self._chance = chance or random.Random()
        self._pauses = pause_seconds_min, pause_seconds_max
        self._again = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_worth_retrying),
            stop=tenacity.stop_after_attempt(attempts),
            wait=self._pause,
            sleep=sleep,
            reraise=True,
        )

    @property
    def registers(self) -> Registers | None:
        inner = self._again(lambda: self._inner.registers)  # a store may have to find out
        return None if inner is None else RetryingRegisters(inner, self._again)

    def is_empty(self) -> bool:
        return self._again(is_empty, self._inner)

    def absence(self) -> str:
        return absence(self._inner)

    def snapshot(self) -> AbstractContextManager[None]:
        return snapshot(self._inner)

    def checkup(self) -> tuple[Remark, ...]:
        return self._again(self._inner.checkup) if isinstance(self._inner, Checkup) else ()

    def uploads(self) -> tuple[Upload, ...]:
        return self._again(uploads, self._inner)

    def abort(self, upload: Upload) -> None:
        self._again(abort, self._inner, upload)

    def put(self, key: str, source: Path, sha256: str) -> None:
        self._again(self._inner.put, key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self._again(self._inner.get, key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        return self._again(self._inner.stat, key)

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from self._again(lambda: tuple(self._inner.list(prefix)))

    def delete(self, key: str) -> None:
        self._again(self._inner.delete, key)

    @property
    def this_machine(self) -> bool:
        return is_on_this_machine(self._inner)

    def portable(self) -> Portable:
        """Raises Rejected if sessions cannot open the inner store."""
        return carried(self._inner)

    def _pause(self, state: tenacity.RetryCallState) -> float:
        least, most = self._pauses
        return min(most, least * 2.0 ** (state.attempt_number - 1)) * self._chance.uniform(0.5, 1.0)
