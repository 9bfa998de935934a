"""What a trial has found so far: a verdict per assumption, and other facts. One failure counts for good."""

from __future__ import annotations

import re

from orchestrator.platforms.platform import Check, Verdict
from orchestrator.platforms.trials.assumption import Assumption, Checked, Judgement

NO_LONG = "checked with --long"
_SIGNED = re.compile(r"\?[^\s\"'<>]*=[^\s\"'<>]*")
_WEIGHT = {Verdict.NOT_SEEN: 0, Verdict.HOLDS: 1, Verdict.FAILS: 2}


class Record:
    """`assumptions` are all that the trial can check."""

    def __init__(self, assumptions: tuple[Assumption, ...]) -> None:
        self._assumptions = assumptions
        self._found: dict[str, Judgement] = {}
        self._facts: dict[str, str] = {}

    def judge(self, assumption: Assumption, judgement: Judgement) -> None:
        """A failure stays. Otherwise the newest verdict with the most weight counts."""
        before = self._found.get(assumption.id)
        verdict, seen = judgement
        if before is None or (_WEIGHT[verdict] >= _WEIGHT[before[0]] and before[0] is not Verdict.FAILS):
            self._found[assumption.id] = verdict, seen

    def fact(self, name: str, text: str) -> None:
        self._facts[name] = text

    def checks(self, *, long: bool, why: str) -> tuple[Check, ...]:
        """On each assumption. `why`: the reason for which nothing was seen, unless a better one is
        known."""
        return tuple(self._check(each, long, why) for each in self._assumptions)

    def _check(self, assumption: Assumption, long: bool, why: str) -> Check:
        left_out = assumption.checked is Checked.LONG and not long
        default = NO_LONG if left_out else why or "there was no occasion"
        verdict, seen = self._found.get(assumption.id, (Verdict.NOT_SEEN, default))
        return Check(assumption.id, assumption.text, verdict, plain(seen))

    def facts(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, plain(text)) for name, text in self._facts.items())


def plain(text: str) -> str:
    """In one line, without what signs a URL."""
    return _SIGNED.sub("?…", " ".join(text.split()))
