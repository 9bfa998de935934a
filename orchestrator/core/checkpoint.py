"""Checkpoint manifests: their names, their bytes, their verification, and which one to resume from.

Pure: the caller reads files and hashes them. Ships inside the agent, so it uses the standard library only
and stays compatible with every Python ≥ 3.11. Layout below a run's prefix, in an outbox and in a store:

    checkpoints/<step, 10 digits>-g<generation>-<incarnation>/manifest.json
    blobs/<sha256>

A session's outputs travel like a checkpoint, with `-outputs` after the name. Nothing resumes from them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from itertools import pairwise

from orchestrator.core import bounds
from orchestrator.errors import CorruptCheckpoint

FORMAT = 1
DETERMINISTIC = "deterministic"  # in a manifest's environment, "true" if the training said so
KEEP_OPEN_MIN = 2  # a newer checkpoint may appear while a reader fetches the newest
_NAME = re.compile(
    r"(?P<step>\d{10,19})-g(?P<generation>\d{2,9})-(?P<incarnation>[0-9a-z]{1,32})(?P<outputs>-outputs)?"
)
_OUTPUTS = "-outputs"
_REASON_BYTES_MAX = 500
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Part:
    """One stored blob: a whole file, or a slice of one above `bounds.PART_BYTES_MAX`."""

    sha256: str
    size: int


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: its relative path with forward slashes, and its parts in order."""

    path: str
    size: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint's identity, which its name contains completely. `outputs`: it holds the files that its
    session left for people, and `step` is the last one that the session reached."""

    step: int
    generation: int
    incarnation: str
    outputs: bool = False

    @property
    def name(self) -> str:
        name = f"{self.step:010d}-g{self.generation:02d}-{self.incarnation}"
        return f"{name}{_OUTPUTS}" if self.outputs else name

    @classmethod
    def parse(cls, name: str) -> CheckpointRef | None:
        """The reference a folder name stands for, or None for a name that is not ours."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        outputs = match["outputs"] is not None
        ref = cls(int(match["step"]), int(match["generation"]), match["incarnation"], outputs)
        return ref if ref.name == name and bounds.step(ref.step) is not None else None


@dataclass(frozen=True)
class Manifest:
    """The contents of a checkpoint. The manifest is written last; without it there is no checkpoint.

    `environment` holds what bitwise resume depends on: accelerator class, devices, micro-batch, torch build,
    numpy, threads, instruction set, and whether torch was deterministic. `code` is the bundle's sha256, and
    `parent` the checkpoint that the session resumed. `created_at` is by the agent's clock, for people only.
    """

    run: str
    ref: CheckpointRef
    global_batch: int
    files: tuple[FileEntry, ...]
    parent: str | None = None
    code: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    created_at: float = 0.0

    @property
    def name(self) -> str:
        return self.ref.name

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.files)

    def blobs(self) -> dict[str, int]:
        """sha256 → size of every blob it needs, each once."""
        return {part.sha256: part.size for entry in self.files for part in entry.parts}

    def encode(self) -> bytes:
        """Canonical JSON, sealed by its own sha256: the same manifest gives the same bytes everywhere.

        Raises ValueError for values that JSON cannot hold: a number that is not finite, or invalid Unicode.
        """
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        document: dict[str, object] = {
            "format": FORMAT,
            "run": self.run,
            "name": self.name,
            "step": self.ref.step,
            "generation": self.ref.generation,
            "incarnation": self.ref.incarnation,
            "global_batch": self.global_batch,
            "parent": self.parent,
            "code": self.code,
            "environment": dict(self.environment),
            "metrics": {name: float(value) for name, value in self.metrics.items()},
            "created_at": float(self.created_at),
            "files": [
                {
                    "path": entry.path,
                    "size": entry.size,
                    "parts": [{"sha256": part.sha256, "size": part.size} for part in entry.parts],
                }
                for entry in self.files
            ],
        }
        return _sealed(document)

    @property
    def sha256(self) -> str:
        """The sha256 of its bytes, including the seal. Acceptances journal it, and orders contain it."""
        return hashlib.sha256(self.encode()).hexdigest()


def _sealed(document: Mapping[str, object]) -> bytes:
    """Canonical JSON, with an extra line for the sha256 of all other lines, between `run` and `step`."""
    text = json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    seal = hashlib.sha256(text.encode()).hexdigest()
    before, step, after = text.rpartition('\n "step": ')  # JSON texts contain no line breaks
    return f'{before}\n "sha256": "{seal}",{step}{after}'.encode()


def decode(name: str, data: bytes) -> Manifest:
    """Reads a manifest and checks it against its seal, its limits and its folder's name.

    Raises CorruptCheckpoint, and nothing else, for any bytes that `encode` could not have written, and for a
    manifest outside `orchestrator.core.bounds`.
    """
    if len(data) > bounds.MANIFEST_BYTES_MAX:
        limit = bounds.size_text(bounds.MANIFEST_BYTES_MAX)
        raise CorruptCheckpoint(name, f"the manifest is larger than {limit}")
    try:
        manifest = _from_document(json.loads(data))
        altered = manifest.encode() != data
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        reason = bounds.text(f"{type(error).__name__}: {error}", _REASON_BYTES_MAX)
        raise CorruptCheckpoint(name, f"unreadable manifest ({reason})") from error
    if altered:
        raise CorruptCheckpoint(name, "the manifest does not match its own sha256")
    if manifest.name != name:
        raise CorruptCheckpoint(name, f"the manifest belongs to {manifest.name[:80]!r}")
    beyond = _beyond(manifest)
    if beyond:
        raise CorruptCheckpoint(name, beyond)
    for entry in manifest.files:
        _check_entry(name, entry)
    _check_paths(name, {entry.path for entry in manifest.files}, len(manifest.files))
    return manifest


def authenticate(name: str, data: bytes, sha256: str | None) -> None:
    """Checks that a manifest's bytes are the accepted ones. The seal cannot show this: if someone replaces
    manifest and blobs together, they can write a new seal.

    `sha256` is the accepted manifest's. If it is empty or None, an older version accepted the checkpoint
    without keeping it, and every manifest of this name passes. Raises CorruptCheckpoint.
    """
    if sha256 and hashlib.sha256(data).hexdigest() != sha256:
        found = hashlib.sha256(data).hexdigest()
        reason = f"its manifest was replaced: it has sha256 {found[:12]}…, but {sha256[:12]}… was accepted"
        raise CorruptCheckpoint(name, reason)


def _from_document(document: object) -> Manifest:
    if not isinstance(document, dict):
        raise TypeError("expected an object")
    d: dict[str, object] = document
    if d["format"] != FORMAT:
        raise ValueError(f"format {d['format']!r}, but this version reads {FORMAT}")
    files = []
    for raw in _list(d["files"]):
        parts = tuple(Part(_text(p["sha256"]), _count(p["size"])) for p in _list(raw["parts"]))
        files.append(FileEntry(_text(raw["path"]), _count(raw["size"]), parts))
    environment, metrics = d["environment"], d["metrics"]
    if not isinstance(environment, dict) or not isinstance(metrics, dict):
        raise TypeError("environment and metrics must be objects")
    parent = d["parent"]
    return Manifest(
        run=_text(d["run"]),
        ref=CheckpointRef(
            _count(d["step"]),
            _count(d["generation"]),
            _text(d["incarnation"]),
            _text(d["name"]).endswith(_OUTPUTS),
        ),
        global_batch=_count(d["global_batch"]),
        files=tuple(files),
        parent=None if parent is None else _text(parent),
        code=_text(d["code"]),
        environment={_text(k): _text(v) for k, v in environment.items()},
        metrics={_text(k): _number(v) for k, v in metrics.items()},
        created_at=_number(d["created_at"]),
    )


def _beyond(manifest: Manifest) -> str:
    """The limit that the manifest breaks; empty if it keeps all."""
    if bounds.step(manifest.ref.step) is None:
        return "its step is larger than 2⁶³ − 1"
    if len(manifest.files) > bounds.FILES_MAX:
        return f"it has more than {bounds.FILES_MAX:,} files"
    if any(len(entry.path.encode()) > bounds.PATH_BYTES_MAX for entry in manifest.files):
        return f"a path in it is longer than {bounds.size_text(bounds.PATH_BYTES_MAX)}"
    if manifest.size > bounds.CHECKPOINT_BYTES_MAX:
        return f"it is larger than {bounds.size_text(bounds.CHECKPOINT_BYTES_MAX)}"
    if len(manifest.metrics) > bounds.METRICS_MAX:
        return f"it has more than {bounds.METRICS_MAX:,} metrics"
    if any(len(name.encode()) > bounds.METRIC_NAME_BYTES_MAX for name in manifest.metrics):
        return f"the name of a metric is longer than {bounds.size_text(bounds.METRIC_NAME_BYTES_MAX)}"
    if manifest.created_at and bounds.moment(manifest.created_at) is None:
        return "created_at is not a time between 1970 and 9999"
    return ""


def _list(value: object) -> list[dict[str, object]]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise TypeError("expected a list of objects")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"expected a whole number, found {_shown(value)}")
    if value > bounds.WHOLE_MAX:
        raise ValueError("a whole number has more than 128 bits")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"expected a number, found {_shown(value)}")
    return float(value)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:60]}…"


def _check_entry(name: str, entry: FileEntry) -> None:
    if not safe_path(entry.path):
        raise CorruptCheckpoint(name, f"the path {entry.path[:200]!r} points outside the checkpoint")
    if entry.size != sum(part.size for part in entry.parts):
        raise CorruptCheckpoint(name, f"the parts of {entry.path[:200]!r} do not add up to its size")
    for part in entry.parts:
        if not _SHA256.fullmatch(part.sha256) or part.size > bounds.PART_BYTES_MAX:
            raise CorruptCheckpoint(name, f"{entry.path[:200]!r} has an invalid part")


def _check_paths(name: str, paths: set[str], count: int) -> None:
    if len(paths) != count:
        raise CorruptCheckpoint(name, "two files share one path")
    ordered = sorted(path.split("/") for path in paths)
    for above, below in pairwise(ordered):  # paths inside a path follow directly after it
        if below[: len(above)] == above:
            raise CorruptCheckpoint(name, f"{'/'.join(below)[:200]!r} uses another file as a folder")


def safe_path(path: str) -> bool:
    """Whether a relative path with forward slashes stays inside the folder it is joined to."""
    pieces = path.split("/")
    return (
        bool(path) and "\\" not in path and "\0" not in path and not any(p in ("", ".", "..") for p in pieces)
    )


def verify(manifest: Manifest, found: Mapping[str, int]) -> None:
    """Checks that every blob exists with its size. `found`: sha256, as the caller computed it, → size.

    Raises CorruptCheckpoint with the first blob that is missing or has another size.
    """
    for sha256, size in manifest.blobs().items():
        if sha256 not in found:
            raise CorruptCheckpoint(manifest.name, f"blob {sha256[:12]}… is missing or altered")
        if found[sha256] != size:
            raise CorruptCheckpoint(manifest.name, f"blob {sha256[:12]}… has {found[sha256]} of {size} bytes")


class Grade(StrEnum):
    """How exactly a resume continues (docs/training-contract.md#what-resume-promises)."""

    BITWISE = "bitwise"
    STATE_EXACT = "state-exact"
    AS_SAVED = "as saved"  # by a script's own habit, of which nobody knows what it restores


def grade(manifest: Manifest, environment: Mapping[str, str]) -> Grade:
    """Bitwise if the session's environment equals the recorded one in every entry and is known to be enough.

    Older versions did not record numpy. Elsewhere than on a CPU the training must have said that it is
    deterministic, and on more than two devices even that is not enough
    (docs/references/training.md#determinism).
    """
    same = "numpy" in environment and dict(environment) == dict(manifest.environment)
    enough = environment.get("accelerator") == "cpu" or (
        environment.get(DETERMINISTIC) == "true" and environment.get("devices") in ("1", "2")
    )
    return Grade.BITWISE if same and enough else Grade.STATE_EXACT


@dataclass(frozen=True)
class Accepted:
    """A checkpoint that the engine accepted: complete in the home store, from its session's one incarnation.

    `metrics` holds only what retention needs. `created_at` is the manifest's; 0: not known. `sha256` is of
    the manifest's bytes; empty: an older version accepted it without one, so it is never authenticated.
    """

    ref: CheckpointRef
    size: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    created_at: float = 0.0
    sha256: str = ""

    @property
    def name(self) -> str:
        return self.ref.name


def newest(candidates: Iterable[Accepted]) -> Accepted | None:
    """The checkpoint to resume from: the highest step, then the highest generation, then the name."""
    found = (each for each in candidates if not each.ref.outputs)
    return max(found, key=lambda c: (c.ref.step, c.ref.generation, c.name), default=None)


def superseded(
    candidates: Iterable[Accepted], *, last: int, best: tuple[str, str] | None, pinned: frozenset[str]
) -> tuple[Accepted, ...]:
    """What retention may delete: all but the newest `last`, the best by `(metric, mode)` and the pinned.
    Never outputs."""
    found = (each for each in candidates if not each.ref.outputs)
    ordered = sorted(found, key=lambda c: (c.ref.step, c.ref.generation, c.name), reverse=True)
    kept = {c.name for c in ordered[: max(1, last)]} | pinned
    if best is not None:
        metric, mode = best
        scored = [c for c in ordered if metric in c.metrics]
        if scored:
            sign = 1.0 if mode == "max" else -1.0
            kept.add(max(scored, key=lambda c: sign * c.metrics[metric]).name)
    return tuple(c for c in ordered if c.name not in kept)


def superseded_while_open(
    published: Iterable[Accepted], *, last: int, best: tuple[str, str] | None, pinned: frozenset[str]
) -> tuple[Accepted, ...]:
    """What the writer of an open lineage may delete of its own. The agent and its uplink use this one rule.

    At least the newest two stay. `pinned`: what others rely on, such as the newest accepted one.
    """
    return superseded(published, last=max(KEEP_OPEN_MIN, last), best=best, pinned=pinned)
