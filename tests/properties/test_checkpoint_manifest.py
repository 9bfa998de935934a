"""Any manifest that Hypothesis can generate is read back unchanged or is corrupt, never a different one."""

from __future__ import annotations

import random
import string

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from orchestrator.core.bounds import PART_BYTES_MAX
from orchestrator.core.checkpoint import (
    Accepted,
    CheckpointRef,
    FileEntry,
    Manifest,
    Part,
    decode,
    newest,
    superseded,
)
from orchestrator.errors import CorruptCheckpoint

patient = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # a busy machine is not a failure

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
SHA256 = st.text("0123456789abcdef", min_size=64, max_size=64)
INCARNATIONS = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=32)
REFS = st.builds(CheckpointRef, st.integers(0, 2**63 - 1), st.integers(0, 10**9 - 1), INCARNATIONS)
NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\\\0"), min_size=1, max_size=8)


@st.composite
def entries(draw: st.DrawFn) -> FileEntry:
    path = "/".join(
        draw(st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3))
    )
    parts = draw(st.lists(st.builds(Part, SHA256, st.integers(0, PART_BYTES_MAX)), max_size=3))
    return FileEntry(path, sum(part.size for part in parts), tuple(parts))


def apart(files: list[FileEntry]) -> bool:
    """Whether no file has the path of another file or of another file's folder."""
    paths = [f"{entry.path}/" for entry in files]
    return not any(a.startswith(b) for i, a in enumerate(paths) for j, b in enumerate(paths) if i != j)


MANIFESTS = st.builds(
    Manifest,
    run=TEXT,
    ref=REFS,
    global_batch=st.integers(0, 10**6),
    files=st.lists(entries(), max_size=4).filter(apart).map(tuple),
    parent=st.none() | TEXT,
    code=TEXT,
    environment=st.dictionaries(TEXT, TEXT, max_size=3),
    metrics=st.dictionaries(TEXT, NUMBERS | st.integers(-(2**53), 2**53), max_size=3),
    created_at=st.floats(0.0, 253_402_300_799.0),
)


@patient
@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was(manifest: Manifest) -> None:
    data = manifest.encode()
    assert decode(manifest.name, data) == manifest
    assert decode(manifest.name, data).encode() == data


@patient
@given(MANIFESTS, st.data())
def test_any_damage_is_found(manifest: Manifest, data: st.DataObject) -> None:
    encoded = manifest.encode()
    start = data.draw(st.integers(0, len(encoded)))
    length = data.draw(st.integers(0, 3))
    damaged = encoded[:start] + data.draw(st.binary(max_size=3)) + encoded[start + length :]
    assume(damaged != encoded)
    with pytest.raises(CorruptCheckpoint) as caught:
        decode(manifest.name, damaged)
    assert caught.value.name == manifest.name


@patient
@given(MANIFESTS, REFS)
def test_a_manifest_under_another_name_is_refused(manifest: Manifest, other: CheckpointRef) -> None:
    assume(other != manifest.ref)
    with pytest.raises(CorruptCheckpoint):
        decode(other.name, manifest.encode())


@patient
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode(errors="replace")))
def test_no_bytes_make_decode_fail_in_any_other_way(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode("0000000001-g01-a", data)


@patient
@given(REFS)
def test_a_name_says_which_checkpoint_it_is(ref: CheckpointRef) -> None:
    assert CheckpointRef.parse(ref.name) == ref


CANDIDATES = st.lists(
    st.builds(
        Accepted,
        st.builds(CheckpointRef, st.integers(0, 20), st.integers(0, 5), st.sampled_from("abc")),
        st.just(1),
        st.dictionaries(st.just("mrr"), NUMBERS, max_size=1),
    ),
    unique_by=lambda candidate: candidate.name,
    max_size=12,
)


@patient
@given(CANDIDATES, st.randoms())
def test_the_newest_depends_on_no_order(candidates: list[Accepted], chance: random.Random) -> None:
    best = newest(candidates)
    assert (best is None) == (not candidates)
    assert newest(chance.sample(candidates, len(candidates))) == best
    assert all(best is not None and c.ref.step <= best.ref.step for c in candidates)


@patient
@given(
    CANDIDATES,
    st.integers(-1, 5),
    st.none() | st.tuples(st.just("mrr"), st.sampled_from(["max", "min"])),
    st.frozensets(st.sampled_from(["0000000001-g01-a", "0000000002-g02-b"])),
)
def test_retention_keeps_what_it_must(
    candidates: list[Accepted], last: int, best: tuple[str, str] | None, pinned: frozenset[str]
) -> None:
    gone = superseded(candidates, last=last, best=best, pinned=pinned)
    kept = [c for c in candidates if c not in gone]
    assert len(gone) + len(kept) == len(candidates)
    assert newest(kept) == newest(candidates)
    assert not pinned & {c.name for c in gone}
    assert len(kept) >= min(last, len(candidates))
    scores = [c.metrics["mrr"] for c in candidates if "mrr" in c.metrics]
    if best is not None and scores:
        extreme = max(scores) if best[1] == "max" else min(scores)
        assert extreme in [c.metrics.get("mrr") for c in kept]
    assert superseded(kept, last=last, best=best, pinned=pinned) == ()
