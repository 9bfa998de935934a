"""Takes a trial to its end: whatever happens, what it made is removed, and what it found is told."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from orchestrator.errors import OrchestratorError, Remedy, remedy
from orchestrator.platforms.platform import Tried
from orchestrator.platforms.trials.record import Record, plain
from orchestrator.platforms.trials.waiting import Waiting

Trouble = OrchestratorError | OSError  # such as a full disk
_LETTERS = string.ascii_lowercase + string.digits


class Course(Protocol):
    """The steps of one trial."""

    def clear(self) -> None:
        """Removes all that was made. Raises KeyboardInterrupt, and nothing else that may pass."""

    def left(self) -> tuple[str, ...]:
        """What may still be there. Asks nobody."""


@dataclass(frozen=True)
class Ending:
    """Why a trial ended early, if it did, and whether it was interrupted."""

    trouble: Trouble | None = None
    interrupted: bool = False


def new_run(job: str) -> str:
    """A name for a trial. No run and no other trial has it."""
    return f"{job}-{''.join(secrets.choice(_LETTERS) for _ in range(8))}"


def teller(say: Callable[[str], None]) -> Callable[[str], None]:
    """Tells a person, if there is still one who reads it."""

    def tell(text: str) -> None:
        with suppress(OSError):
            say(plain(text))

    return tell


def cleared(part: Callable[[], None], course: Course, waiting: Waiting) -> Ending:
    """Follows a part of the course. What it made is removed in any case; only a second interruption ends
    that, too."""
    trouble: Trouble | None = None
    interrupted = False
    try:
        part()
    except KeyboardInterrupt:
        interrupted = True
    except (OrchestratorError, OSError) as error:
        trouble = error
        waiting.say(f"it cannot go on: {_text(error)}")
    finally:  # also after a bug
        interrupted = _clear(course, waiting, interrupted)
    return Ending(trouble, interrupted)


def _clear(course: Course, waiting: Waiting, interrupted: bool) -> bool:
    if interrupted:
        waiting.say("interrupted: deleting what was made; Ctrl-C again leaves it")
    try:
        course.clear()
    except KeyboardInterrupt:
        return interrupted or _clear(course, waiting, True)
    return interrupted


def told(
    run: str, account: str, record: Record, ending: Ending, left: tuple[str, ...], *, long: bool
) -> Tried:
    """What the trial found, in words that hold no secret."""
    text = "" if ending.trouble is None else plain(_text(ending.trouble))
    why = "it was interrupted before" if ending.interrupted else f"it ended early: {text}" if text else ""
    what_next = Remedy.NONE if ending.trouble is None else remedy(ending.trouble)
    checks = record.checks(long=long, why=why)
    return Tried(run, account, checks, record.facts(), left, text, what_next, ending.interrupted)


def _text(trouble: Trouble) -> str:
    """Without the path of a file of this machine."""
    if isinstance(trouble, OSError):
        return trouble.strerror or type(trouble).__name__
    return str(trouble)
