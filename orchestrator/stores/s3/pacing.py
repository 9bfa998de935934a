"""Writes that a service refuses only because there were too many at once: they are repeated after a pause.

Cloudflare R2 takes one write per second and key (docs/references/s3.md#conditional-writes). Decides how long
to wait. Must never know what is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from obstore import exceptions

from orchestrator.clock import SystemClock
from orchestrator.stores.s3.faults import answer_of

PAUSE_SECONDS = 1.1
_TRIES = 4
_TOO_MANY = 429
T = TypeVar("T")


def paced(write: Callable[[], T]) -> T:
    """What `write` returns. It is repeated after 429, which says that nothing was written."""
    for _ in range(_TRIES - 1):
        try:
            return write()
        except exceptions.BaseError as error:
            if answer_of(error).status != _TOO_MANY:
                raise
        SystemClock().wait(threading.Event(), PAUSE_SECONDS)
    return write()
