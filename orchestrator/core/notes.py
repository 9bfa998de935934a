"""What a run's record keeps of notes: one line for each kind, with how often something like it was met.

Pure. Two notes are of one kind if they differ only in numbers, or in a checkpoint's name. So a session that
warns of every step costs a line and a few events, not a ledger. Must never know what a note is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

NOTES_MAX = 100  # kinds in a record, which is written with every event; the ledger has them all
SEEN_MAX = 32  # texts of one kind told apart: above the warnings of one status
MORE = "more kinds of notes than are kept, the newest: "
_CHECKPOINT = re.compile(r"\b\d{10,19}-g\d{2,9}-[0-9a-z]{1,32}\b")
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def kind_of(text: str) -> str:
    """What notes have in common that differ only in numbers and checkpoints."""
    return MORE if text.startswith(MORE) else _NUMBER.sub("#", _CHECKPOINT.sub("#", text))


@dataclass(frozen=True)
class Tally:
    """How often a kind was met, journalled or not, and the digests of its newest texts: what stands in a
    status is read again with every look, and is not met again by that."""

    times: int = 0
    seen: tuple[str, ...] = ()


Tallies = Mapping[str, Tally]


@dataclass(frozen=True)
class Notes:
    """The newest text of each kind, the kind that was silent longest first, and how often each was met."""

    texts: tuple[str, ...] = ()
    times: tuple[int, ...] = ()

    def of_kind(self, text: str) -> tuple[str | None, int]:
        """The text that is kept of this kind, and its count; None and 0 for a new kind."""
        kind = kind_of(text)
        for kept, times in self._counted():
            if kind_of(kept) == kind:
                return kept, times
        return None, 0

    def after(self, text: str, times: int) -> Notes:
        """With this text for its kind; beyond NOTES_MAX the first one goes."""
        kind = kind_of(text)
        others = [(kept, n) for kept, n in self._counted() if kind_of(kept) != kind]
        kept = [*others, (text, times)][-NOTES_MAX:]
        return Notes(tuple(t for t, _ in kept), tuple(n for _, n in kept))

    def shown(self) -> tuple[str, ...]:
        """The texts for people, with counts above one."""
        return tuple(counted_text(text, times) for text, times in self._counted())

    def _counted(self) -> list[tuple[str, int]]:
        missing = (1 for _ in self.texts[len(self.times) :])  # a record of a version that did not count
        return list(zip(self.texts, (*self.times, *missing), strict=True))


def counted_text(text: str, times: int) -> str:
    """A note with how often something like it was met."""
    return f"{text} (met {times:,} times by now)" if times > 1 else text


def met(notes: Notes, tallies: Tallies, text: str) -> tuple[str, Tally, bool] | None:
    """What one more note of this text comes to: the text to keep, its kind's tally, and whether it is worth
    an event. That is the first of a kind and every doubling of its count. None: it was told before."""
    if notes.of_kind(text)[0] is None and len(notes.texts) >= NOTES_MAX - 1:
        text = MORE + text
    kept, journalled = notes.of_kind(text)
    tally = tallies.get(kind_of(text), Tally(journalled))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    if kept == text or digest in tally.seen:
        return None
    tally = replace(tally, times=max(tally.times, journalled) + 1, seen=(*tally.seen, digest)[-SEEN_MAX:])
    return text, tally, tally.times >= 2 * journalled
