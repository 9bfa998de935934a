"""The notes of a run's record: one line for each kind, with a count.

Pure. Two notes are of the same kind if they differ only in numbers or in a checkpoint's name. So a session
that warns at every step adds one line and a few events, and does not fill the ledger. Must never know what a
note is about.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

NOTES_MAX = 100  # kinds in a record, which is written with every event; the ledger has them all
SEEN_MAX = 32  # different texts of one kind that are remembered: more than one status has warnings
MORE = "more kinds of notes than are kept, the newest: "
_CHECKPOINT = re.compile(r"\b\d{10,19}-g\d{2,9}-[0-9a-z]{1,32}(-outputs)?\b")
_NUMBER = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def kind_of(text: str) -> str:
    """The text without its numbers and checkpoints: the same for all notes of a kind."""
    return MORE if text.startswith(MORE) else _NUMBER.sub("#", _CHECKPOINT.sub("#", text))


@dataclass(frozen=True)
class Tally:
    """How often a kind was met, journalled or not, and the digests of its newest texts. A warning in a status
    is read again with every reading; the digests keep it from being counted again."""

    times: int = 0
    seen: tuple[str, ...] = ()


Tallies = Mapping[str, Tally]


@dataclass(frozen=True)
class Notes:
    """The newest text of each kind and how often the kind was met; the kind met longest ago comes first."""

    texts: tuple[str, ...] = ()
    times: tuple[int, ...] = ()

    def of_kind(self, text: str) -> tuple[str | None, int]:
        """The kept text of this kind and its count; None and 0 for a new kind."""
        kind = kind_of(text)
        for kept, times in self._counted():
            if kind_of(kept) == kind:
                return kept, times
        return None, 0

    def after(self, text: str, times: int) -> Notes:
        """The notes with this text for its kind; above NOTES_MAX kinds the first one is dropped."""
        kind = kind_of(text)
        others = [(kept, n) for kept, n in self._counted() if kind_of(kept) != kind]
        kept = [*others, (text, times)][-NOTES_MAX:]
        return Notes(tuple(t for t, _ in kept), tuple(n for _, n in kept))

    def shown(self) -> tuple[str, ...]:
        """The texts for people, with every count above one."""
        return tuple(counted_text(text, times) for text, times in self._counted())

    def _counted(self) -> list[tuple[str, int]]:
        missing = (1 for _ in self.texts[len(self.times) :])  # from a version that did not count
        return list(zip(self.texts, (*self.times, *missing), strict=True))


def counted_text(text: str, times: int) -> str:
    """A note with the count of its kind."""
    return f"{text} (seen {times:,} times)" if times > 1 else text


def met(notes: Notes, tallies: Tallies, text: str) -> tuple[str, Tally, bool] | None:
    """Counts one more note: the text to keep, the tally of its kind, and whether to journal it.

    The first note of a kind is journalled, and then every doubling of the count. None: this text was
    counted before.
    """
    if notes.of_kind(text)[0] is None and len(notes.texts) >= NOTES_MAX - 1:
        text = MORE + text
    kept, journalled = notes.of_kind(text)
    tally = tallies.get(kind_of(text), Tally(journalled))
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    if kept == text or digest in tally.seen:
        return None
    tally = replace(tally, times=max(tally.times, journalled) + 1, seen=(*tally.seen, digest)[-SEEN_MAX:])
    return text, tally, tally.times >= 2 * journalled
