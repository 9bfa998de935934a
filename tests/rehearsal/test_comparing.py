"""What the traces of two legs say about each other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace

import pytest

from orchestrator.rehearsal.comparing import Lost, Resumption, Seen, resumption, trace, unseeded


def steps(count: int, begin: int = 0) -> list[Seen]:
    """A training that draws from torch's generator and not from Python's."""
    return [
        Seen(number, 100 + begin + number, 200 + begin + number, 300 + begin + number,
             {"torch": 400 + begin + number, "python": 7})
        for number in range(count)
    ]  # fmt: skip


WHOLE = steps(20)


def changed(seen: Sequence[Seen], **changes: object) -> list[Seen]:
    """The steps with another first one."""
    return [replace(seen[0], **changes), *seen[1:]]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("resumed", "found"),
    [
        (steps(5, 8), Resumption(8, ())),
        (steps(20, 8), Resumption(8, ())),  # it goes on after the whole one's end
        (changed(steps(5, 8), step=0), Resumption(8, ())),
        (steps(5), Resumption(0, (Lost.EVERYTHING,))),
        (changed(steps(5, 8), weights=1), Resumption(None, (Lost.WEIGHTS,))),
        (changed(steps(5, 8), optimizer=1), Resumption(8, (Lost.OPTIMIZER,))),
        (changed(steps(5, 8), data=1), Resumption(8, (Lost.DATA,))),
        (changed(steps(5, 8), data=300), Resumption(8, (Lost.DATA,), begins_again=True)),
        (
            changed(steps(5, 8), random={"torch": 1, "python": 7}),
            Resumption(8, (Lost.RANDOM,), generators=("torch",)),
        ),
        (changed(steps(5, 8), random={"torch": 408, "python": 8}), Resumption(8, ())),  # it is not used
        (changed(steps(5, 8), optimizer=1, data=1), Resumption(8, (Lost.OPTIMIZER, Lost.DATA))),
        ([*steps(3, 8), replace(WHOLE[11], weights=1)], Resumption(8, (), drifts_at=11)),
    ],
)
def test_what_a_resumed_leg_got_back(resumed: list[Seen], found: Resumption) -> None:
    assert resumption(WHOLE, resumed) == found


def test_of_steps_with_the_same_weights_the_most_alike_counts() -> None:
    """A skipped step, as with a scaler's overflow, leaves the weights."""
    whole = [*WHOLE[:9], replace(WHOLE[9], weights=WHOLE[8].weights), *WHOLE[10:]]
    assert resumption(whole, whole[9:12]) == Resumption(9, ())
    assert resumption(whole, whole[8:12]) == Resumption(8, ())


@pytest.mark.parametrize(("whole", "resumed"), [([], steps(3)), (steps(3), [])])
def test_without_torch_nothing_is_known(whole: list[Seen], resumed: list[Seen]) -> None:
    assert resumption(whole, resumed) is None
    assert unseeded(whole, resumed) == ()


@pytest.mark.parametrize(
    ("again", "found"),
    [
        (steps(5), ()),
        (changed(steps(5), weights=1), ("weights",)),
        (changed(steps(5), data=1, random={"torch": 1, "python": 1}), ("data", "torch")),
    ],
)
def test_what_was_not_seeded(again: list[Seen], found: tuple[str, ...]) -> None:
    assert unseeded(WHOLE, again) == found


def test_lines_that_are_no_steps_are_left_out() -> None:
    lines = [json.dumps(asdict(each)) for each in WHOLE[:2]]
    odd = ["", "{", "[]", "1", '{"step": 1}', '{"step": 3, "error": "x"}', "x" * 20_000]
    odd += [lines[0].replace('"torch": 400', '"torch": "x"'), lines[0].replace("100", "null")]
    assert trace("\n".join([odd[0], lines[0], *odd[1:], lines[1][:30], lines[1]])) == tuple(WHOLE[:2])
