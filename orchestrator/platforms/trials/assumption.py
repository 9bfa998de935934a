"""An assumption about a service that nobody has tried, and a verdict on it. Values only.

An id is never used again for something else, because people quote it in issues.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from orchestrator.platforms.platform import Verdict

HOLDS, FAILS, NOT_SEEN = Verdict.HOLDS, Verdict.FAILS, Verdict.NOT_SEEN

Judgement = tuple[Verdict, str]


class Checked(StrEnum):
    """What checks an assumption, in the words of the docs."""

    LIVE = "`--live`"
    LONG = "`--live --long`"
    NEVER = "not checked"


@dataclass(frozen=True)
class Assumption:
    """`text` is what we assume, `otherwise` what happens if that is wrong. Both are Markdown."""

    id: str
    text: str
    otherwise: str
    checked: Checked = Checked.LIVE


def of(ok: bool, seen: str) -> Judgement:
    return (HOLDS if ok else FAILS), seen


def at_scale(judgement: Judgement, tried: str, *, enough: bool) -> Judgement:
    """What it was `tried` with, which may be less than the assumption says."""
    verdict, seen = judgement
    if verdict is HOLDS and not enough:
        return NOT_SEEN, f"only tried with {tried}: {seen}"
    return verdict, f"{tried}: {seen}"


def rows(assumptions: tuple[Assumption, ...]) -> list[str]:
    """The table of the docs, without its head."""
    return [f"| {each.id} | {each.text} | {each.otherwise} | {each.checked} |" for each in assumptions]
