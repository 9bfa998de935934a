"""Notes are counted by kind: one that comes again and again costs a few events, not one each time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.decide import decide
from orchestrator.core.draft import Inputs
from orchestrator.core.event import Noted
from orchestrator.core.notes import MORE, NOTES_MAX, Notes, Tally, kind_of, met
from orchestrator.core.order import AgentStatus
from orchestrator.core.run import RunRecord, apply
from orchestrator.core.session import Observation, Sighting
from orchestrator.core.watch import Watch
from tests.core.runs import NOW, record, running


def test_numbers_and_checkpoints_make_no_kind() -> None:
    one, other = CheckpointRef(7, 1, "aaaa").name, CheckpointRef(90, 2, "bbbb").name
    assert kind_of(f"checkpoint {one} is corrupt (12 bytes)") == kind_of(
        f"checkpoint {other} is corrupt (3 bytes)"
    )
    assert kind_of("loss is nan") != kind_of("loss is inf")


def told(texts: list[str]) -> list[tuple[str, int]]:
    """The events that these texts lead to, one after the other."""
    notes, tallies, events = Notes(), dict[str, Tally](), []
    for text in texts:
        found = met(notes, tallies, text)
        if found is not None:
            kept, tally, worth_an_event = found
            tallies[kind_of(kept)] = tally
            if worth_an_event:
                events.append((kept, tally.times))
                notes = notes.after(kept, tally.times)
    return events


def test_a_kind_is_told_at_first_and_at_every_doubling() -> None:
    events = told([f"loss is nan at step {step}" for step in range(1000)])
    assert [times for _, times in events] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]
    assert events[-1][0] == "loss is nan at step 511"


def test_what_stands_there_is_read_again_and_not_met_again() -> None:
    standing = ["ignored 3 malformed lines", "ignored 5 malformed lines"]
    assert told(standing * 100) == [(standing[0], 1), (standing[1], 2)]


def test_more_kinds_than_are_kept_are_counted_together() -> None:
    words = [f"odd {'x' * n}" for n in range(1, 3 * NOTES_MAX)]
    events = told(words)
    assert len(events) < NOTES_MAX + 12
    assert events[-1][0].startswith(MORE)


def test_a_record_of_a_version_that_did_not_count_reads_on() -> None:
    old = Notes(("loss is nan at step 3", "it was started twice"))
    assert old.of_kind("loss is nan at step 9") == ("loss is nan at step 3", 1)
    assert old.after("loss is nan at step 9", 2).shown() == (
        "it was started twice",
        "loss is nan at step 9 (seen 2 times)",
    )


@pytest.mark.parametrize("readings", [2000])
def test_a_session_that_warns_of_every_step_fills_no_ledger(readings: int) -> None:
    found: RunRecord = record(*running())
    tallies: dict[str, Tally] = {}
    events = 0
    for step in range(readings):
        status = AgentStatus("aaaa", step, NOW, "training", warnings=(f"loss is nan at step {step}",))
        watch = Watch(0.0, Observation(Sighting.RUNNING, ("aaaa",), status), readings=1, collected_at=0.0)
        decision = decide(found, Inputs(NOW, 0.0, watch=watch, tallies=tallies))
        tallies, found = dict(decision.tallies), decision.record
        events += len([event for event in decision.events if isinstance(event, Noted)])
    assert events == 11
    assert len(found.notes) == 1
    assert found.note_times == (1024,)


def test_an_event_of_a_version_that_did_not_count_applies() -> None:
    found = apply(replace(record(), notes=("loss is nan at step 3",)), Noted(NOW, "loss is nan at step 4"))
    assert found.notes == ("loss is nan at step 4",)
