"""What an uplink tells the agent beside it, one JSON line each, through a pipe that only the two have.

Values only; ships with both. Decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.core import wire

WORD_BYTES_MAX = 16 * 1024  # the rest of a longer line is another line

# How an uplink's process exits, for the agent that started it. After any other code it is started again.
SHIPPED = 0  # everything is in the store, including the result
SUPERSEDED = 3  # somebody else may publish now: this session is of no use any more
USELESS = 78  # it can never ship from here, such as to a store of a type that it does not know
LACKING = 79  # a package that the store needs is not installed


@dataclass(frozen=True)
class Word:
    """`say` is a line for the log. `trouble` is a warning for the status: its text is always the same for the
    same trouble. `shipped_step`: the checkpoint of this step is in the store. `shipped_seconds`: how long it
    took to ship it, if this uplink did. `sent_bytes`: so much more is in the store. `leave`: the controller
    asks through the store to save and leave. `reached`: the store took a heartbeat. `fetched_bytes`: so much
    more came from the store. `fetched`: what the session needs from there is all in its folder.
    `unfetchable`: why it will never be."""

    say: str = ""
    trouble: str = ""
    shipped_seconds: float | None = None
    shipped_step: int | None = None
    leave: bool = False
    reached: bool = False
    sent_bytes: int = 0
    fetched_bytes: int = 0
    fetched: bool = False
    unfetchable: str = ""


def heard(line: bytes) -> Word:
    """The word in a line. Any other text, such as a traceback, is for the log."""
    try:
        return wire.decode(Word, line)
    except ValueError:
        return Word(say=line.decode(errors="replace").rstrip())
