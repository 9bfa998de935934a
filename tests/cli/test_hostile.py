"""A session that prints terminal control codes: no view passes them on, no pull writes such a name."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.calls import BINARIES, UNLIMITED, Caller, caller

TEXTS = [
    "\x1b]52;c;cm0gLXJmIH4=\x07", "\x1b]52;c;cm0gLXJmIH4=\x1b\\", "\x1b]0;title\x07", "\x1b[2J\x1b[H",
    "\x1b[8mhidden\x1b[28m", "\x1b[31;5mred", "\x1bc", "\x1b[3J", "\x1bPq#0\x1b\\", "\x1b_G\x1b\\", "\x1b[6n",
    "\x9b2J", "\x9d52;c;cm0=\x9c", "\x85", "\u202edesrever\u202c", "\u2066\u2069\u200e\u200f\u061c",
    "zero\u200bwidth", "tag\U000e0041", "\x07\x08\x7f\x0b\x0c", "\x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\",
    "[red]markup[/red]", "[link=https://evil.example]markup[/link]", "\x1b]52;c;never ended", "\x1b",
    "\u2028",
]  # fmt: skip
NAMES = [
    "state", "-rf", "a\nb", "a%0ab", "\x1b]52;c;cm0=\x07", "\u202etxt.exe", "trailing ", "sub\t/-x/y",
    "o" * 200, "\n" * 100, "\n" * 99 + "x", "\x9b2J", "-", "ordinary name (1).txt",
]  # fmt: skip
STEERS = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e007f]"
)
OUR_STYLES = re.compile(r"\x1b\[(?:0|1|2|3[1236]|[01];3[1236]|[12];[0-9;]+)?m")
OUR_PANEL = re.compile(r"\x1b\[(?:\?25[lh]|2K|1A|K)|\r")
JOB = """
name: hostile
source: source
command: python hostile.py
work: {total: 20, global_batch: 8}
profiles: {cpu: {micro_batch: 8, precision: fp32}}
"""
VIEWS = (
    ("logs",), ("logs", "-f"), ("logs", "--raw"), ("show",), ("show", "-f"), ("why",), ("checkpoints",),
    ("ps", "-a"),
)  # fmt: skip


@dataclass(frozen=True)
class Hostile:
    user: Caller
    run: str

    def words(self, view: tuple[str, ...]) -> tuple[str, ...]:
        return view if view[0] == "ps" else (view[0], self.run, *view[1:])


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """A finished run of two sessions, the first of which crashed."""
    with caller(tmp_path_factory.mktemp("hostile")) as user:
        user.config(UNLIMITED)
        given = {"texts": TEXTS, "names": NAMES}
        (user.folder / "source" / "hostile.json").write_text(json.dumps(given))
        (user.folder / "hostile.yaml").write_text(JOB)
        answer = user("hostile.yaml", "--follow", program="submit")
        assert not STEERS.search(answer.out + answer.err)
        yield Hostile(user, answer.out.split()[0])


@pytest.mark.parametrize("view", [view for view in VIEWS if "--raw" not in view], ids=" ".join)
def test_no_view_that_is_piped_steers_a_terminal(hostile: Hostile, view: tuple[str, ...]) -> None:
    for words in (hostile.words(view), (*hostile.words(view), "--json")):
        answer = hostile.user(*words)
        found = STEERS.search(answer.out + answer.err)
        assert found is None, f"{found} in {answer.out!r}"
        assert answer.out.isascii() or "--json" not in words


@pytest.mark.parametrize("view", VIEWS, ids=" ".join)
def test_no_view_on_a_terminal_does_what_a_session_says(hostile: Hostile, view: tuple[str, ...]) -> None:
    said = hostile.user.on_a_terminal(*hostile.words(view), columns=100).replace("\r\n", "\n")
    ours_out = OUR_PANEL.sub("", OUR_STYLES.sub("", said)) if "-f" in view else OUR_STYLES.sub("", said)
    found = STEERS.search(ours_out)
    assert found is None, f"{found} in {said!r}"
    assert "\x1b[8m" not in said
    assert "31;5m" not in said


def test_a_log_keeps_its_words(hostile: Hostile) -> None:
    lines = hostile.user("logs", hostile.run).out.splitlines()
    for shown in ("seen red by eyes", "seen hidden by eyes", "seen link by eyes",
                  "seen [red]markup[/red] by eyes", "seen \ufffd]52;c;never ended by eyes",
                  "seen zerowidth by eyes",
                  "8-bit \ufffd2J and \ufffd52;c;cm0=\ufffd end", "100%|##########|"):  # fmt: skip
        assert shown in lines
    assert not any(" 10%|#" in line for line in lines)
    raw = subprocess.run(
        [str(BINARIES / "orchestrator"), "logs", hostile.run, "--raw"],
        env=hostile.user.environment(), capture_output=True, check=True,
    ).stdout  # fmt: skip
    assert b"seen \x1b[2J\x1b[H by eyes\n" in raw, "--raw into a file or a pipe is byte for byte"


def test_a_controllers_log_steers_no_terminal(hostile: Hostile) -> None:
    text = (hostile.user.home / "controller.log").read_text()
    assert "crashed" in text
    assert not STEERS.search(text)


def test_pull_writes_no_name_that_harms_and_loses_no_file(hostile: Hostile, tmp_path: Path) -> None:
    target = tmp_path / "pulled"
    answer = hostile.user("pull", hostile.run, "-o", str(target), "--json")
    renamed = answer.json["renamed"]
    assert set(renamed) == set(NAMES) - {"state", "a%0ab", "o" * 200, "ordinary name (1).txt"}
    assert (renamed["-rf"], renamed["sub\t/-x/y"]) == ("%2drf", "sub%09/%2dx/y")
    for name in NAMES:
        assert (target / renamed.get(name, name)).read_text() == name
    for path in target.rglob("*"):
        assert path.name.isprintable()
        assert not path.name.startswith("-")
        assert not path.name.endswith(" ")
    told = hostile.user("pull", hostile.run, "-o", str(target))
    assert "'-rf' is called %2drf here" in told.err
    assert not STEERS.search(told.out + told.err)
    assert list(tmp_path.iterdir()) == [target]
