"""`ps --watch`, and the other names of what lists and helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.event import ActionFailed, Prepared
from tests.cli.calls import PATIENCE, Caller
from tests.cli.dialogue import dialogue
from tests.client.homes import append, run_after
from tests.core.runs import NOW, RUN, assigned, launched


@pytest.fixture
def home(user: Caller) -> Path:
    run_after(user.home)
    return user.home


def test_a_watched_list_stays_in_place_until_ctrl_c(user: Caller, home: Path) -> None:
    with dialogue(user, "ps", "--watch", COLUMNS="80") as seen:
        seen.expect("queued")
        append(home, launched())
        seen.expect("launching")
        seen.interrupt()
        assert seen.ends() == 130
    shown = seen.said.replace("\r", "")
    assert "\x1b[?25l" in shown
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "the cursor is back"
    assert "\x1b[1A" in shown, "drawn over"
    assert shown.rstrip("\n\x1b[?25h").count("\n") < shown.count("\n"), "the prompt has a line of its own"


@pytest.mark.parametrize("terminal", ["", "dumb"])
def test_where_nothing_can_be_redrawn_a_list_is_printed_if_it_changes(
    user: Caller, home: Path, terminal: str
) -> None:
    viewer = user.start("status", "-w", TERM=terminal)
    assert viewer.stdout is not None
    said: list[str] = []

    def next_line_with(text: str) -> None:
        for line in iter(viewer.stdout.readline, ""):  # type: ignore[union-attr]
            said.append(line)
            if text in line:
                return
        raise AssertionError("".join(said))

    next_line_with("queued")
    append(home, launched())
    next_line_with("launching")
    viewer.send_signal(2)
    rest, err = viewer.communicate(timeout=PATIENCE)
    assert viewer.returncode == 130
    whole = "".join(said) + rest
    assert err == ""
    assert "\x1b" not in whole
    assert whole.count("queued") == 1, "the same list is not repeated"


def test_a_list_says_what_is_tried_again(user: Caller, home: Path) -> None:
    full = "the disk / (12 kB free) is full"
    append(home, (assigned(), ActionFailed(NOW, "prepare", full, NOW + 2.0)))
    assert f"staging its files failed, trying again: {full}" in " ".join(user("ps").out.split())
    assert user("ps", "--json").json["runs"][0]["failing"]["message"] == full
    append(home, (Prepared(NOW),))
    assert full not in user("ps").out
    assert user("ps", "--json").json["runs"][0]["failing"] is None


@pytest.mark.usefixtures("home")
def test_a_watched_list_as_json_is_a_stream(user: Caller) -> None:
    viewer = user.start("list", "--watch", "--json")
    assert viewer.stdout is not None
    line = viewer.stdout.readline()
    assert f'"run": "{RUN}"' in line
    viewer.send_signal(2)
    viewer.communicate(timeout=PATIENCE)
    assert viewer.returncode == 130


@pytest.mark.usefixtures("home")
def test_other_names_do_the_same(user: Caller) -> None:
    for words in (("list",), ("status",)):
        assert user(*words).out.splitlines()[1:2] == user("ps").out.splitlines()[1:2]
    assert user("status", RUN).out == user("show", RUN).out
    assert "give either a run or --all" in user("status", RUN, "--all", code=2).err
    assert user("help", "schedule", "list").out == user("schedule", "list", "--help").out
    assert "usage: orchestrator" in user("help").out
    assert "did you mean 'logs'" in user("help", "losg", code=2).err


@pytest.mark.parametrize(
    ("given", "meant"), [("ls", "'ps'"), ("statsu", "'status'"), ("kill", "'cancel'"), ("hlep", "'help'")]
)
def test_what_others_call_it_is_understood(user: Caller, given: str, meant: str) -> None:
    assert f"did you mean {meant}" in user(given, code=2).err


@pytest.mark.usefixtures("home")
def test_a_store_is_not_watched(user: Caller) -> None:
    assert "--watch shows the runs" in user("ps", "--store", "home", "--watch", code=2).err
