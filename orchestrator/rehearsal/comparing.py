"""Judges a rehearsal: the traces of its legs, and what differs between two checkpoints of the same step.

Pure. The trace of a resumed leg is laid over that of the uninterrupted one where their weights are the same.
What differs at that step was not restored. Must never know how a leg is run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

_LINE_BYTES_MAX = 10_000
_NUMBERS = ("step", "weights", "optimizer", "data")


class Lost(StrEnum):
    """What a resumed leg did not get back."""

    EVERYTHING = "everything"  # it began from the start
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    DATA = "data"  # it saw other samples
    RANDOM = "random"  # other random numbers, as dropout draws


@dataclass(frozen=True)
class Seen:
    """What one optimizer step started from: a checksum of each; of the random generators by name. `step`
    counts within the leg, from 0."""

    step: int
    weights: int
    optimizer: int
    data: int
    random: Mapping[str, int]


@dataclass(frozen=True)
class Resumption:
    """What a resumed leg got back. `at`: the step of the uninterrupted leg that it goes on from (None: none
    has its weights). `drifts_at`: the step at which the weights differ, although nothing was lost."""

    at: int | None
    lost: tuple[Lost, ...]
    drifts_at: int | None = None
    begins_again: bool = False  # the data of an earlier step came again


def trace(text: str) -> tuple[Seen, ...]:
    """The steps that a witness noted; lines that are no steps are left out."""
    found = []
    for line in text.splitlines():
        if len(line) > _LINE_BYTES_MAX:
            continue
        try:
            table = json.loads(line)
            step, weights, optimizer, data = (int(table[key]) for key in _NUMBERS)
            states = {str(key): int(state) for key, state in table["random"].items()}
            found.append(Seen(step, weights, optimizer, data, states))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(found)


def resumption(whole: Sequence[Seen], resumed: Sequence[Seen]) -> Resumption | None:
    """How a resumed leg goes on; None if either trace is empty, as without torch."""
    if not whole or not resumed:
        return None
    first = resumed[0]
    places = [number for number, seen in enumerate(whole) if seen.weights == first.weights]
    if not places:
        return Resumption(None, (Lost.WEIGHTS,))
    at = _best(whole, first, places)
    there = whole[at]
    if at == 0:
        return Resumption(0, (Lost.EVERYTHING,))
    checks = (
        (Lost.OPTIMIZER, there.optimizer == first.optimizer),
        (Lost.DATA, there.data == first.data),
        (Lost.RANDOM, not differing(whole, there, first)),
    )
    lost = tuple(what for what, same in checks if not same)
    again = Lost.DATA in lost and any(seen.data == first.data for seen in whole[:at])
    return Resumption(at, lost, None if lost else _drift(whole, resumed, at), again)


def differing(whole: Sequence[Seen], one: Seen, other: Seen) -> tuple[str, ...]:
    """The random generators with different states, of those that the training draws from."""
    used = [name for name in whole[0].random if len({seen.random.get(name) for seen in whole}) > 1]
    return tuple(name for name in used if one.random.get(name) != other.random.get(name))


def unseeded(whole: Sequence[Seen], again: Sequence[Seen]) -> tuple[str, ...]:
    """What differs between the first steps of two legs that both began from the start: the weights, the data,
    or random generators by name. Then no two trainings are alike, interrupted or not."""
    if not whole or not again:
        return ()
    one, other = whole[0], again[0]
    found = [name for name in ("weights", "data") if getattr(one, name) != getattr(other, name)]
    return (*found, *differing(whole, one, other))


def _best(whole: Sequence[Seen], first: Seen, places: Sequence[int]) -> int:
    """Of several steps with the same weights, such as skipped ones, the one that is most alike."""
    return max(
        places, key=lambda at: (whole[at].optimizer == first.optimizer, whole[at].data == first.data, at)
    )


def _drift(whole: Sequence[Seen], resumed: Sequence[Seen], at: int) -> int | None:
    """The first step with other weights, of those that both legs did."""
    for number, seen in enumerate(resumed):
        if at + number >= len(whole):
            return None
        if seen.weights != whole[at + number].weights:
            return at + number
    return None
