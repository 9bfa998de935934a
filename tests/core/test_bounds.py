"""Limits on untrusted values: each value is within its limits or absent; each decoder refuses in one way."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core import bounds, checkpoint, wire
from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.order import AgentStatus, Order, Result
from orchestrator.core.run import RunRecord
from orchestrator.core.session import Observation
from orchestrator.errors import CorruptCheckpoint

patient = settings(deadline=None, max_examples=150)
REF = CheckpointRef(5, 1, "abc")
MANIFEST = Manifest("demo", REF, 8, (FileEntry("a", 1, (Part("0" * 64, 1),)),))
DOCUMENT = json.loads(MANIFEST.encode())

# JSON that breaks readers: numbers too large for a float or for Python's int parser, lone surrogates, NUL,
# and deep nesting.
WILD = (
    b"1" + b"0" * 400, b"1" + b"0" * 5000, b"1e999", b"-1e400", b"NaN", b"Infinity", b'"\\ud800"',
    b'"\\u0000"', b"[" * 100_000, b'{"a":' * 50_000, b"9223372036854775808", b"true", b"null", b"-1", b"{}",
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text()
    | st.sampled_from([10**400, -(10**400), 2**63, 10**308, "\0", "step-9999999999999999999"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize(
    ("clean", "good", "bad"),
    [
        (bounds.step, [0, 7, 2**63 - 1], [-1, 2**63, 9999999999999999999, 10**400]),
        (bounds.rate, [1e-9, 1.0, 1e9], [0.0, -1.0, 5e-324, 1e308, math.inf, math.nan]),
        (bounds.seconds, [0.0, 3600.0], [-1.0, 1e300, math.inf, math.nan]),
        (bounds.moment, [0.0, 1.8e9, 253_402_300_799.0], [-1.0, 1e16, math.inf, math.nan]),
        (bounds.finite, [0.0, -1e308], [math.inf, -math.inf, math.nan]),
    ],
)
def test_a_number_beyond_its_bound_is_none(clean: object, good: list[float], bad: list[float]) -> None:
    assert callable(clean)
    assert [clean(value) for value in good] == good
    assert [clean(value) for value in (*bad, None)] == [None] * (len(bad) + 1)


@patient
@given(st.text(), st.integers(4, 40))
def test_a_text_fits_any_database_and_its_bound(text: str, limit: int) -> None:
    found = bounds.text(text, limit)
    assert len(found.encode()) <= limit
    assert "\0" not in found


def test_a_text_within_its_bound_stays() -> None:
    assert bounds.text("ein Wörtchen", 20) == "ein Wörtchen"
    assert bounds.text("half \ud800 and \0", 40).isprintable()


@pytest.mark.parametrize("cls", [AgentStatus, Result, Order, RunRecord, Observation])
@patient
@given(data=st.binary(max_size=60) | st.sampled_from(WILD) | VALUES.map(lambda v: json.dumps(v).encode()))
def test_bytes_are_decoded_or_refused_by_a_value_error(cls: type, data: bytes) -> None:
    with pytest.raises(ValueError):
        wire.decode(cls, data)


@pytest.mark.parametrize("wild", WILD)
@pytest.mark.parametrize("key", ["heartbeat", "written_at", "step", "steps_per_second", "state", "warnings"])
def test_a_status_with_a_wild_value_is_decoded_or_refused(key: str, wild: bytes) -> None:
    good = {"incarnation": "abc", "heartbeat": 1, "written_at": 1.0, "state": "training"}
    text = json.dumps(good | {key: "HERE"}).encode().replace(b'"HERE"', wild)
    try:
        found = wire.decode(AgentStatus, text)
    except ValueError:
        return
    assert wire.decode(AgentStatus, wire.encode(found)) == found


@patient
@given(
    st.sampled_from(sorted(DOCUMENT)), st.sampled_from(WILD) | VALUES.map(lambda v: json.dumps(v).encode())
)
def test_a_manifest_with_a_wild_value_is_corrupt(key: str, wild: bytes) -> None:
    data = json.dumps(DOCUMENT | {key: "HERE"}).encode().replace(b'"HERE"', wild)
    with pytest.raises(CorruptCheckpoint):
        checkpoint.decode(REF.name, data)


@pytest.mark.parametrize("data", [b"", b"\xff\xfe\x00", b"[]", b"7", b"[" * 100_000, *WILD])
def test_bytes_that_are_no_manifest_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint) as raised:
        checkpoint.decode(REF.name, data)
    assert len(raised.value.reason) < 600


def _sealed(**changes: object) -> tuple[str, bytes]:
    """A manifest with any content whose own sha256 is right."""
    fields = {name: getattr(MANIFEST, name) for name in ("run", "ref", "global_batch", "files")}
    manifest = Manifest(**{**fields, **changes})
    return manifest.name, manifest.encode()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"created_at": 1e300}, "not a time"),
        ({"created_at": -1.0}, "not a time"),
        ({"ref": CheckpointRef(9999999999999999999, 1, "abc")}, "larger than 2"),
        ({"metrics": {f"m{i}": 1.0 for i in range(1001)}}, "1,000 metrics"),
        ({"metrics": {"m" * 300: 1.0}}, "name of a metric"),
        ({"files": tuple(FileEntry(f"f{i}", 0, ()) for i in range(20_001))}, "20,000 files"),
        ({"files": (FileEntry("a/" * 2500 + "b", 0, ()),)}, "path in it"),
        ({"files": (FileEntry("a", 2 << 40, (Part("0" * 64, 2 << 40),)),)}, "larger than 1 TB"),
    ],
)
def test_a_sealed_manifest_beyond_a_bound_is_corrupt(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(CorruptCheckpoint, match=reason):
        checkpoint.decode(*_sealed(**changes))


def test_the_name_of_an_impossible_step_is_no_checkpoints() -> None:
    assert CheckpointRef.parse("9223372036854775807-g01-abc") is not None
    assert CheckpointRef.parse("9999999999999999999-g01-abc") is None


def test_every_limit_is_in_the_table() -> None:
    source = Path(bounds.__file__).read_text(encoding="utf-8")
    limits, table = source.split("TABLE:")
    names = [*re.findall(r"^(\w+_(?:MAX|MIN))\b", limits, re.MULTILINE), "RATE_MAX"]
    in_words = {"STEP_MAX", "WHOLE_MAX", "TIME_MAX"}
    used = set(re.findall(r"\w+", table))
    assert [name for name in names if name not in used | in_words] == []
