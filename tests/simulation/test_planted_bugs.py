"""Each check of the simulation is proved: it catches a bug planted in the product."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.platforms.simulated import platform
from tests.simulation import (
    bugs,
    checks,
    fire_bugs,
    fires,
    homes,
    hostile,
    leavings,
    promises,
    replays,
    told,
    uplink_bugs,
    uplinks,
)
from tests.simulation.overlong import OverlongWorld
from tests.simulation.play import play
from tests.simulation.scheduled import ScheduledWorld
from tests.simulation.shipping import ShippingWorld
from tests.simulation.unreadable import UnreadableWorld
from tests.simulation.world import World

SEEDS = 120  # a planted bug must show in one of this many worlds; `first` is where it once did


def look(check: checks.Check, first: int, make: Callable[[int, Path], World] = World) -> None:
    """Asserts that the check finds something in one of the SEEDS worlds from `first` on."""
    caught = any(play(seed, [check], 4, make) for seed in range(first, first + SEEDS))
    assert caught, f"{check.__name__} caught nothing"


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (bugs.accepts_every_incarnation, checks.one_incarnation_a_generation, 44),
        (bugs.accepts_before_any_start_is_known, checks.one_start_is_journalled, 60),
        (bugs.retires_the_newest, checks.accepted_checkpoints_are_kept, 60),
        (bugs.resumes_at_the_oldest, checks.resumes_at_the_newest, 3),
        (bugs.reuses_a_generation, checks.generations_only_grow, 1),
        (bugs.launches_again_after_a_lost_reply, checks.nothing_starts_twice, 16),
        (bugs.reserves_no_quota, checks.quota_is_not_overspent, 84),
        (bugs.counts_the_wall_from_the_launch, promises.nobody_is_given_up_in_haste, 2),
        (bugs.charges_from_the_launch, promises.waiting_is_not_charged, 1),
        (bugs.claims_from_the_launch, checks.quota_is_not_overspent, 474),
        (bugs.leaves_strays_behind, checks.what_can_finish_does, 0),
        (bugs.tells_of_a_run_once_for_each_kind, told.each_event_is_told_once, 13),
        (bugs.tells_before_it_is_journalled, told.each_event_is_told_once, 17),
        (bugs.forgets_the_state, checks.the_result_is_exact, 4),
        (bugs.takes_any_look_for_the_last, checks.the_last_look_is_after_the_end, 34),
        (bugs.asks_again_at_once, checks.the_controller_rests, 0),
        (bugs.writes_the_manifest_before_its_blobs, promises.only_what_was_altered_arrives_corrupt, 10),
        (bugs.drops_reports_on_a_conflict, checks.nothing_starts_twice, 0),
        (bugs.takes_a_launch_never_seen_for_ended, promises.nothing_alive_is_discarded, 34),
        (bugs.frees_the_slot_of_a_stray, promises.slots_are_not_overcommitted, 31),
        (bugs.forgets_a_cancel_at_the_end_of_a_session, promises.wishes_are_granted, 9),
        (bugs.forgets_a_hold_at_the_end_of_a_session, promises.wishes_are_granted, 104),
        (bugs.forgets_a_smaller_micro_batch_over_a_hop, promises.too_large_stays_too_large, 13),
        (bugs.forgets_a_smaller_micro_batch_at_a_hold, promises.too_large_stays_too_large, 104),
        (bugs.deletes_the_parent_of_a_live_session, promises.what_is_gone_on_from_is_kept, 14),
        (bugs.counts_sleep_as_absence, promises.nobody_is_given_up_in_haste, 34),
        (bugs.believes_one_odd_answer, promises.nobody_is_given_up_in_haste, 0),
        (bugs.discards_without_asking_whether_it_lives, promises.nothing_alive_is_discarded, 31),
        (bugs.stops_what_cannot_save, promises.what_cannot_save_is_not_stopped_unasked, 20),
        (bugs.waits_no_longer_after_a_failure, promises.pauses_are_kept, 16),
        (bugs.ignores_a_cooldown, promises.pauses_are_kept, 23),
        (bugs.removes_what_is_handed_over, promises.what_the_next_session_reads_is_kept, 1),
        (bugs.launches_what_may_have_been_launched, checks.nothing_starts_twice, 12),
        (bugs.acts_before_it_journals, checks.nothing_starts_twice, 0),
        (uplink_bugs.looks_at_the_fence_once, uplinks.superseded_sessions_publish_nothing, 2),
        (uplink_bugs.closes_without_a_fence, uplinks.generations_are_fenced_before_they_close, 2),
        (uplink_bugs.believes_a_heartbeat_too_long, uplinks.the_dead_are_closed_within_patience, 8),
        (uplink_bugs.believes_the_platform_before_the_heart, promises.nobody_is_given_up_in_haste, 262),
        (bugs.believes_that_nothing_was_left, leavings.what_was_seen_is_collected_before_it_is_discarded, 13),
        (bugs.looks_no_more_once_it_is_held, leavings.what_appears_is_gone_on_with, 16),
        (bugs.asks_a_person_about_a_glitch, leavings.nobody_is_held_without_need, 16),
        (bugs.asks_a_person_about_the_third_refusal, leavings.nobody_is_held_without_need, 363),
        (bugs.makes_anew_what_was_refused, leavings.a_refused_launch_keeps_what_is_prepared, 14),
        (bugs.fails_a_run_for_what_platforms_lost, leavings.no_run_fails_by_what_platforms_lost, 227),
        (bugs.decides_by_what_is_not_journalled, replays.decisions_can_be_made_again, 0),
    ],
)
def test_a_planted_bug_is_caught(
    plant: bugs.Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    look(check, first)


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (uplink_bugs.claims_what_is_claimed, uplinks.one_incarnation_publishes, 3),
        (uplink_bugs.ignores_the_fence, uplinks.superseded_sessions_publish_nothing, 0),
        (uplink_bugs.accepts_what_another_agent_ships, checks.one_incarnation_a_generation, 3),
        (uplink_bugs.accepts_without_looking_for_blobs, uplinks.what_is_accepted_is_complete, 27),
        (uplink_bugs.retires_without_looking_at_the_pins, uplinks.uplinks_delete_only_what_is_superseded, 1),
        (uplink_bugs.retires_all_but_the_oldest, uplinks.uplinks_delete_only_what_is_superseded, 1),
        (uplink_bugs.deletes_what_is_not_complete, uplinks.what_is_late_is_kept, 3),
        pytest.param(
            uplink_bugs.goes_on_without_what_is_late,
            uplinks.what_is_late_is_waited_for,
            16,
            marks=pytest.mark.soak,
        ),
    ],
)
def test_a_planted_bug_in_shipping_is_caught(
    plant: bugs.Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    look(check, first, ShippingWorld)


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (bugs.takes_any_release_for_consent, leavings.no_second_session_while_the_first_may_bill, 4),
        (bugs.forgets_that_it_was_seen, leavings.nobody_alive_is_given_up_on_a_lie, 19),
    ],
)
def test_a_planted_bug_about_sessions_that_outlive_their_limits_is_caught(
    plant: bugs.Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    look(check, first, OverlongWorld)


@pytest.mark.parametrize(
    ("plant", "first"),
    [(uplink_bugs.gives_up_what_does_not_ship, 0), (uplink_bugs.stops_what_does_not_ship, 10)],
)
def test_a_planted_bug_about_sessions_that_nobody_can_read_is_caught(
    plant: bugs.Plant, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    check = uplinks.what_does_not_ship_is_not_ended_unasked
    look(check, first, UnreadableWorld)


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (fire_bugs.writes_the_fire_before_its_run, fires.each_fire_does_what_it_says_once, 43),
        (fire_bugs.counts_from_now, fires.each_planned_instant_is_handled_once, 1),
        (fire_bugs.takes_every_fire_for_late, fires.nothing_is_missed_while_a_controller_looks, 1),
        (fire_bugs.forgets_the_end_of_the_window, fires.nothing_runs_outside_its_window, 46),
        (fire_bugs.says_that_it_sleeps_at_every_look, fires.sleep_is_told_once, 14),
    ],
)
def test_a_planted_bug_in_schedules_is_caught(
    plant: bugs.Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    look(check, first, ScheduledWorld)


@pytest.mark.parametrize(
    ("plant", "check", "first"),
    [
        (bugs.draws_no_token_at_its_start, homes.both_homes_tell_of_it, 9),
        (bugs.adopts_nothing_that_the_store_has, homes.goes_on_from_what_the_store_has, 3),
        (bugs.deletes_without_asking_whose_it_is, homes.one_home_is_in_charge, 8),
        (bugs.deletes_without_asking_whose_it_is, homes.nothing_of_another_home_is_deleted, 3),
    ],
)
def test_a_planted_bug_about_copies_of_a_home_is_caught(
    plant: bugs.Plant, check: checks.Check, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    look(check, first, homes.HomesWorld)


def test_a_bug_that_costs_the_neighbours_of_a_hostile_run_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    bugs.counts_sessions_that_ended_for_ever(monkeypatch)
    found = (play(s, [hostile.neighbours_finish], 4, hostile.HostileWorld) for s in range(SEEDS))
    assert any(found)


def test_a_bug_that_shows_for_any_session_fails_the_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error is raised if no barrier is wanted."""
    monkeypatch.setattr(platform.SimulatedPlatform, "stop", lambda _self, _name: os.environ["NO_SUCH_NAME"])
    with pytest.raises(KeyError):
        for seed in range(SEEDS):
            play(seed, [])
