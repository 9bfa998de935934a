"""A platform that retries: it wraps another platform and implements the same protocol.

Retries only `Transient`, and only if the platform has not retried the request itself. Never retries
`launch`: a launch without an answer may have taken effect, so the engine looks before it launches again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from random import Random
from typing import TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.session import StopReply
from orchestrator.errors import is_worth_retrying
from orchestrator.platforms.platform import (
    BuildingImages,
    Checkup,
    Cleaning,
    Finding,
    Leftover,
    Platform,
    Sight,
    Tidying,
    Trial,
    Trying,
)
from orchestrator.session.outbox import Outbox
from orchestrator.session.staging import Materials

T = TypeVar("T")


class RetryingPlatform:
    """Tries up to `attempts` times. Between tries, `sleep` waits a random time of up to `first_seconds`. That
    limit doubles with each try, up to `seconds_max`. Raises the last error unchanged."""

    def __init__(self, inner: Platform, *, sleep: Callable[[float], None], random: Random, attempts: int = 4,
                 first_seconds: float = 0.5, seconds_max: float = 8.0) -> None:  # fmt: skip
        self._inner = inner
        self._random = random
        self._first = first_seconds
        self._max = seconds_max
        self._retrying = Retrying(
            stop=stop_after_attempt(attempts),
            wait=self._pause,
            retry=retry_if_exception(is_worth_retrying),
            sleep=sleep,
            reraise=True,
        )

    def _pause(self, state: RetryCallState) -> float:
        """Full jitter: callers that failed together do not retry together."""
        return self._random.uniform(0.0, min(self._max, self._first * 2.0 ** (state.attempt_number - 1)))

    def _again(self, verb: Callable[..., T], *arguments: object) -> T:
        return self._retrying.copy()(verb, *arguments)

    @property
    def name(self) -> str:
        return self._inner.name

    def survey(self) -> tuple[Offer, ...]:
        return self._again(self._inner.survey)

    def prepare(self, order: Order, materials: Materials) -> str | None:
        return self._again(self._inner.prepare, order, materials)

    def launch(self, order: Order) -> None:
        self._inner.launch(order)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        return self._again(self._inner.observe, tuple(names))

    def open(self, name: str) -> Outbox:
        """Retries only the opening. If reading fails later, decide asks for another collect."""
        return self._again(self._inner.open, name)

    def stop(self, name: str) -> StopReply:
        return self._again(self._inner.stop, name)

    def discard(self, name: str) -> None:
        self._again(self._inner.discard, name)

    # --- Optional protocols of the inner platform -------------------------------------------------------

    def checkup(self) -> tuple[Finding, ...]:
        """Empty if the inner platform has no checkup."""
        return self._again(self._inner.checkup) if isinstance(self._inner, Checkup) else ()

    def leftovers(self) -> tuple[Leftover, ...]:
        """Empty if the inner platform leaves nothing behind."""
        return self._again(self._inner.leftovers) if isinstance(self._inner, Cleaning) else ()

    def unneeded_images(self, needed: Iterable[Path]) -> tuple[Leftover, ...]:
        """Empty if the inner platform builds no images."""
        if not isinstance(self._inner, BuildingImages):
            return ()
        return self._again(self._inner.unneeded_images, tuple(needed))

    def remove(self, leftover: Leftover) -> None:
        assert isinstance(self._inner, Cleaning), "it has no leftovers"
        self._again(self._inner.remove, leftover)

    def tidy(self) -> None:
        """Does nothing if a crash of the inner platform leaves nothing."""
        if isinstance(self._inner, Tidying):
            self._again(self._inner.tidy)

    def trial(self, *, long: bool) -> Trial | None:
        """None if the inner platform has none."""
        return self._inner.trial(long=long) if isinstance(self._inner, Trying) else None
