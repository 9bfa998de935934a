"""Harmful or meaningless bytes for a session's outbox, drawn from a seed.

Most start from an honest value and change a little of it, because a value that is wrong everywhere is refused
at once. Knows the layout (docs/session-folder.md), but not its readers.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part

STEPS = (
    -1,
    0,
    1,
    2**31,
    2**53 + 1,
    2**63 - 1,
    2**63,
    10**18,
    10**19 - 1,
    10**30,
    10**308,
    10**400,
    -(10**400),
)
NUMBERS: tuple[Any, ...] = (
    *STEPS, 0.5, -0.0, 1e-320, 5e-324, 1e-9, 1e300, 1.7e308, -1.7e308, 10**308, float("nan"), float("inf"),
    float("-inf"), True, None, "7", "", [], {}, [1], {"a": 1},
)  # fmt: skip
TEXTS = (
    "", " ", ".", "..", "../../victim", "/etc/passwd", "a/b", "-rf", "--help", "\0", "a\nb", "a\r\x1b[2J",
    "\x1b]52;c;aGk=\x07", "\u202egnp.exe", "\ud800", "\udfff\ud800", "é", "e\u0301", "💥", "a" * 300,
    "x" * 70_000, "CON", "step-1", ".tmp-x", "%s%n{0}", "'; DROP TABLE runs; --", "null", "NaN",
)  # fmt: skip
INCARNATION = "0123456789abcdefghijklmnopqrstuvwxyz"


def number(draw: Random) -> Any:
    return draw.choice(NUMBERS) if draw.random() < 0.8 else draw.uniform(-1e9, 1e9)


def text(draw: Random) -> str:
    return draw.choice(TEXTS)


def value(draw: Random) -> Any:
    return number(draw) if draw.random() < 0.6 else text(draw)


def incarnation(draw: Random) -> str:
    """An incarnation that an agent might have drawn."""
    return "".join(draw.choices(INCARNATION, k=draw.choice((1, 10, 12, 32))))


def document(honest: dict[str, Any], draw: Random) -> bytes:
    """An honest JSON object with some values replaced, removed or wrapped; or not JSON at all."""
    changed = dict(honest)
    for name in draw.sample(sorted(changed), k=min(len(changed), draw.choice((0, 1, 1, 2, 5)))):
        if draw.random() < 0.1:
            del changed[name]
        else:
            changed[name] = value(draw)
    if draw.random() < 0.05:
        changed["warnings"] = [text(draw) for _ in range(draw.choice((1, 30, 3000)))]
    if draw.random() < 0.05:
        changed["unheard of"] = {"a": [value(draw)] * draw.choice((1, 1000))}
    return damaged(json.dumps(changed).encode(), draw)


def damaged(data: bytes, draw: Random) -> bytes:
    """Mostly the same bytes; sometimes cut, doubled, wrapped in brackets, or not text."""
    match draw.randrange(24):
        case 0:
            return data[: draw.randrange(len(data) + 1)]
        case 1:
            return data + data
        case 2:
            return b"[" * draw.choice((10, 3000, 100_000)) + data
        case 3:
            return b'{"a":' * draw.choice((10, 3000, 100_000)) + data
        case 4:
            return draw.randbytes(draw.choice((0, 1, 100, 5000)))
        case 5:
            return b"\xef\xbb\xbf" + data
        case 6:
            return b"9" * draw.choice((400, 4000, 100_000))
        case _:
            return data


def status(honest: dict[str, Any], draw: Random) -> bytes:
    return document(honest, draw)


def result(honest: dict[str, Any], draw: Random) -> bytes:
    changed = dict(honest)
    if draw.random() < 0.5:
        changed["outcome"] = draw.choice(
            ("completed", "stopped", "crashed", "lost", "denied", "out_of_memory", "quota_exhausted", "?")
        )
    return document(changed, draw)


def progress(draw: Random) -> bytes:
    """Lines that claim impossible rates, mixed with honest ones."""
    lines = []
    for step in range(draw.choice((0, 1, 5, 200))):
        line: dict[str, Any] = {"step": step, "metrics": {"loss": 1.0}}
        if draw.random() < 0.3:
            line = {"step": number(draw), "metrics": {text(draw): value(draw)}, text(draw): value(draw)}
        lines.append(damaged(json.dumps(line).encode(), draw))
    return draw.choice((b"\n", b"\r\n", b"\n\n", b"")).join(lines)


def log(draw: Random) -> bytes:
    lines = [text(draw).encode("utf-8", "surrogatepass") for _ in range(draw.choice((0, 1, 50)))]
    return b"\n".join([*lines, draw.randbytes(draw.choice((0, 10, 20_000)))])


# --- Checkpoints --------------------------------------------------------------------------------------------


def checkpoint(honest: Manifest, draw: Random) -> tuple[str, bytes]:
    """The name and manifest of a checkpoint similar to the honest one: of another step, run, generation or
    incarnation with a valid seal; or with a forged value; or damaged."""
    forged = replace(honest, ref=ref(honest.ref, draw))
    if draw.random() < 0.2:
        forged = replace(forged, run=draw.choice(("other-1", "../x", honest.run + "x")))
    if draw.random() < 0.2:
        forged = replace(forged, parent=text(draw)[:100], code=text(draw)[:100])
    if draw.random() < 0.2:
        forged = replace(
            forged, metrics={name[:50]: 1e308 for name in TEXTS}, environment=dict.fromkeys(TEXTS, "x")
        )
    try:
        data = forged.encode()
    except (ValueError, OverflowError):
        data = honest.encode()
    if draw.random() < 0.4:
        data = _resealed(data, draw)
    return forged.ref.name, damaged(data, draw) if draw.random() < 0.2 else data


def ref(honest: CheckpointRef, draw: Random) -> CheckpointRef:
    """An identity close to the honest one that fits into a name."""
    near = (honest.step, honest.step + 1, honest.step + draw.randrange(10**6))
    step = draw.choice((*near, 10**9, 2**62, 2**63 - 1, 2**63, 10**19 - 1, 0))
    generation = draw.choice((honest.generation, honest.generation, honest.generation + 1, 99, 10**8, 1))
    return CheckpointRef(step, generation, honest.incarnation if draw.random() < 0.7 else incarnation(draw))


def _resealed(data: bytes, draw: Random) -> bytes:
    """A manifest with one forged value and a valid seal."""
    try:
        found = json.loads(data)
    except ValueError:
        return data
    found.pop("sha256", None)
    places: list[Callable[[], None]] = [
        lambda: found.update({draw.choice(sorted(found)): value(draw)}),
        lambda: found.update(created_at=draw.choice((10**400, -(10**400), 1e308, 10**308, True, "x"))),
        lambda: found.update(metrics={text(draw): number(draw)}),
        lambda: found["files"][0].update({draw.choice(("path", "size", "parts")): value(draw)}),
        lambda: found["files"][0]["parts"][0].update({draw.choice(("sha256", "size")): value(draw)}),
        lambda: found.update(files=found["files"] * draw.choice((0, 2, 1000))),
    ]
    try:
        draw.choice(places)()
        text_ = json.dumps(found, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
        found["sha256"] = hashlib.sha256(text_.encode("utf-8", "surrogatepass")).hexdigest()
        sealed = json.dumps(found, sort_keys=True, indent=1, ensure_ascii=False) + "\n"
    except (ValueError, TypeError, KeyError, IndexError):
        return data
    return sealed.encode("utf-8", "surrogatepass")


def tiny(run: str, generation: int, who: str, step: int) -> tuple[str, bytes, str, bytes]:
    """The smallest possible checkpoint: its name, its manifest, and the sha256 and bytes of its one blob."""
    data = b"%d" % step
    sha256 = hashlib.sha256(data).hexdigest()
    files = (FileEntry("w", len(data), (Part(sha256, len(data)),)),)
    manifest = Manifest(run, CheckpointRef(step, generation, who), 16, files)
    return manifest.name, manifest.encode(), sha256, data
