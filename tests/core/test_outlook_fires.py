"""What a plan says of the fires to come: which begin a run, and why one has no sessions."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.core.event import Slice
from orchestrator.core.job import Mode, Precision, Profile
from orchestrator.core.outlook import outlook
from orchestrator.core.route import Case
from orchestrator.core.run import RunRecord
from orchestrator.core.scene import Coming, Scene
from tests.core.runs import NOW
from tests.core.test_outlook import BOX, HOUR, KAGGLE, alive, fires, nightly, seen, waiting

TOO_SMALL = "its window leaves too little for set-up, some training and a save"


# --- Windows that are too small -----------------------------------------------------------------------------


def test_a_growing_run_in_a_window_that_is_too_small_needs_further_slices() -> None:
    job = nightly(9.0, Mode.CONTINUE)
    coming = fires(job, 100.0 / HOUR)
    asked = RunRecord("nightly", job, NOW, schedule="nightly")
    scene = Scene(NOW, Case((KAGGLE,)), asked=(asked,), coming=coming)
    [found] = outlook(scene)
    assert (found.hops, found.reason) == ((), TOO_SMALL)
    given = Slice(NOW - 10.0, NOW + 90.0)
    awake = waiting("grows", 9.0, job=job, schedule="nightly", slice=given, deferred=True,
                    reason="90 s of its window are left")  # fmt: skip
    told = {each.run: each.reason for each in outlook(replace(scene, waiting=(awake,)))}
    assert told == {"grows": "90 s of its window are left", "nightly": TOO_SMALL}
    assert all(each.reason == TOO_SMALL for each in outlook(replace(scene, asked=())))


# --- overlap: skip ------------------------------------------------------------------------------------------


def hourly(hours: float, count: int = 5) -> tuple[Coming, ...]:
    """Fires of an hourly schedule that begins a new run each time, unless one is under way."""
    job = nightly(hours, Mode.FRESH)
    return tuple(Coming("nightly", job, NOW + (n + 1) * HOUR) for n in range(count))


def starts(scene: Scene) -> list[float]:
    return [round((each.planned - NOW) / HOUR) for each in outlook(scene) if each.planned is not None]


def test_a_fire_begins_no_run_while_an_earlier_one_waits_for_a_slot() -> None:
    """A quarter of an hour of work each hour, but another run has the only slot for 3.5."""
    coming = hourly(0.25)
    runs = alive("long", 4.5, BOX, since=HOUR)
    waits = waiting("nightly-abcdefgh", 0.25, job=coming[0].job, schedule="nightly", generation=1)
    scene = Scene(NOW, Case((BOX,)), (runs,), (waits,), coming=coming, unkept=frozenset({"nightly"}),
                  watched={"long": seen(runs, 3600)})  # fmt: skip
    assert starts(scene) == [4, 5]
    assert starts(replace(scene, waiting=())) == [1, 4, 5]


def test_a_fire_begins_no_run_while_one_of_unknown_speed_is_under_way() -> None:
    job = replace(hourly(1.0)[0].job, profiles=(("default", Profile(8, Precision.FP32)),))
    coming = tuple(Coming("nightly", job, NOW + 10.0 * n) for n in range(7))
    scene = Scene(NOW, Case((BOX,)), coming=coming, unkept=frozenset({"nightly"}))
    assert len(starts(scene)) == 1
    assert len(starts(replace(scene, case=Case()))) == 1


def test_a_fire_begins_its_run_if_the_earlier_one_is_over() -> None:
    scene = Scene(NOW, Case((BOX,)), coming=hourly(0.5), unkept=frozenset({"nightly"}))
    assert starts(scene) == [1, 2, 3, 4, 5]
    assert starts(replace(scene, coming=hourly(1.5))) == [1, 3, 5]
