"""What a deadline means, in the zone of the config."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from orchestrator.client.deadlines import deadline
from orchestrator.errors import InputError

BERLIN = "Europe/Berlin"


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


WEDNESDAY = at("2026-11-25 22:15")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("Fri 09:00", "2026-11-27 09:00"),
        ("friday 9:00", "2026-11-27 09:00"),
        ("Wed 23:00", "2026-11-25 23:00"),
        ("Wed 22:00", "2026-12-02 22:00"),
        ("Sat", "2026-11-29 00:00"),
        ("tomorrow 18:00", "2026-11-26 18:00"),
        ("today 23:00", "2026-11-25 23:00"),
        ("09:00", "2026-11-26 09:00"),
        ("23.30", "2026-11-25 23:30"),
        ("2026-11-27 9:00", "2026-11-27 09:00"),
        ("2026-11-27T09:00:30", "2026-11-27 09:00:30"),
        ("2026-11-27 09:00Z", "2026-11-27 10:00"),
        ("2026-11-27 09:00 -05:00", "2026-11-27 15:00"),
        ("2026-11-27", "2026-11-28 00:00"),
        ("2026-11-25", "2026-11-26 00:00"),
        ("+36h", "2026-11-27 10:15"),
        ("+ 1.5 d", "2026-11-27 10:15"),
        ("  Fri 09:00  ", "2026-11-27 09:00"),
    ],
)
def test_a_deadline_is_the_next_time_that_fits(text: str, meant: str) -> None:
    assert deadline(text, WEDNESDAY, BERLIN) == at(meant)


@pytest.mark.parametrize(
    ("now", "text", "meant"),
    [
        pytest.param("2026-03-28 12:00", "Sun 02:30", "2026-03-29 03:30", id="a time that does not exist"),
        pytest.param("2026-10-24 12:00", "Sun 02:30", "2026-10-25 02:30", id="a time that comes twice"),
        pytest.param("2026-10-24 23:00", "+3h", "2026-10-25 02:00", id="three hours are three hours"),
    ],
)
def test_when_clocks_change(now: str, text: str, meant: str) -> None:
    assert deadline(text, at(now), BERLIN) == at(meant)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "Fr 09:00", "T 09:00", "25:00", "Fri Sat 09:00", "9", "2026-13-01", "9999-12-31", "+h",
     "0001-01-01", "0001-01-01 00:00 +14:00", "Fri 09:00 PST", "09:00 Fri", "\x1b[31m", "²", "nan",
     "2026-11-27 29:00"],
)  # fmt: skip
def test_what_is_no_time_is_refused_with_what_is_valid(text: str) -> None:
    with pytest.raises(InputError, match=r"valid: `Fri 09:00`|is over|years away"):
        deadline(text, WEDNESDAY, BERLIN)


@pytest.mark.parametrize(
    "text",
    ["today 20:00", "2026-11-24", "+0h", "2020-01-01 00:00", "yesterday", "yesterday 9:00", "-3h"],
)
def test_a_time_that_is_over_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is over: it was at 20"):
        deadline(text, WEDNESDAY, BERLIN)


@pytest.mark.parametrize("text", ["+5s", "+3 hours", "+2w"])
def test_units_that_are_none_are_refused_with_those_that_are(text: str) -> None:
    with pytest.raises(InputError, match=r"m, h or d: minutes, hours or days"):
        deadline(text, WEDNESDAY, BERLIN)


@pytest.mark.parametrize("text", ["0001-01-01", "0001-01-01 00:00Z", "0001-01-01 00:00 +14:00"])
@pytest.mark.parametrize("zone", ["America/New_York", "Pacific/Kiritimati", "UTC"])
def test_a_time_before_the_calendar_of_a_zone_is_over(text: str, zone: str) -> None:
    with pytest.raises(InputError, match=r"is over|is not a time"):
        deadline(text, WEDNESDAY, zone)


@pytest.mark.parametrize("text", ["+99999d", f"+{'9' * 400}h", "2999-01-01"])
def test_a_time_that_is_absurdly_far_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="more than 10 years away"):
        deadline(text, WEDNESDAY, BERLIN)
