"""What a store says of a run: what is in it, what is believed, and how it becomes a run again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import wire
from orchestrator.core.bounds import GENERATION_MAX
from orchestrator.core.deposit import (
    Arrival,
    adoption,
    archives,
    decode,
    deposit_of,
    machine,
    record_of,
    says_the_same,
    submission,
)
from orchestrator.core.event import CheckpointAccepted, Completed, Event, GaveUp, Noted, Requeued
from orchestrator.core.job import Input, Python
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord
from tests.core.runs import NOW, RUN, accepted, ended, fold, record, running

SHA = "a" * 64


def with_two() -> RunRecord:
    """A running session whose first two checkpoints were accepted."""
    return record(
        *running(), *(CheckpointAccepted(NOW, replace(accepted(step), sha256=SHA)) for step in (10, 20))
    )


def over(*last: Event) -> RunRecord:
    return record(*running(), CheckpointAccepted(NOW, accepted(10)), ended(Outcome.COMPLETED), *last)


def test_it_comes_back_as_it_was() -> None:
    said = deposit_of(with_two())
    assert decode(RUN, wire.encode(said)) == said
    assert (said.phase, said.session, said.incarnation) == (Phase.RUNNING, f"{RUN}-s01", "aaaa")
    assert archives(said.job) == ("b" * 64,)


def test_a_note_or_a_new_version_alone_is_nothing_to_say() -> None:
    before = with_two()
    after = fold_more(before, Noted(NOW, "a note"))
    assert after.version > before.version
    assert says_the_same(deposit_of(before), deposit_of(after))
    assert not says_the_same(
        deposit_of(before), deposit_of(fold_more(before, ended(Outcome.LOST), Requeued(NOW, "", 1)))
    )


def fold_more(before: RunRecord, *events: Event) -> RunRecord:
    from orchestrator.core.run import apply

    for event in events:
        before = apply(before, event)
    return before


def test_what_a_session_said_stays_in_the_ledger() -> None:
    spoken = "hunter2"
    held = fold_more(with_two(), Noted(NOW, spoken), ended(Outcome.CRASHED, message=spoken))
    assert spoken not in wire.encode(deposit_of(held)).decode()


@pytest.mark.parametrize(
    ("last", "phase"),
    [
        (Completed(NOW + 5, "all done"), Phase.DONE),
        (GaveUp(NOW + 5, "it crashed\nwith a long tail"), Phase.FAILED),
    ],
)
def test_a_run_that_was_over_arrives_over(last: Event, phase: Phase) -> None:
    said = deposit_of(over(last))
    events = adoption(said, Arrival(NOW + 100, "the store s3", "new", said.generation, 1))
    found = fold([submission(said, "s3"), *events])
    assert (found.phase, found.ended_at, found.store) == (phase, NOW + 5, "s3")
    assert found.reason == said.reason
    assert "tail" not in said.reason, "only the first line of a reason"
    assert found.accepted == said.accepted


def test_a_run_under_way_arrives_held_above_every_generation_that_may_exist() -> None:
    said = deposit_of(with_two())
    found = fold([submission(said, "s3"), *adoption(said, Arrival(NOW, "the store s3", "new", 8, 1))])
    assert (found.phase, found.session, found.generation, found.adoptions) == (Phase.HELD, None, 8, 1)
    assert f"its last session {RUN}-s01 on here may still run" in found.reason
    assert "continues from step 20" in found.reason
    assert found.accepted == said.accepted
    assert deposit_of(found).order > said.order, "the newer word, whatever its version"


def test_a_run_that_nobody_adopts_can_be_looked_at() -> None:
    assert record_of(deposit_of(with_two()), "s3").accepted == with_two().accepted


def _set(*path: str | int, to: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        at: Any = document
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = to

    return change


HOSTILE = {
    "another run": _set("run", to="other-abcdefgh"),
    "a newer format": _set("format", to=2),
    "a source outside": _set("job", "bundle", to="../../../etc/passwd"),
    "an image outside": _set("job", "image", to="build:../../x"),
    "an input outside": _set(
        "job", "inputs", to=[{"name": "../../.ssh/authorized_keys", "origin": "x", "sha256": SHA}]
    ),
    "an input without a sha256": _set(
        "job", "inputs", to=[{"name": "x", "origin": "/etc/passwd", "sha256": None}]
    ),
    "an input twice": _set(
        "job", "inputs", to=[{"name": "x", "origin": path, "sha256": SHA} for path in ("/a", "/b")]
    ),
    "inputs without end": _set(
        "job", "inputs", to=[{"name": f"x{i}", "origin": "/a", "sha256": SHA} for i in range(1001)]
    ),
    "an input with a long name": _set(
        "job", "inputs", to=[{"name": "x" * 201, "origin": "/a", "sha256": SHA}]
    ),
    "an input with a long path": _set(
        "job", "inputs", to=[{"name": "x", "origin": "/" * 9000, "sha256": SHA}]
    ),
    "steps without end": _set("job", "work", "total", to=2**40),
    "a batch without end": _set("job", "work", "global_batch", to=10**18),
    "a micro-batch without end": _set("job", "profiles", 0, 1, "micro_batch", to=10**18),
    "a cap without end": _set("micro_batch_caps", to=[["cpu", 10**18]]),
    "a session of any name": _set("session", to="\x1b[2Jx"),
    "a platform of any name": _set("platform", to="../here"),
    "an incarnation of any name": _set("incarnation", to="../x"),
    "a machine of any name": _set("adopted_by", to="pebble\x1b[2J"),
    "a reason without end": _set("reason", to="x" * 501),
    "a group without end": _set("group", to="x" * 5000),
    "a metric with a long name": _set("accepted", 0, "metrics", to={"x" * 300: 1.0}),
    "no steps": _set("job", "work", "total", to=0),
    "no batch": _set("job", "work", "global_batch", to=0),
    "no micro-batch": _set("job", "profiles", 0, 1, "micro_batch", to=0),
    "a job of another name": _set("job", "name", to="\x1b[2J"),
    "a generation without end": _set("generation", to=GENERATION_MAX + 1),
    "a generation below zero": _set("generation", to=-1),
    "a checkpoint of a later generation": _set("accepted", 0, "ref", "generation", to=2),
    "a checkpoint outside": _set("accepted", 0, "ref", "incarnation", to="../../x"),
    "a step beyond": _set("accepted", 0, "ref", "step", to=2**63),
    "a size below zero": _set("accepted", 0, "size", to=-1),
    "a sha256 that is none": _set("accepted", 0, "sha256", to="x"),
    "a time beyond": _set("submitted_at", to=1e300),
    "adoptions without end": _set("adoptions", to=9999),
    "a version below one": _set("version", to=0),
    "a phase of its own": _set("phase", to="dreaming"),
    "a list for a text": _set("reason", to=[]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_true_is_refused_in_words(name: str) -> None:
    document = json.loads(wire.encode(deposit_of(with_two())))
    HOSTILE[name](document)
    with pytest.raises(ValueError, match=r"\w"):
        decode(RUN, json.dumps(document).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"format": 1e999}'])
def test_any_bytes_are_refused_in_words(data: bytes) -> None:
    with pytest.raises(ValueError, match="Deposit"):
        decode(RUN, data)


def test_the_same_checkpoint_twice_is_refused() -> None:
    said = deposit_of(with_two())
    twice = replace(said, accepted=(said.accepted[0], said.accepted[0]))
    with pytest.raises(ValueError, match="the list of checkpoints"):
        decode(RUN, wire.encode(twice))


def test_the_paths_of_its_inputs_are_another_machines() -> None:
    """However often it went from one machine to the next."""
    given = Input("corpus", "/data/corpus", SHA)
    said = deposit_of(record(*running(), inputs=(given,)))
    for _ in range(2):
        [found] = decode(RUN, wire.encode(said)).job.inputs
        assert found == replace(given, origin="elsewhere:/data/corpus")
        said = replace(said, job=replace(said.job, inputs=(found,)))


def test_the_python_that_was_active_on_another_machine_is_left_out() -> None:
    for python in (Python("/opt/env/bin/python", given=True), Python("/opt/env/bin/python")):
        said = deposit_of(record(*running(), python=python))
        assert decode(RUN, wire.encode(said)).job.python == (python if python.given else None)


def test_a_machine_may_have_any_name() -> None:
    said = replace(deposit_of(with_two()), adopted_by=machine("mü\n" + "x" * 200))
    assert decode(RUN, wire.encode(said)).adopted_by == "m--" + "x" * 97
