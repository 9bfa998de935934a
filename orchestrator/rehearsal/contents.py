"""What differs between two checkpoints of the same step, by file and by the values in it.

Reads what torch, safetensors, pickle and zip write; `inert` loads it, so nothing of a checkpoint is ever run.
Compares any other file byte by byte. Decides nothing.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agent.wholeness import is_whole
from orchestrator.rehearsal import inert

_LOADED_BYTES_MAX = 4_000_000_000
_TOLD_MAX = 5
_DEPTH_MAX = 32
_PICKLE, _ZIP = b"\x80", b"PK\x03\x04"
_LOG = re.compile(r"(?:.*/)?trainer_state\.json: log_history\b")  # Hugging Face's: a loss since the last line
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Difference:
    """One file or value that differs. `largest`: the largest absolute difference of two numbers or tensors,
    None if that means nothing. `is_state`: it may be weights or another state. Otherwise it is a single
    number or text, such as a time."""

    place: str
    largest: float | None = None
    is_state: bool = True

    def __str__(self) -> str:
        return self.place if self.largest is None else f"{self.place} (by up to {self.largest:.3g})"

    @property
    def kind(self) -> str:
        """The place, the same for checkpoints of all steps."""
        name, _, inner = self.place.partition(": ")
        return f"{_DIGITS.sub('#', name)}: {inner}"


def torn(folder: Path) -> list[str]:
    """The files of a checkpoint that are incomplete."""
    return [name for name in _files(folder) if is_whole(folder / name) is False]


def differences(one: Path, other: Path) -> list[Difference]:
    """What differs between two folders; empty if nothing does. Values come before whole files. Files whose
    names differ, such as random ones, are compared in the order of their names if there are equally many."""
    here, there = _files(one), _files(other)
    alone, elsewhere = sorted(set(here) - set(there)), sorted(set(there) - set(here))
    pairs = [(name, name) for name in sorted(set(here) & set(there))]
    found = []
    if len(alone) == len(elsewhere):
        pairs += zip(_alike(one, alone), _alike(other, elsewhere), strict=True)
    else:
        found = [Difference(f"{name} is only in one of them") for name in (*alone, *elsewhere)]
    for name, its in pairs:
        if _digest(one / name) != _digest(other / its):
            found += _in_file(one / name, other / its, name)
    return found


def without(found: Sequence[Difference], varying: Sequence[Difference]) -> list[Difference]:
    """The differences that count: not those of a log, nor single values that differ in every training."""
    always = {each.kind for each in varying if not each.is_state}
    return [
        each for each in found if not _LOG.match(each.place) and (each.is_state or each.kind not in always)
    ]


def told(found: Sequence[Difference]) -> str:
    """The first few, for a person."""
    more = f" and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
    return ", ".join(map(str, found[:_TOLD_MAX])) + more


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _alike(folder: Path, names: list[str]) -> list[str]:
    return sorted(names, key=lambda name: (Path(name).suffix, (folder / name).stat().st_size, name))


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_file(one: Path, other: Path, name: str) -> list[Difference]:
    """Empty if both hold the same values, written in another way."""
    for load in (_loaded, _members):
        try:
            return list(_between(load(one), load(other), name, 0))
        except Exception:  # noqa: BLE001 - a format that we do not read, damaged, or no torch here
            continue
    return [Difference(name)]


def _loaded(path: Path) -> Any:
    """The values in a file. Raises any exception for one that is not read."""
    if path.stat().st_size > _LOADED_BYTES_MAX:
        raise ValueError("it may not fit into memory")
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        from safetensors.torch import load

        return load(data)
    if path.suffix == ".json":
        return json.loads(data)
    if data.startswith(_PICKLE):
        return inert.unpickled(data)
    if data.startswith(_ZIP):
        return inert.of_torch(data)
    raise ValueError("not a known format")


def _members(path: Path) -> dict[str, bytes]:
    """The files in a zip archive, such as numpy's and Keras's. The dates in it do not count."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _between(one: Any, other: Any, place: str, depth: int) -> Iterator[Difference]:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deeply")
    if type(one) is not type(other):
        yield Difference(place)
    elif isinstance(one, inert.Opaque):
        yield from _between(one.parts(), other.parts(), place, depth)
    elif isinstance(one, dict):
        yield from _between_tables(one, other, place, depth)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield Difference(place)
            return
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _between(left, right, f"{place}[{number}]", depth + 1)
    elif hasattr(one, "shape") and hasattr(one, "dtype"):
        yield from _between_arrays(one, other, place)
    elif isinstance(one, int | float) and not isinstance(one, bool):
        if repr(one) != repr(other):
            yield Difference(place, abs(one - other), is_state=False)
    elif hasattr(one, "__dict__"):
        yield from _between(vars(one), vars(other), place, depth + 1)
    elif one != other:
        yield Difference(place, is_state=not isinstance(one, str))


def _between_tables(one: Any, other: Any, place: str, depth: int) -> Iterator[Difference]:
    for key in one.keys() | other.keys():
        inner = f"{place}.{key}" if ": " in place else f"{place}: {key}"
        if key in one and key in other:
            yield from _between(one[key], other[key], inner, depth + 1)
        else:
            yield Difference(inner)


def _between_arrays(one: Any, other: Any, place: str) -> Iterator[Difference]:
    if tuple(one.shape) != tuple(other.shape) or one.dtype != other.dtype:
        yield Difference(place)
        return
    left, right = (bytes(memoryview(_plain(each))) for each in (one, other))
    if left == right:
        return
    try:
        largest = float(abs(one.astype("float64") - other.astype("float64")).max())
    except AttributeError:
        largest = float((one.double() - other.double()).abs().max())
    except (TypeError, ValueError):  # not numbers
        yield Difference(place)
        return
    yield Difference(place, largest)


def _plain(array: Any) -> Any:
    if type(array).__module__.startswith("torch"):
        import torch

        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.reshape(-1).view("uint8")
