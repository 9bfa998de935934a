"""Manifests and the choice between checkpoints: tables of what is read, refused, resumed from and retired."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core.bounds import PART_BYTES_MAX
from orchestrator.core.checkpoint import (
    Accepted,
    CheckpointRef,
    FileEntry,
    Grade,
    Manifest,
    Part,
    decode,
    grade,
    newest,
    safe_path,
    superseded,
    verify,
)
from orchestrator.errors import CorruptCheckpoint

A, B = "a" * 64, "b" * 64
MANIFEST = Manifest(
    run="graphmer-7f3kq2vd",
    ref=CheckpointRef(1000, 3, "k3j2"),
    global_batch=64,
    files=(
        FileEntry("model/weights.safetensors", 12, (Part(A, 8), Part(B, 4))),
        FileEntry("state.json", 8, (Part(A, 8),)),
    ),
    parent="0000000900-g02-x1",
    code="c" * 64,
    environment={"accelerator": "cpu", "torch": "2.13.0"},
    metrics={"loss": 2.5, "mrr": 1},
    created_at=1_795_000_000.25,
)


def sealed(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The manifest's document with a change, sealed again as if `encode` had written it."""
    document = json.loads(MANIFEST.encode())
    del document["sha256"]
    change(document)

    def canonical() -> bytes:
        return (json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False) + "\n").encode()

    document["sha256"] = hashlib.sha256(canonical()).hexdigest()
    return canonical()


def test_a_manifest_is_the_same_bytes_everywhere() -> None:
    assert decode(MANIFEST.name, MANIFEST.encode()) == MANIFEST
    assert decode(MANIFEST.name, MANIFEST.encode()).encode() == MANIFEST.encode()
    turned = replace(MANIFEST, environment=dict(reversed(list(MANIFEST.environment.items()))))
    assert turned.encode() == MANIFEST.encode()
    assert sealed(dict) == MANIFEST.encode()
    assert MANIFEST.name == "0000001000-g03-k3j2"
    assert MANIFEST.size == 20
    assert MANIFEST.blobs() == {A: 8, B: 4}


FILE = {"path": "x", "size": 1, "parts": [{"sha256": A, "size": 1}]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.update(format=2), "format 2, but this version reads 1"),
        (lambda d: d.update(format="1"), "format '1'"),
        (lambda d: d.update(step=1001, name="0000001001-g03-k3j2"), "belongs to '0000001001-g03-k3j2'"),
        (lambda d: d.update(name="0000000001-g01-a"), "sha256"),
        (lambda d: d.update(comment="more"), "sha256"),
        (lambda d: d.update(step=True), "whole number"),
        (lambda d: d.update(step=-1), "whole number"),
        (lambda d: d.update(global_batch=64.0), "whole number"),
        (lambda d: d.update(created_at="now"), "expected a number"),
        (lambda d: d.update(metrics=[]), "must be objects"),
        (lambda d: d.update(metrics={"loss": None}), "expected a number"),
        (lambda d: d.update(environment={"torch": 2}), "expected text"),
        (lambda d: d.update(files={}), "list of objects"),
        (lambda d: d.update(files=[1]), "list of objects"),
        (lambda d: d.pop("files"), "files"),
        (lambda d: d.update(files=[FILE, FILE]), "two files share one path"),
        (lambda d: d.update(files=[FILE, FILE | {"path": "x/y/z"}]), "uses another file"),
        (lambda d: d.update(files=[FILE | {"path": "../x"}]), "points outside the checkpoint"),
        (lambda d: d.update(files=[FILE | {"path": "/etc/x"}]), "points outside the checkpoint"),
        (lambda d: d.update(files=[FILE | {"path": "a\\x"}]), "points outside the checkpoint"),
        (lambda d: d.update(files=[FILE | {"size": 2}]), "do not add up"),
        (lambda d: d.update(files=[FILE | {"parts": [{"sha256": "../../x", "size": 1}]}]), "invalid part"),
        (lambda d: d.update(files=[{"path": "x", "size": PART_BYTES_MAX + 1,
                                    "parts": [{"sha256": A, "size": PART_BYTES_MAX + 1}]}]), "invalid part"),
    ],
)  # fmt: skip
def test_a_sealed_manifest_that_makes_no_sense_is_corrupt(
    change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(CorruptCheckpoint, match=reason) as caught:
        decode(MANIFEST.name, sealed(change))
    assert caught.value.name == MANIFEST.name


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b"\xff\xfe", b'"text"', b"[" * 100_000, b"1" * 10_000,
        MANIFEST.encode()[:-1], MANIFEST.encode() + b" ", MANIFEST.encode().replace(b"2.5", b"NaN"),
        MANIFEST.encode().replace(b"2.5", b"2.6"), MANIFEST.encode().replace(b"2.5", b"1e999"),
        MANIFEST.encode().replace(b"graphmer", b"graphwer"),
    ],
)  # fmt: skip
def test_damaged_bytes_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptCheckpoint):
        decode(MANIFEST.name, data)


def test_what_json_cannot_hold_is_refused_when_it_is_written() -> None:
    for value in (float("nan"), float("inf")):
        with pytest.raises(ValueError):
            replace(MANIFEST, metrics={"loss": value}).encode()


@pytest.mark.parametrize(
    ("name", "ref"),
    [
        ("0000001000-g03-k3j2", CheckpointRef(1000, 3, "k3j2")),
        ("0000000000-g01-a", CheckpointRef(0, 1, "a")),
        ("12345678901-g100-a", CheckpointRef(12345678901, 100, "a")),
        ("00000001000-g03-a", None),
        ("1000-g03-a", None),
        ("0000001000-g3-a", None),
        ("0000001000-g003-a", None),
        ("0000001000-g03-A", None),
        ("0000001000-g03-", None),
        ("0000001000-g03-a/..", None),
        ("0000001000-g03-a\n", None),
        ("latest", None),
        ("", None),
    ],
)
def test_a_reference_is_its_name(name: str, ref: CheckpointRef | None) -> None:
    assert CheckpointRef.parse(name) == ref
    if ref is not None:
        assert ref.name == name


@pytest.mark.parametrize(
    ("path", "safe"),
    [
        ("a", True), ("a/b.c", True), ("...", True), ("", False), ("/a", False), ("a/", False),
        ("a//b", False), ("..", False), ("a/../b", False), ("./a", False), ("a\\b", False), ("a\0", False),
    ],
)  # fmt: skip
def test_paths_that_stay_inside(path: str, safe: bool) -> None:
    assert safe_path(path) is safe


@pytest.mark.parametrize(
    ("found", "reason"),
    [({A: 8, B: 4, "c": 1}, None), ({A: 8}, "missing or altered"), ({A: 8, B: 3}, "has 3 of 4 bytes")],
)
def test_verification_names_the_blob(found: dict[str, int], reason: str | None) -> None:
    if reason is None:
        verify(MANIFEST, found)
        return
    with pytest.raises(CorruptCheckpoint, match=f"{B[:12]}.*{reason}"):
        verify(MANIFEST, found)


def accepted(step: int, generation: int = 1, incarnation: str = "a", **metrics: float) -> Accepted:
    return Accepted(CheckpointRef(step, generation, incarnation), 1, metrics)


def test_the_newest_is_the_furthest_then_of_the_latest_generation() -> None:
    assert newest([]) is None
    candidates = [accepted(900, 3), accepted(1000, 1), accepted(1000, 2), accepted(100, 9)]
    assert newest(candidates) == accepted(1000, 2)


@pytest.mark.parametrize(
    ("last", "best", "pinned", "gone"),
    [
        (3, None, set(), [2, 1]),
        (9, None, set(), []),
        (0, None, set(), [4, 3, 2, 1]),
        (1, ("mrr", "max"), set(), [4, 2, 1]),
        (1, ("mrr", "min"), set(), [4, 3, 2]),
        (1, ("absent", "max"), set(), [4, 3, 2, 1]),
        (1, None, {2}, [4, 3, 1]),
    ],
)
def test_what_retention_deletes(
    last: int, best: tuple[str, str] | None, pinned: set[int], gone: list[int]
) -> None:
    candidates = [accepted(step, mrr=mrr) for step, mrr in [(1, 0.1), (2, 0.9), (3, 0.9), (4, 0.3)]]
    candidates.append(accepted(5))
    names = frozenset(accepted(step).name for step in pinned)
    assert [c.ref.step for c in superseded(candidates, last=last, best=best, pinned=names)] == gone


CPU = {"accelerator": "cpu", "torch": "2.13.0", "numpy": "2.4.0", "devices": "1"}
GPU = CPU | {"accelerator": "T4", "deterministic": "true"}
TWO = GPU | {"accelerator": "T4x2", "devices": "2"}


def without(environment: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in environment.items() if key != name}


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (CPU, dict(reversed(CPU.items())), Grade.BITWISE),
        (CPU, CPU | {"torch": "2.13.1"}, Grade.STATE_EXACT),
        (CPU, CPU | {"numpy": "2.4.1"}, Grade.STATE_EXACT),
        (CPU, CPU | {"threads": "2"}, Grade.STATE_EXACT),
        (CPU, without(CPU, "torch"), Grade.STATE_EXACT),
        (without(CPU, "numpy"), CPU, Grade.STATE_EXACT),  # resumed from a checkpoint of an older version
        (without(CPU, "numpy"), without(CPU, "numpy"), Grade.STATE_EXACT),
        (CPU | {"numpy": ""}, CPU | {"numpy": ""}, Grade.BITWISE),  # there is no numpy
        (CPU, GPU, Grade.STATE_EXACT),
        (GPU, GPU, Grade.BITWISE),
        (TWO, TWO, Grade.BITWISE),
        (GPU | {"devices": "4"}, GPU | {"devices": "4"}, Grade.STATE_EXACT),
        (without(GPU, "devices"), without(GPU, "devices"), Grade.STATE_EXACT),
        (without(GPU, "deterministic"), without(GPU, "deterministic"), Grade.STATE_EXACT),
        (without(GPU, "deterministic"), GPU, Grade.STATE_EXACT),
        (GPU, without(GPU, "deterministic"), Grade.STATE_EXACT),
        (without(CPU, "accelerator"), without(CPU, "accelerator"), Grade.STATE_EXACT),
        ({}, {}, Grade.STATE_EXACT),
    ],
)  # fmt: skip
def test_the_grade_of_a_resume(before: dict[str, str], now: dict[str, str], expected: Grade) -> None:
    assert grade(replace(MANIFEST, environment=before), now) is expected
