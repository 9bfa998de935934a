"""Any text is made harmless: none of it controls the terminal."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.controlling import LINE_CHARACTERS_MAX, text_of
from orchestrator.cli.logs import Lines
from orchestrator.cli.terminal import last_state, one_line, plain
from orchestrator.client.controller_log import OUTPUT, Entry

anything = st.text(st.characters(exclude_categories=()), max_size=200)
commands = st.lists(
    st.sampled_from(["\x1b", "[", "]", "52;c;", "2J", "8m", "P", "\\", "\x9b", "\x9d", "\x07", "x", "\r"]),
    max_size=30,
).map("".join)


@given(anything | commands)
def test_nothing_steers_a_terminal(text: str) -> None:
    for shown in (plain(text), last_state(text), one_line(text)):
        assert all(character.isprintable() or character in "\n\t" for character in shown)
        assert plain(shown) == shown
    assert "\n" not in one_line(text)


@given(st.text(st.characters(categories=("L", "N", "P", "S"), include_characters=" \n\t")))
def test_what_is_harmless_is_shown_as_it_is(text: str) -> None:
    assert plain(text) == text


def test_a_command_that_never_ends_takes_no_time_and_hides_nothing() -> None:
    for start in ("\x1b]", "\x9d", "\x1b[", "\x1bP", "\x1b ", "\r"):
        assert plain(start * 200_000 + "\nthe end").endswith("\nthe end")
        assert plain(start + "0" * 200_000 + "\nthe end").endswith("\nthe end")


def test_of_a_progress_bar_the_last_state_is_shown() -> None:
    assert last_state("\r  0%|  |\r 50%|# |\r100%|##|\r") == "100%|##|"
    assert last_state("\x1b[32mINFO\x1b[0m ready\r") == "INFO ready"
    assert plain("a\r\nb\rc") == "a\nb\nc"


@pytest.mark.parametrize("in_place", [True, False])
def test_a_line_that_has_not_ended_is_shown_only_where_a_terminal_follows(
    in_place: bool, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lines = Lines(in_place=in_place)
    for data in (b"one\n 10%\r 20%", b"\r 30%|#", b"\r\x1b[2Jdone \xc3", b"\xa9"):
        lines.take(data)
    lines.end()
    said = capsysbinary.readouterr().out.decode()
    seen = [line.rpartition("\r\x1b[K")[2] for line in said.split("\n")]
    assert seen == ["one", "done é", ""]
    assert ("20%\r" in said and "30%|#\r" in said) is in_place
    assert "\x1b" not in said.replace("\r\x1b[K", "")


def test_an_enormous_line_of_the_controllers_log_is_cut_for_people_only() -> None:
    entry = Entry(0.0, OUTPUT, f"short\n{'x' * (LINE_CHARACTERS_MAX + 12_345)}\nlast")
    short, cut, last = text_of(entry).split("\n")
    assert (short, last) == ("  short", "  last")
    assert cut == f"  {'x' * LINE_CHARACTERS_MAX} … (cut; 12,345 more characters in --json)"
    assert entry.json()["text"] == entry.text
    whole = "x" * LINE_CHARACTERS_MAX
    assert text_of(Entry(0.0, OUTPUT, whole)) == f"  {whole}"
