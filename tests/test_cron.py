"""When schedules fire, in zones whose clocks change, and when their windows are open."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import cron
from orchestrator.core.job import Recurrence, Window
from orchestrator.core.schedule import CATCH_UP_MAX, Schedule
from tests.core import runs

NIGHT = Window(22 * 60, 7 * 60)


def at(text: str) -> float:
    return datetime.fromisoformat(f"{text}+00:00").timestamp()


def planned(line: str, zone: str, after: str, count: int, window: Window | None = None) -> list[str]:
    recurrence = Recurrence(line, zone, window=window)
    found = islice(cron.planned_after(recurrence, "nightly", at(after)), count)
    return [datetime.fromtimestamp(each.planned, UTC).strftime("%m-%d %H:%M") for each in found]


def schedule(recurrence: Recurrence, last: float, name: str = "nightly") -> Schedule:
    return Schedule(name, runs.job(name=name, schedule=recurrence), "home", last, last)


@pytest.mark.parametrize(
    ("line", "zone", "after", "expected"),
    [
        # Berlin, 29 March 2026: 02:00 becomes 03:00. A fixed time in the gap fires once, when it is over.
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T02:00", ["03-29 01:00", "03-30 00:30", "03-31 00:30"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:00", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]),
        # 25 October 2026: 03:00 becomes 02:00. A fixed time in the fold fires once; steps, in both hours.
        ("30 2 * * *", "Europe/Berlin", "2026-10-24T03:00", ["10-25 00:30", "10-26 01:30", "10-27 01:30"]),
        ("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:45",
         ["10-25 00:00", "10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]),
        # New York, 8 March and 1 November 2026.
        ("30 2 * * *", "America/New_York", "2026-03-07T08:00", ["03-08 07:00", "03-09 06:30"]),
        ("30 1 * * *", "America/New_York", "2026-10-31T07:00", ["11-01 05:30", "11-02 06:30"]),
        # Lord Howe moves by half an hour: 4 October 2026 at 02:00 to 02:30, 5 April 2026 at 02:00 to 01:30.
        ("15 2 * * *", "Australia/Lord_Howe", "2026-10-02T16:00", ["10-03 15:30", "10-04 15:15"]),
        ("45 1 * * *", "Australia/Lord_Howe", "2026-04-03T16:00", ["04-04 14:45", "04-05 15:15"]),
        ("@daily", "UTC", "2026-12-31T00:00", ["01-01 00:00", "01-02 00:00"]),
        ("0 9 * * MON#1", "UTC", "2026-11-01T00:00", ["11-02 09:00", "12-07 09:00"]),
        ("0 9 LW * *", "UTC", "2026-10-31T12:00", ["11-30 09:00", "12-31 09:00"]),
    ],
)  # fmt: skip
def test_a_fixed_time_fires_once_and_steps_in_every_hour(
    line: str, zone: str, after: str, expected: list[str]
) -> None:
    assert planned(line, zone, after, len(expected)) == expected


@settings(max_examples=60, deadline=None)
@given(
    line=st.sampled_from(["30 2 * * *", "*/30 * * * *", "15 1,2 * * *", "0 */2 * * *", "0 3 * * SUN"]),
    zone=st.sampled_from(["Europe/Berlin", "America/New_York", "UTC"]),
    change=st.sampled_from(["2026-03-29T00:00", "2026-10-24T22:00", "2026-03-08T05:00", "2026-11-01T04:00"]),
    restarts=st.lists(st.integers(0, 5 * 3600), max_size=6),
)
def test_a_restart_at_any_moment_changes_no_fire(
    line: str, zone: str, change: str, restarts: list[int]
) -> None:
    """Each new start counts from the last fire; so all of them together are one sequence."""
    recurrence, begin = Recurrence(line, zone), at(change)
    end = begin + 6 * 3600.0
    fires = (each.planned for each in cron.planned_after(recurrence, "x", begin))
    whole = list(takewhile(lambda instant: instant <= end, fires))
    found, last = [], begin
    for moment in [*sorted(begin + each for each in restarts), end]:
        for each in cron.planned_after(recurrence, "x", last):
            if each.planned > moment:
                break
            found.append(each.planned)
            last = each.planned
    assert found == whole


@pytest.mark.parametrize(
    ("moment", "opens", "closes"),
    [
        ("2026-11-25T23:00", None, "2026-11-26T06:00"),
        ("2026-11-26T05:59", None, "2026-11-26T06:00"),
        ("2026-11-26T06:00", "2026-11-26T21:00", None),
        ("2026-03-28T22:00", None, "2026-03-29T05:00"),  # the short night
        ("2026-10-24T22:00", None, "2026-10-25T06:00"),  # the long one
    ],
)
def test_a_window_passes_midnight_and_clock_changes(
    moment: str, opens: str | None, closes: str | None
) -> None:
    recurrence = Recurrence("0 1 * * *", "Europe/Berlin", window=NIGHT)
    assert cron.closes_at(recurrence, at(moment)) == (None if closes is None else at(closes))
    if opens is not None:
        assert cron.opens_after(recurrence, at(moment)) == at(opens)


def test_a_window_that_opens_or_closes_in_a_gap_does_so_after_it() -> None:
    opening = Recurrence("* * * * *", "Europe/Berlin", window=Window(2 * 60 + 30, 4 * 60))
    assert cron.opens_after(opening, at("2026-03-29T00:00")) == at("2026-03-29T01:00")
    closing = Recurrence("* * * * *", "Europe/Berlin", window=Window(60, 2 * 60 + 30))
    assert cron.closes_at(closing, at("2026-03-29T00:30")) == at("2026-03-29T01:00")


def test_only_fires_in_the_window_are_planned() -> None:
    found = planned("0 */6 * * *", "Europe/Berlin", "2026-11-25T12:00", 3, NIGHT)
    assert found == ["11-25 23:00", "11-26 05:00", "11-26 23:00"]
    assert planned("* * * * * *", "Europe/Berlin", "2026-11-26T05:59:58", 3, NIGHT)[1:] == ["11-26 21:00"] * 2


def test_a_line_and_a_window_that_never_meet() -> None:
    assert cron.never_meets_window(Recurrence("0 12 * * *", window=NIGHT))
    assert not cron.never_meets_window(Recurrence("59 6 * * SUN", window=NIGHT))
    assert cron.never_meets_window(Recurrence("0 7 * * SUN", window=NIGHT))


@pytest.mark.parametrize(
    "line",
    ["", "x", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 32 * *", "* * * 13 *", "* * * * 8",
     "*/0 * * * *", "5-1 * * * *", "0 0 30 2 *", "0 0 31 FEB *", "@reboot", "٣ * * * *", "* * * * ²L",
     "* * * * L", "1#2/3 * * * *", "\0 * * * *", "," * 300],
)  # fmt: skip
def test_a_wrong_line_is_refused_in_words(line: str) -> None:
    said = cron.problem(line)
    assert said
    assert len(said) < 900
    assert list(cron.planned_after(Recurrence(line), "x", runs.NOW)) == []


@pytest.mark.parametrize(
    "line",
    ["*/90 * * * *", "0 */36 * * *", "0-30/60 * * * *", "*/60 * * * * *", "1-5/59 * * * *", "1-5/5 * * * *",
     "0,50/10 * * * *", "0 20/4 * * *", "0 0 */40 * *", "0 0 */31 * *", "0 0 10-20/11 * *", "0 0 * */13 *",
     "0 0 * MAR-may/3 *", "0 0 * * */9", "0 0 * * */7", "0 0 * * mon-FRI/5"],
)  # fmt: skip
def test_a_step_that_goes_around_is_refused(line: str) -> None:
    """`*/90` is no 90 minutes: it would fire each hour."""
    assert "has a step that is longer than its range" in (cron.problem(line) or "")


@pytest.mark.parametrize(
    "line",
    ["*/59 * * * *", "*/30 * * * * *", "1-5/4 * * * *", "50/9 * * * *", "5-5/20 * * * *", "0 */12 * * *",
     "0 0 */30 * *", "0 0 1/30 * *", "0 0 L/2 * *", "0 0 1 */11 *", "0 0 1 MAR-MAY/2 *", "0 0 * * */6",
     "0 0 * * MON-FRI/4", "0 0 * * 1/6"],
)  # fmt: skip
def test_a_step_that_reaches_a_second_value_is_none_that_goes_around(line: str) -> None:
    assert cron.problem(line) is None


def test_a_fire_is_spread_the_same_way_each_time_and_within_its_window() -> None:
    recurrence = Recurrence("55 6 * * *", "UTC", jitter_seconds=3600.0, window=NIGHT)
    found = list(islice(cron.planned_after(recurrence, "a", runs.NOW), 20))
    assert found == list(islice(cron.planned_after(recurrence, "a", runs.NOW), 20))
    assert len({each.at - each.planned for each in found}) > 10
    assert all(0 <= each.at - each.planned <= 150.0 for each in found)  # half of what is left of the window
    assert found != list(islice(cron.planned_after(recurrence, "b", runs.NOW), 20))


def test_a_jitter_longer_than_the_interval_never_swaps_fires() -> None:
    recurrence = Recurrence("* * * * *", "UTC", jitter_seconds=3600.0)
    found = list(islice(cron.planned_after(recurrence, "a", runs.NOW), 200))
    assert all(each.at < following.planned for each, following in pairwise(found))
    assert len({each.at - each.planned for each in found}) > 10


def test_the_agenda_after_a_downtime_of_years_is_found_at_once() -> None:
    now = runs.NOW
    found = cron.agenda(schedule(Recurrence("* * * * * *"), now - 3 * 365 * 86400.0), now)
    assert [each.planned for each in found.due[-2:]] == [now - 1, now]
    assert len(found.due) == CATCH_UP_MAX
    assert found.older >= 9000
    assert found.uncounted
    assert found.following is not None
    assert found.following.planned == now + 1


@pytest.mark.parametrize(
    ("line", "window", "days"),
    [
        ("* * * * *", None, 8),
        ("* * * * *", NIGHT, 20),
        ("0 * * * *", None, 420),
        ("0 */6 * * *", NIGHT, 520),
    ],
)
def test_the_newest_fires_of_a_long_downtime_are_the_ones_to_make_up_for(
    line: str, window: Window | None, days: int
) -> None:
    now, recurrence = at("2026-11-25T12:00"), Recurrence(line, "Europe/Berlin", window=window)
    begin = now - days * 86400.0
    fires = (each.planned for each in cron.planned_after(recurrence, "nightly", begin))
    whole = list(takewhile(lambda instant: instant <= now, fires))
    found = cron.agenda(schedule(recurrence, begin), now)
    assert [each.planned for each in found.due] == whole[-CATCH_UP_MAX:]
    assert found.oldest == whole[0]
    assert found.older + CATCH_UP_MAX == min(len(whole), cron.WALK_MAX)
    assert found.uncounted is (len(whole) > cron.WALK_MAX)


def test_upcoming_fires_of_several_schedules_come_in_order() -> None:
    now = at("2026-11-25T12:00")
    two = [
        schedule(Recurrence("0 1 * * *", "Europe/Berlin", window=NIGHT), now, "nightly"),
        schedule(Recurrence("0 */12 * * *"), now, "often"),
    ]
    found = cron.upcoming(two, now, now + timedelta(days=1).total_seconds())
    assert [(each.name, each.planned, each.window_end) for each in found] == [
        ("nightly", at("2026-11-26T00:00"), at("2026-11-26T06:00")),
        ("often", at("2026-11-26T00:00"), None),
        ("often", at("2026-11-26T12:00"), None),
    ]


def test_local_times_name_their_zone() -> None:
    assert cron.local_text(at("2026-11-26T00:00"), "Europe/Berlin") == "Thu 2026-11-26 01:00 CET"
    assert cron.local_text(at("2026-10-25T01:00"), "Europe/Berlin") == "Sun 2026-10-25 02:00 CET"
    assert cron.local_text(0.0, "Mars/Olympus") == "Thu 1970-01-01 00:00 UTC"
    assert cron.local_text(1e18, "UTC") == "in thousands of years"
    assert all(cron.database())
