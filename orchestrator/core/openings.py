"""What to say of rejected offers in a sentence: those that may open, and a count of those that never will.

Must never drop a reason that is the only one: if no offer can open, all are told.
"""

from __future__ import annotations

from collections.abc import Iterable

from orchestrator.core.offer import Rejection, UntilKind
from orchestrator.core.wording import count_text


def openings(rejections: Iterable[Rejection]) -> tuple[tuple[Rejection, ...], str]:
    """The rejections worth reading, and a sentence about the others; empty if there are none."""
    every = tuple(rejections)
    may_open = tuple(each for each in every if each.until.kind is not UntilKind.NEVER)
    if not may_open or len(may_open) == len(every):
        return every, ""
    return may_open, f"{count_text(len(every) - len(may_open), 'other offer')} can never run it"


def openings_text(rejections: Iterable[Rejection]) -> str:
    """`here/RTX4090: no free slot; 6 other offers can never run it`."""
    worth, others = openings(rejections)
    told = [f"{each.platform}/{each.accelerator}: {each.reason}" for each in worth]
    return "; ".join([*told, others] if others else told)
