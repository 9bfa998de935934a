"""Output in every locale, on every terminal, at every width."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.cli import charset
from orchestrator.cli.output import Output
from orchestrator.core.event import GaveUp
from orchestrator.core.order import Outcome
from tests.cli.calls import BINARIES, PATIENCE, Caller
from tests.client.homes import run_after
from tests.core.runs import NOW, RUN, ended, running

LOCALES = {
    "C": {"LC_ALL": "C", "LANG": "de_DE.UTF-8"},
    "POSIX": {"LANG": "POSIX"},
    "latin": {"PYTHONIOENCODING": "iso-8859-1:strict"},
    "utf8": {"LANG": "C.UTF-8"},
}
ENCODINGS = {"C": "ascii", "POSIX": "ascii", "latin": "iso-8859-1", "utf8": "utf-8"}
REASON = "no newer checkpoint – the disk “Ünïcode” ≥ 日本 says …\nTraceback\ud800"
COMMANDS = (("ps", "--all"), ("show", RUN), ("why", RUN), ("quota",), ("--help",))
CODES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.mark.parametrize("text", ["…→×–─", "Ünïcode", "日本", "\ud800", "\x85"])
@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1", "utf-8", "cp437", "koi8-r"])
@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("environ", LOCALES.values(), ids=LOCALES.keys())
def test_no_text_is_ever_refused(text: str, encoding: str, terminal: bool, environ: dict[str, str]) -> None:
    chosen, errors = charset.chosen(encoding, environ, terminal=terminal)
    written = text.encode(chosen, errors)
    if chosen == "ascii" and terminal:
        assert written.isascii()


def test_what_ascii_lacks_has_a_stand_in_and_nothing_of_a_run_is_lost_in_a_pipe() -> None:
    encoding, errors = charset.chosen("utf-8", {"LC_ALL": "C"}, terminal=False)
    assert "5 × 6 → … 日本".encode(encoding, errors).decode() == "5 x 6 -> ... 日本"
    encoding, errors = charset.chosen("utf-8", {"LC_ALL": "C"}, terminal=True)
    assert "5 × 6 → … 日本".encode(encoding, errors) == b"5 x 6 -> ... ??"
    assert "Größe, œuvre, łódź, ﬁ, Ａ, ½, \u0301".encode(encoding, errors) == (
        b"Grosse, oeuvre, lodz, fi, A, ?, ?"
    )
    encoding, errors = charset.chosen("iso-8859-1", {"LANG": "de_DE"}, terminal=True)
    assert "Größe, Łódź".encode(encoding, errors) == "Größe, Lódz".encode("latin-1")


@pytest.mark.parametrize(
    ("environ", "is_ascii"),
    [
        ({}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, False),
        ({"LC_CTYPE": "de_DE.UTF-8", "LANG": "C"}, False),
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, True),  # Python has put that in
        ({"LC_CTYPE": "C.UTF-8"}, False),
        ({"LC_ALL": "C", "PYTHONUTF8": "1"}, False),
        ({"LC_ALL": "POSIX"}, True),
    ],
)
def test_ascii_is_for_those_who_asked_for_it(environ: dict[str, str], is_ascii: bool) -> None:
    encoding, _ = charset.chosen("utf-8", environ, terminal=True)
    assert (codecs.lookup(encoding).name == "ascii") is is_ascii


@pytest.fixture
def home(user: Caller) -> Path:
    failed = (ended(Outcome.CRASHED, message=REASON), GaveUp(NOW, REASON))
    run_after(user.home, *running(), *failed)
    return user.home


def on_a_terminal(user: Caller, words: Sequence[str], columns: int, **more: str) -> bytes:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environ = {
        name: value for name, value in user.environment(more).items() if name != "LANG" or "LANG" in more
    }
    child = subprocess.Popen(
        [str(BINARIES / "orchestrator"), *words],
        cwd=user.folder, env=environ, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    said = b""
    with suppress(OSError):
        while data := os.read(ours, 1 << 16):
            said += data
    os.close(ours)
    assert child.wait(PATIENCE) == 0
    return said


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
@pytest.mark.parametrize(("locale", "terminal", "columns"), [("C", "xterm", 60), ("latin", "dumb", 80)])
def test_a_terminal_gets_only_what_it_can_show(
    user: Caller, home: Path, words: tuple[str, ...], locale: str, terminal: str, columns: int
) -> None:
    assert home.is_dir()
    said = on_a_terminal(user, words, columns, TERM=terminal, **LOCALES[locale])
    text = CODES.sub(b"", said).replace(b"\r", b"").decode(ENCODINGS[locale])
    assert "Traceback (most recent" not in text
    if terminal == "dumb":
        assert b"\x1b" not in said
    if words[0] in ("ps", "show"):
        assert max(map(len, text.splitlines())) <= columns
        assert "no newer checkpoint" in " ".join(text.split())


class Wide(Output):
    """An output on a terminal of so many columns."""

    def __init__(self) -> None:
        super().__init__(as_json=False)
        self.has_width = True


def test_characters_of_two_columns_count_as_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "24")
    assert Wide().fitted("die 模型 passt nicht 模型 ja", 0) == ["die 模型 passt nicht", "模型 ja"]
    assert Wide().fitted("die model passt nicht mod ja", 0) == ["die model passt nicht", "mod ja"]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_last_cell_goes_below_the_others_where_there_is_no_room(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    rows = [("here-gpu-of-a-long-name", "no free slot: 2 of 2 taken by us"), ("b", "c")]
    out = Wide()
    out.is_terminal = terminal
    out.table(("OFFER", "WHY"), rows)
    assert capsys.readouterr().out.splitlines() == [
        "OFFER                    WHY",
        "here-gpu-of-a-long-name",
        "    no free slot: 2 of 2 taken by us",
        "b                        c",
    ]


def test_no_column_vanishes_from_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    out = Wide()
    out.is_terminal = True
    what = "a loop in PyTorch that saves and resumes by itself, in a few lines"
    out.table(("EXAMPLE", "WHAT", "NEEDS"), [("first", what, "torch")])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 40
    assert lines[0].split() == ["EXAMPLE", "WHAT", "NEEDS"]
    words = " ".join(lines[1:]).split()
    assert {"first", "torch"} < set(words)
    assert [word for word in words if word not in ("first", "torch")] == what.split()
