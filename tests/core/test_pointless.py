"""What a schedule says in vain is told when it is submitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import pytest

from orchestrator import cron
from orchestrator.core.job import CatchUp, Mode, Overlap, Recurrence, Window
from orchestrator.core.offer import Offer, Traits
from orchestrator.core.pointless import FIRES, pointless
from tests.core.runs import NOW, job

HERE = Offer("here", "cpu", Traits(setup_seconds=5.0))
KAGGLE = Offer("kaggle", "T4x2", Traits(setup_seconds=180.0, wall_margin_seconds=600.0))


def warnings(given: Recurrence, offers: Sequence[Offer] = (HERE, KAGGLE)) -> tuple[str, ...]:
    fires = tuple(islice(cron.planned_after(given, "nightly", NOW), FIRES))
    return pointless(replace(job(), schedule=given), fires, offers)


@pytest.mark.parametrize(
    ("line", "window"),
    [
        ("* * * * *", Window(76, 77)),
        ("59 6 * * *", Window(22 * 60, 7 * 60)),
        ("30 59 6 * * *", Window(0, 420)),
    ],
)
def test_a_window_that_is_always_almost_over_never_trains(line: str, window: Window) -> None:
    [told] = warnings(Recurrence(line, window=window))
    assert "will never train" in told
    assert "here/cpu" in told
    [told] = warnings(Recurrence(line, window=window), ())
    assert "60 s anywhere" in told


def test_a_window_with_room_on_the_quickest_offer_at_any_of_its_fires_is_no_reason_to_warn() -> None:
    assert warnings(Recurrence("0 1 * * *", window=Window(22 * 60, 7 * 60))) == ()
    some = Recurrence("50 6 * * *", window=Window(22 * 60, 7 * 60))
    assert warnings(some) == ()
    assert "14 min on kaggle/T4x2" in warnings(some, (KAGGLE,))[0]
    assert warnings(Recurrence("58,59 6 * * *", window=Window(0, 420))) == (), "the earlier one has time"


def test_a_new_run_each_time_goes_on_when_its_window_opens_again() -> None:
    late = Recurrence("59 6 * * *", mode=Mode.FRESH, window=Window(22 * 60, 7 * 60))
    assert warnings(late) == ()
    assert len(warnings(replace(late, cron="* * * * *", window=Window(76, 77)))) == 1


@pytest.mark.parametrize(
    ("mode", "overlap", "catch_up", "told"),
    [
        (Mode.FRESH, Overlap.SKIP, CatchUp.ALL, "makes up for one fire only with overlap: skip"),
        (Mode.FRESH, Overlap.REPLACE, CatchUp.ALL, "makes up for one fire only with overlap: replace"),
        (Mode.FRESH, Overlap.QUEUE, CatchUp.ALL, ""),
        (Mode.FRESH, Overlap.SKIP, CatchUp.ONE, ""),
        (Mode.CONTINUE, Overlap.QUEUE, CatchUp.ONE, "overlap: queue has no effect with mode: continue"),
        (Mode.CONTINUE, Overlap.SKIP, CatchUp.ALL, "several missed slices are one"),
        (Mode.CONTINUE, Overlap.SKIP, CatchUp.NONE, ""),
    ],
)
def test_words_that_have_no_effect_beside_others_are_told(
    mode: Mode, overlap: Overlap, catch_up: CatchUp, told: str
) -> None:
    found = warnings(Recurrence("0 1 * * *", mode=mode, overlap=overlap, catch_up=catch_up))
    assert [told in each for each in found] == ([True] if told else [])


def test_a_job_without_a_schedule_is_told_nothing() -> None:
    assert pointless(job(), (), (HERE,)) == ()
