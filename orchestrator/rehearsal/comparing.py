"""Judges a rehearsal: the traces of its legs, and what differs between two checkpoints of the same step.

Pure. The trace of a resumed leg is laid over that of the uninterrupted one where their weights are the same.
What differs at that step was not restored. Must never know how a leg is run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

_LINE_BYTES_MAX = 10_000
_NUMBERS = ("step", "weights", "optimizer", "data")
_MORE = ("who", "rank", "passes", "batches")


class Lost(StrEnum):
    """What a resumed leg did not get back."""

    EVERYTHING = "everything"  # it began from the start
    WEIGHTS = "weights"
    OPTIMIZER = "optimizer"
    STATE = "state"  # of schedulers, scalers, averages of the weights
    DATA = "data"  # it saw other samples
    RANDOM = "random"  # other random numbers, as dropout draws


@dataclass(frozen=True)
class Seen:
    """What one optimizer step started from: a checksum of each (0: unknown), of the random generators and
    other states by name. `step` counts within the leg, from 0. `who`: the number of the optimizer.
    `passes`: how often the data loader has begun; `batches`: how many it has (0: unknown)."""

    step: int
    weights: int
    optimizer: int
    data: int
    random: Mapping[str, int]
    states: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    who: int = 0
    rank: int = 0
    passes: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Resumption:
    """What a resumed leg got back. `at`: the step of the uninterrupted leg that it goes on from (None: none
    has its weights). `drifts_at`: the step at which the weights differ, although nothing was lost.
    `generators` and `states`: the names of those that were lost. `later`: the step at which a loss shows
    first, if that is not `at`."""

    at: int | None
    lost: tuple[Lost, ...]
    drifts_at: int | None = None
    begins_again: bool = False  # the data of an earlier step came again
    generators: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    later: int | None = None


def trace(text: str) -> tuple[Seen, ...]:
    """The steps that a witness noted, of all ranks; lines that are no steps are left out."""
    found = []
    for line in text.splitlines():
        if len(line) > _LINE_BYTES_MAX:
            continue
        try:
            table = json.loads(line)
            step, weights, optimizer, data = (int(table[key]) for key in _NUMBERS)
            random = {str(key): int(state) for key, state in table["random"].items()}
            states = {str(key): tuple(map(int, each)) for key, each in table.get("states", {}).items()}
            who, rank, passes, batches = (int(table.get(key, 0)) for key in _MORE)
            found.append(Seen(step, weights, optimizer, data, random, states, who, rank, passes, batches))
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(found)


def opened(text: str) -> bool:
    """Whether the witness saw that the checkpoint to resume was opened."""
    return any('"opened": true' in line for line in text.splitlines() if len(line) < _LINE_BYTES_MAX)


def by_rank(steps: Sequence[Seen]) -> dict[int, tuple[Seen, ...]]:
    ranks: dict[int, list[Seen]] = {}
    for seen in steps:
        ranks.setdefault(seen.rank, []).append(seen)
    return {rank: tuple(found) for rank, found in ranks.items()}


def resumptions(whole: Sequence[Seen], resumed: Sequence[Seen]) -> tuple[Resumption, ...]:
    """How each rank of a resumed leg goes on; empty if nothing is known, as without torch."""
    there, here = by_rank(whole), by_rank(resumed)
    found = (resumption(there.get(rank, ()), here[rank]) for rank in sorted(here))
    return tuple(each for each in found if each is not None)


def resumption(whole: Sequence[Seen], resumed: Sequence[Seen]) -> Resumption | None:
    """How one rank of a resumed leg goes on; None if either trace is empty."""
    if not whole or not resumed:
        return None
    first = resumed[0]
    places = [number for number, seen in enumerate(whole) if seen.weights == first.weights]
    if not places:
        return Resumption(None, (Lost.WEIGHTS,))
    at = _best(whole, first, places)
    if at == 0:  # with its later optimizer, only the weights are those of the start
        return Resumption(
            0, (Lost.WEIGHTS if _differ(whole[0].optimizer, first.optimizer) else Lost.EVERYTHING,)
        )
    return _followed(whole, resumed, at)


def _followed(whole: Sequence[Seen], resumed: Sequence[Seen], at: int) -> Resumption:
    """Goes through both as long as they have the same weights, up to the first loss: what comes after it,
    comes of it. But each optimizer's first step shows what that one got back."""
    lost: list[Lost] = []
    generators: list[str] = []
    states: list[str] = []
    met: set[int] = set()
    later = drifts_at = None
    first, again = True, False
    for place, seen in enumerate(resumed, at):
        first = first and seen.who not in met
        met.add(seen.who)
        if place >= len(whole) or (lost and not first):
            break
        if seen.weights != whole[place].weights:
            lost += [Lost.WEIGHTS] if first else []
            drifts_at = None if lost else place
            break
        random, other = differing(whole, whole[place], seen), _missing(whole, whole[place], seen)
        found = _losses(whole[place], seen, random, other)
        later = place if found and not lost and not first else later
        lost += found
        generators += random
        states += other
        again = again or (Lost.DATA in found and any(each.data == seen.data for each in whole[:place]))
    names, others = tuple(dict.fromkeys(generators)), tuple(dict.fromkeys(states))
    return Resumption(at, tuple(dict.fromkeys(lost)), drifts_at, again, names, others, later)


def _losses(there: Seen, seen: Seen, random: Sequence[str], states: Sequence[str]) -> list[Lost]:
    checks = (
        (Lost.OPTIMIZER, _differ(there.optimizer, seen.optimizer)),
        (Lost.STATE, bool(states)),
        (Lost.DATA, _differ(there.data, seen.data)),
        (Lost.RANDOM, bool(random)),
    )
    return [what for what, is_lost in checks if is_lost]


def _differ(one: int, other: int) -> bool:
    return one != other and 0 not in (one, other)


def _missing(whole: Sequence[Seen], there: Seen, seen: Seen) -> tuple[str, ...]:
    """The states that the resumed leg lacks, of those that change. It may have more: what it loaded."""
    used = [name for name in there.states if len({each.states.get(name) for each in whole}) > 1]
    return tuple(name for name in used if Counter(there.states[name]) - Counter(seen.states.get(name, ())))


def differing(whole: Sequence[Seen], one: Seen, other: Seen) -> tuple[str, ...]:
    """The random generators with different states, of those that the training draws from."""
    used = [name for name in whole[0].random if len({seen.random.get(name) for seen in whole}) > 1]
    return tuple(name for name in used if one.random.get(name) != other.random.get(name))


def unseeded(whole: Sequence[Seen], again: Sequence[Seen]) -> tuple[str, ...]:
    """What differs between the first steps of two legs that both began from the start: the weights, the data,
    or random generators by name. Then no two trainings are alike, interrupted or not."""
    found: list[str] = []
    there, here = by_rank(whole), by_rank(again)
    for rank in sorted(there.keys() & here.keys()):
        one, other = there[rank][0], here[rank][0]
        found += [name for name in ("weights", "data") if getattr(one, name) != getattr(other, name)]
        found += differing(there[rank], one, other)
    return tuple(dict.fromkeys(found))


def drifts(whole: Sequence[Seen], again: Sequence[Seen]) -> bool:
    """Whether two legs that both began from the start, alike, come apart by themselves."""
    there, here = by_rank(whole), by_rank(again)
    return any(
        one.weights != other.weights
        for rank in there.keys() & here.keys()
        for one, other in zip(there[rank], here[rank], strict=False)
    )


def same_inputs(whole: Sequence[Seen], resumed: Sequence[Seen]) -> bool:
    """Whether a resumed leg had the same data and random numbers to its end, whatever its weights were."""
    there, here = by_rank(whole), by_rank(resumed)
    for rank, steps in here.items():
        found = resumption(there.get(rank, ()), steps)
        if found is None or found.at is None:
            return False
        for seen, other in zip(steps, there[rank][found.at :], strict=False):
            if _differ(seen.data, other.data) or differing(there[rank], other, seen):
                return False
    return True


def _best(whole: Sequence[Seen], first: Seen, places: Sequence[int]) -> int:
    """Of several steps with the same weights, such as skipped ones, the one that is most alike."""
    return max(
        places, key=lambda at: (whole[at].optimizer == first.optimizer, whole[at].data == first.data, at)
    )
