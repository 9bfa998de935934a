"""How a trial waits: by the clock, with a name and a limit for each wait."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.clock import Clock
from orchestrator.core.wording import span
from orchestrator.errors import Transient

T = TypeVar("T")


class Late(Transient):
    """What was waited for did not come within its limit."""


class Unanswered(Transient):
    """The service did not answer, so it is not known whether it came."""


@dataclass(frozen=True)
class Waiting:
    """How to wait: by the clock, looking every `poll` seconds. `say` tells a person."""

    clock: Clock
    poll: float
    say: Callable[[str], None]

    def until(self, what: str, seconds: float, look: Callable[[], T | None]) -> T:
        """The first result of `look` that is not None. A look that raises Transient is repeated. Raises Late,
        or Unanswered if the service did not answer the last look or `look` raises that."""
        ends = self.clock.monotonic() + seconds
        while True:
            trouble: Transient | None = None
            try:
                found = look()
            except Unanswered:
                raise
            except Transient as error:
                found, trouble = None, error
            if found is not None:
                return found
            left = ends - self.clock.monotonic()
            if left <= 0:
                text = f"waited {span(seconds)} for {what}"
                if trouble is not None and trouble.retried:  # the client got no usable answer
                    raise Unanswered(f"{text}; {trouble}", operation="trial")
                raise Late(text, operation="trial")
            self.pause(min(left, self.poll))

    def pause(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), seconds)
