"""When a message is tried again, and when nobody tries any more: attempts × answer × now → state.

Pure. A receiver may be away for a night, so a message is tried for three days. Whether it arrived can never
be known for certain: an answer may be lost, so the same message may arrive twice, with the same id.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from enum import StrEnum

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 10.0, 3600.0  # before the second attempt; doubles with each
JITTER = 0.2  # of the pause, either way, so that many rows do not come back at once
DEAD_SECONDS = 3 * 86400.0
DEAD_ATTEMPTS_MIN = 20  # about half a day of them: the machine may have slept, or its clock been wrong
ERROR_CHARACTERS_MAX = 300
GATHERED_MIN = 6  # so many at once become one message
BURST, BURST_SECONDS = 10, 600.0  # messages to a target in so long; what comes after is gathered


class State(StrEnum):
    """Of a notification."""

    WAITING = "waiting"  # to be sent, or tried again
    SENT = "sent"  # a receiver has confirmed it
    GATHERED = "gathered"  # part of a digest, which has a row of its own
    DEAD = "dead"  # given up


class Answer(StrEnum):
    """What became of one attempt."""

    SENT = "sent"
    LATER = "later"  # it may work next time, or may have arrived although nobody said so
    NEVER = "never"  # the receiver says that it will not work


@dataclass(frozen=True)
class Delivery:
    """One attempt. `said`: how it went, in words without any part of the address. `wait_seconds`: what the
    receiver asked for."""

    answer: Answer
    said: str
    wait_seconds: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What a row becomes after an attempt. `due_at`: of the next attempt, in unix seconds."""

    state: State
    due_at: float
    error: str


def verdict(identity: str, created_at: float, attempts: int, delivery: Delivery, now: float) -> Verdict:
    """What becomes of a row after its attempt number `attempts`."""
    said = " ".join(delivery.said.split())[:ERROR_CHARACTERS_MAX]
    if delivery.answer is Answer.SENT:
        return Verdict(State.SENT, now, "")
    if delivery.answer is Answer.NEVER:
        return Verdict(State.DEAD, now, said)
    due_at = now + pause_seconds(identity, attempts, delivery.wait_seconds)
    late = now - created_at >= DEAD_SECONDS and attempts >= DEAD_ATTEMPTS_MIN
    return Verdict(State.DEAD if late else State.WAITING, due_at, said)


def pause_seconds(identity: str, attempts: int, asked: float | None = None) -> float:
    """Seconds until the next attempt: at least as long as the receiver asked for, up to an hour. Ours is at
    most an hour and the jitter, which depends on the id and the attempt only, so that a test can compute it.
    """
    doubled = PAUSE_SECONDS * 2.0 ** min(max(0, attempts - 1), 16)
    drawn = hashlib.sha256(f"{identity} {attempts}".encode()).digest()[0] / 255.0
    ours = min(doubled, PAUSE_SECONDS_MAX) * (1.0 + JITTER * (2.0 * drawn - 1.0))
    wanted = asked if asked is not None and math.isfinite(asked) else 0.0
    return max(ours, min(wanted, PAUSE_SECONDS_MAX))
