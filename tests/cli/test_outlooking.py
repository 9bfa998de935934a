"""How `plan` prints what is expected: tables and a timeline that fit, on terminals and in pipes."""

from __future__ import annotations

import re
from dataclasses import replace
from zoneinfo import ZoneInfo

import pytest

from orchestrator.cli.outlooking import deadline_text, show
from orchestrator.cli.output import Output
from orchestrator.cli.timeline import Timeline, when
from orchestrator.client import Alone, Expected, Fits, Forecast, Hop, Outlook, Standing
from orchestrator.core.prices import Prices

HOUR = 3600.0
NOW = 1_795_611_600.0  # Wed 25 Nov 2026 13:00Z, 14:00 in Berlin
BERLIN = ZoneInfo("Europe/Berlin")


def hop(
    place: str, start: float, end: float, step: int, why: str = "session limit", quota: bool = True
) -> Hop:
    platform, _, accelerator = place.partition("/")
    begins, ends = NOW + start * HOUR, NOW + end * HOUR
    return Hop(platform, accelerator, begins, ends, 0, step, ends - begins if quota else 0.0, why)


def ends(hours: float, sessions: int = 1) -> Forecast:
    return Forecast(NOW, NOW + hours * HOUR, NOW + 0.8 * hours * HOUR, NOW + 1.3 * hours * HOUR, sessions)


MIXED = Expected(
    "graphmer-50k-7f3kq2vd", "graphmer-50k", Standing.RUNNING,
    (hop("kaggle/T4x2", -2.0, 10.0, 20_000), hop("kaggle/T4x2", 10.0, 18.0, 34_000, "quota used up"),
     hop("box/RTX3050", 20.0, 50.0, 50_000, "done", quota=False)),
    ends(50.0, 3),
)  # fmt: skip
NEXT = Expected(
    "tiny-abcdefgh", "tiny", Standing.WAITING, (hop("box/RTX3050", 50.0, 52.0, 900, "done", quota=False),),
    Forecast(NOW, NOW + 52 * HOUR, NOW + 40 * HOUR, None, 1), deadline=NOW + 30 * HOUR,
)  # fmt: skip
UNKNOWN = Expected(
    "new-hgfedcba", "new", Standing.WAITING,
    reason="its speed is unknown until its first session measures it",
)  # fmt: skip
ASKED = Expected(
    "sweep", "sweep", Standing.ASKED, (hop("kaggle/T4x2", 30.0, 41.0, 5_000, "done"),), ends(41.0),
    deadline=NOW + 45 * HOUR,
    alone=(Alone("kaggle", "T4x2", NOW + 41 * HOUR, NOW + 35 * HOUR, NOW + 44 * HOUR),
           Alone("box", "RTX3050", NOW + 60 * HOUR, NOW + 50 * HOUR, NOW + 70 * HOUR)),
)  # fmt: skip
FOUND = Outlook(NOW, (MIXED, NEXT, UNKNOWN), "Europe/Berlin")


def said(found: Outlook, columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
         *, terminal: bool = False) -> str:  # fmt: skip
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Output(as_json=False)
    out.is_terminal = terminal
    show(out, found)
    return capsys.readouterr().out


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("columns", [60, 80, 120])
def test_tables_and_timeline_fit_into_the_columns(
    columns: int, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(FOUND, columns, capsys, monkeypatch, terminal=terminal)
    table, _, rest = text.partition("\n\n")
    facts, _, timeline = rest.partition("\n\n")
    assert all(len(line) <= columns for line in (*table.splitlines(), *timeline.splitlines())), text
    assert "kaggle/T4x2" in table
    assert "box/RTX3050" in table
    assert re.search(r"graphmer-50k-7f3kq2vd +running, ends Fri 27 Nov 16:00", facts)


def test_the_timeline_shows_offers_waits_and_days(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(FOUND, 100, capsys, monkeypatch)
    [mixed] = [line for line in text.splitlines() if re.match(r"graphmer\S+ +A", line)]
    assert re.search(r" A+\.+B+$", mixed)
    [queued] = [line for line in text.splitlines() if re.match(r"tiny-abcdefgh +\.", line)]
    assert re.search(r" \.+B+$", queued)
    assert "|Thu 26" in text
    assert "|Fri 27" in text
    assert "A kaggle/T4x2, B box/RTX3050, . waits" in text
    assert "Europe/Berlin (CET)" in text


def test_a_run_is_told_with_its_range_its_quota_and_its_deadline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(FOUND, 100, capsys, monkeypatch)
    assert "running, ends Fri 27 Nov 16:00 (Fri 27 Nov 06:00 to Sat 28 Nov 07:00), 20.0 h of quota" in text
    assert "ends Fri 27 Nov 18:00 (Fri 27 Nov 06:00 to later)" in text
    assert "deadline Thu 26 Nov 20:00: it cannot be met" in text
    assert "queued, end unknown: its speed is unknown until its first session measures it" in text
    assert "EUR" not in text, "no prices, no money"


def test_the_job_that_was_asked_about_comes_first_with_its_deadline_and_what_a_week_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fits = (Fits("kaggle", "T4x2", 2, 7 * 24 * HOUR, 11 * HOUR),)
    prices = Prices("EUR", ((("box", ""), 0.1),))
    found = replace(FOUND, runs=(ASKED, *FOUND.runs), fits=fits, deadline=ASKED.deadline, prices=prices)
    text = said(found, 120, capsys, monkeypatch)
    assert text.index("HOP") < text.index("deadline") < text.index("Beside it:") < text.index("RUN")
    assert "Fri 27 Nov 11:00: it is probably met, but not for sure" in text
    assert re.search(r"met by +kaggle/T4x2 alone: Fri 27 Nov 07:00", text)
    assert re.search(r"missed by +box/RTX3050 alone: Sat 28 Nov 02:00", text)
    assert re.search(r"per week +2 runs of this job on kaggle/T4x2, at 11.0 h of quota each", text)
    assert re.search(r"cost +0.00 EUR", text)
    assert "3.00 EUR" in text, "30 hours on the box"


@pytest.mark.parametrize("columns", [60, 100])
def test_a_fire_to_come_is_told_with_its_local_time_and_waits_for_nothing_before(
    columns: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the name of its schedule is long."""
    fire = replace(MIXED, run="a-long-name-of-a-schedule 2026-11-27 00:00Z", job="a-long-name-of-a-schedule",
                   standing=Standing.SCHEDULED, planned=NOW + 10 * HOUR, deadline=None,
                   hops=(hop("box/RTX3050", 12.0, 20.0, 900, quota=False),))  # fmt: skip
    text = said(replace(FOUND, runs=(fire,)), columns, capsys, monkeypatch)
    [line] = [line for line in text.splitlines() if re.search(r"A+$", line)]
    assert re.match(r"a-l.*… Thu 00:00 {5,}\.+A+$", line), line


def test_a_session_that_runs_takes_what_is_left_of_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(FOUND, 100, capsys, monkeypatch)
    assert re.search(r"graphmer-50k-7f3kq2vd +kaggle/T4x2 +now +10\.0 h +20,000", text)
    over = replace(MIXED, hops=(hop("kaggle/T4x2", -2.0, -0.1, 900),))
    assert re.search(r"now +0 s", said(replace(FOUND, runs=(over,)), 100, capsys, monkeypatch))


@pytest.mark.parametrize("runs", [(UNKNOWN,), (replace(ASKED, hops=()),), (MIXED,)])
def test_the_zone_of_the_times_is_named_once_with_and_without_a_timeline(
    runs: tuple[Expected, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = said(replace(FOUND, runs=runs), 100, capsys, monkeypatch)
    assert text.count("Europe/Berlin (CET)") == 1


def test_a_plan_of_minutes_has_an_axis() -> None:
    line = Timeline([(hop("box/cpu", 0.0, 0.25, 1),)], NOW, 60)
    assert line.axis(BERLIN).count("|") >= 3


def test_without_runs_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert said(Outlook(NOW, (), "UTC"), 80, capsys, monkeypatch) == (
        "no run is under way, waiting or scheduled\n"
    )


def test_of_many_runs_and_hops_the_first_are_shown_and_the_others_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hops = tuple(hop("box/cpu", 12.0 * n, 12.0 * n + 11.0, n + 1, quota=False) for n in range(30))
    runs = tuple(replace(MIXED, run=f"run-{n:08d}", hops=hops) for n in range(40))
    text = said(replace(FOUND, runs=runs, left_out=5), 100, capsys, monkeypatch)
    assert "… and 20 further runs; --json has them" in text
    assert "not laid out: 5 newer waiting runs" in text
    assert "… 25 more" in text
    assert len(text.splitlines()) < 200


@pytest.mark.parametrize(
    ("due", "told"),
    [(60.0, "it is met"), (51.0, "it is probably met, but not for sure"), (49.0, "it is probably missed"),
     (39.0, "it cannot be met")],
)  # fmt: skip
def test_a_deadline_is_judged_by_the_range(due: float, told: str) -> None:
    run = replace(MIXED, deadline=NOW + due * HOUR, forecast=Forecast(NOW, NOW + 50 * HOUR, NOW + 40 * HOUR,
                  NOW + 55 * HOUR, 3))  # fmt: skip
    assert deadline_text(run) == told


def test_times_are_local_also_where_clocks_change_and_beyond_the_calendar() -> None:
    spring = 1_774_746_000.0  # 29 Mar 2026 01:00Z, when Berlin goes from 02:00 to 03:00
    assert when(spring - 60, BERLIN, NOW) == "Sun 29 Mar 01:59"
    assert when(spring, BERLIN, NOW) == "Sun 29 Mar 03:00"
    assert when(NOW + 400 * 86400.0, BERLIN, NOW) == "Thu 30 Dec 2027 14:00"
    for at in (float("inf"), 1e300, -5.0, 253_402_300_799.0):
        assert when(at, BERLIN, NOW) == "in thousands of years"


@pytest.mark.parametrize("hours", [0.0, 0.01, 5.0, 49.0, 900.0, 90_000.0, 1e12 / HOUR, 1e300, float("inf")])
def test_the_axis_and_the_bars_fit_for_any_length(hours: float) -> None:
    hops = (hop("box/cpu", 0.0, hours / 3, 1), hop("here/cpu", hours / 2, hours, 2))
    line = Timeline([hops], NOW, 40)
    assert len(line.bar(hops)) <= 40
    assert len(line.axis(BERLIN)) <= 40
    assert line.bar(hops).startswith("A" if hours else "B")
    assert line.bar(hops).endswith("B")


@pytest.mark.parametrize("seconds", [5e9, 1e12, float("inf")])
def test_an_end_in_thousands_of_years_is_told(
    seconds: float, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = replace(MIXED, hops=(hop("box/cpu", 0.0, seconds / HOUR, 50_000, "done", quota=False),))
    text = said(replace(FOUND, runs=(slow,)), 80, capsys, monkeypatch)
    assert re.search(r"\|\d{4}-\d\d ", text), text
    assert all(len(line) <= 80 for line in text.partition("\n\n")[2].partition("\n\n")[2].splitlines())
