"""Whether a session that ships is lost: what its platform lists × its heartbeat, as a table of readings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from orchestrator.core.ending import ending
from orchestrator.core.event import Ended
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import AgentStatus, Outcome
from orchestrator.core.session import Observation, Session, Sighting
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, record, running

POLL, SILENCE, SETUP = 30.0, 300.0, 240.0
READABLE = Traits(
    session_seconds=12 * 3600.0,
    uplink=Uplink.STORE,
    poll_seconds=POLL,
    silence_seconds=SILENCE,
    setup_seconds=SETUP,
    visibility_seconds=60.0,
    owned=False,
)
HIDDEN = replace(READABLE, readable_mid_run=False)
LISTED, GONE = Sighting.RUNNING, Sighting.ABSENT


@dataclass(frozen=True)
class Spell:
    """Readings in a row. Without a `beat`, the heartbeat is the last one; `mute`: none ever came."""

    seconds: float
    sighting: Sighting
    beats: bool = False
    mute: bool = False
    unshipped: float | None = 0.0


ALIVE = Spell(600.0, LISTED, beats=True)
FLICKER = (Spell(2 * POLL, GONE), Spell(POLL, LISTED))


@dataclass(frozen=True)
class Row:
    name: str
    spells: tuple[Spell, ...]
    traits: Traits = READABLE
    outcome: Outcome | None = None


ROWS = [
    Row("listed, and its heart beats", (ALIVE,)),
    Row("gone for an hour, and its heart beats", (ALIVE, Spell(3600.0, GONE, beats=True))),
    Row("gone, its heart not yet silent for long", (ALIVE, Spell(SILENCE - POLL, GONE))),
    Row("gone, and silent", (ALIVE, Spell(SILENCE + POLL, GONE)), outcome=Outcome.LOST),
    Row("gone and silent, but listed again between", (ALIVE, *FLICKER * 3, Spell(POLL, LISTED, beats=True))),
    Row("listed, its heart not yet silent for long", (ALIVE, Spell(SILENCE - POLL, LISTED))),
    Row("listed, and silent: its agent is dead", (ALIVE, Spell(SILENCE + POLL, LISTED)),
        outcome=Outcome.LOST),
    Row("listed and silent, and beats again",
        (ALIVE, Spell(SILENCE - POLL, LISTED), Spell(POLL, LISTED, beats=True),
         Spell(SILENCE - POLL, LISTED))),
    Row("listed, and silent after it said that it ships, its outbox hidden",
        (ALIVE, Spell(SILENCE + POLL, LISTED)), HIDDEN, Outcome.LOST),
    Row("listed, and silent after it said that it does not ship, its outbox hidden",
        (Spell(600.0, LISTED, beats=True, unshipped=None), Spell(SILENCE + POLL, LISTED, unshipped=None)),
        HIDDEN),
    Row("listed, and never heard, but still setting up", (Spell(SETUP + SILENCE - POLL, LISTED, mute=True),)),
    Row("listed, and never heard", (Spell(SETUP + SILENCE + 2 * POLL, LISTED, mute=True),),
        outcome=Outcome.LOST),
    Row("gone before it was ever heard", (Spell(120.0, LISTED, mute=True), Spell(120.0, GONE, mute=True)),
        outcome=Outcome.LOST),
    Row("gone for two readings, never heard", (Spell(120.0, LISTED, mute=True),
                                               Spell(2 * POLL, GONE, mute=True))),
]  # fmt: skip


def watched(spells: tuple[Spell, ...]) -> Watch:
    """The last reading of each spell is `seconds` after its first moment."""
    watch, beat = Watch(0.0), 1
    for spell in spells:
        until = watch.at + spell.seconds
        while watch.at < until:
            beat += spell.beats
            status = AgentStatus("aaaa", beat, NOW, "training", unshipped_seconds=spell.unshipped)
            seen = (
                Observation(spell.sighting) if spell.mute else Observation(spell.sighting, ("aaaa",), status)
            )
            watch = watch.see(seen, watch.at + POLL, POLL)
    return watch


def judged(row: Row) -> Ended | None:
    heard = not all(spell.mute for spell in row.spells)
    found: Session | None = record(*running(started_at=NOW)).session
    assert found is not None
    session = replace(found, traits=row.traits, began_at=NOW, incarnation="aaaa" if heard else None)
    return ending(session, watched(row.spells), NOW)


@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_only_one_that_is_neither_listed_nor_heard_is_lost_or_one_whose_agent_is_dead(row: Row) -> None:
    ended = judged(row)
    assert (None if ended is None else ended.outcome) is row.outcome
    if ended is not None:
        assert not ended.confirmed, "it may still run: it is fenced"
