"""What differs between two checkpoints of the same step, by file and by the values in it.

Reads what torch and safetensors write, if this Python has torch; any other file is compared byte by byte. The
files come from a training that has just run here, so loading them runs nothing new. Decides nothing.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.agent.wholeness import is_whole

_TOLD_MAX = 5
_DEPTH_MAX = 32


@dataclass(frozen=True)
class Difference:
    """One file or value that differs. `largest`: the largest absolute difference of two numbers or tensors,
    None if that means nothing."""

    place: str
    largest: float | None = None

    def __str__(self) -> str:
        return self.place if self.largest is None else f"{self.place} (by up to {self.largest:.3g})"


def torn(folder: Path) -> list[str]:
    """The files of a checkpoint that are incomplete."""
    return [name for name in _files(folder) if is_whole(folder / name) is False]


def differences(one: Path, other: Path) -> list[Difference]:
    """What differs between two folders; empty if nothing does. Values come before whole files."""
    here, there = _files(one), _files(other)
    found = [Difference(f"{name} is only in one of them") for name in sorted(set(here) ^ set(there))]
    for name in sorted(set(here) & set(there)):
        if _digest(one / name) != _digest(other / name):
            found += _in_file(one / name, other / name, name)
    return found


def told(found: list[Difference]) -> str:
    """The first few, for a person."""
    more = f" and {len(found) - _TOLD_MAX} more" if len(found) > _TOLD_MAX else ""
    return ", ".join(map(str, found[:_TOLD_MAX])) + more


def _files(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _in_file(one: Path, other: Path, name: str) -> list[Difference]:
    try:
        found = list(_between(_loaded(one), _loaded(other), name, 0))
    except Exception:  # noqa: BLE001 - a format that we do not read, or damaged
        return [Difference(name)]
    return found  # empty: the same values, written in another way


def _loaded(path: Path) -> Any:
    """The values in a file. Raises any exception for one that is not read."""
    data = path.read_bytes()
    if path.suffix == ".safetensors":
        from safetensors.torch import load

        return load(data)
    if path.suffix == ".json":
        return json.loads(data)
    if data.startswith(b"PK") and zipfile.is_zipfile(io.BytesIO(data)):
        import torch

        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    raise ValueError("not a known format")


def _between(one: Any, other: Any, place: str, depth: int) -> Iterator[Difference]:
    if depth > _DEPTH_MAX:
        raise ValueError("nested too deeply")
    if type(one) is not type(other):
        yield Difference(place)
    elif isinstance(one, dict):
        for key in one.keys() | other.keys():
            inner = f"{place}: {key}" if depth == 0 else f"{place}.{key}"
            if key in one and key in other:
                yield from _between(one[key], other[key], inner, depth + 1)
            else:
                yield Difference(inner)
    elif isinstance(one, list | tuple):
        if len(one) != len(other):
            yield Difference(place)
            return
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _between(left, right, f"{place}[{number}]", depth + 1)
    elif type(one).__module__.startswith(("torch", "numpy")) and hasattr(one, "shape"):
        yield from _between_arrays(one, other, place)
    elif isinstance(one, int | float) and not isinstance(one, bool):
        if one != other and not (one != one and other != other):
            yield Difference(place, abs(one - other))
    elif hasattr(one, "__dict__"):
        yield from _between(vars(one), vars(other), place, depth + 1)
    elif one != other:
        yield Difference(place)


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
    yield Difference(place, largest)


def _plain(array: Any) -> Any:
    if type(array).__module__.startswith("torch"):
        import torch

        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return array.reshape(-1).view("uint8")
