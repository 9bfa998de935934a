"""The controller's log: what a line holds, rotation, a full disk, and whoever reads it meanwhile."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import Client, config
from orchestrator.cli.call import Call
from orchestrator.cli.controlling import _Speaker
from orchestrator.cli.output import Output
from orchestrator.client import reading_log, unsaid
from orchestrator.client.controller_log import OLDER_MAX, OUTPUT, ControllerLog, Entry, Level, entry_of, older
from orchestrator.clock import SystemClock
from orchestrator.core.order import Outcome
from tests.core import runs
from tests.waiting import wait_until

KEYS = ["time", "level", "event", "run", "session", "platform", "text", "at"]


def said(number: int) -> Entry:
    return Entry(float(number), "started", f"number {number}", Level.WARNING, "a-run", "a-run-s01", "here")


def read(home: Path, tail: int | None = None) -> list[Entry]:
    return list(reading_log.entries(home, SystemClock(), tail=tail, follow=False, stop=lambda: True))


def test_a_line_has_the_documented_keys_and_comes_back(tmp_path: Path) -> None:
    log = ControllerLog(tmp_path / "home")
    log.write(said(1_800_000_000))
    log.write(Entry(2.5, "controller", "two\nlines \x1b[2J\x7f"))
    first, second = (tmp_path / "home" / "controller.log").read_bytes().splitlines()
    assert list(json.loads(first)) == list(json.loads(second)) == KEYS
    assert json.loads(first)["time"] == "2027-01-15T08:00:00Z"
    assert json.loads(second)["run"] is None
    assert b"\x1b" not in second
    assert b"\x7f" not in second
    assert read(tmp_path / "home") == [
        said(1_800_000_000),
        Entry(2.5, "controller", "two\nlines \x1b[2J\x7f"),
    ]


@pytest.mark.parametrize(
    "line",
    ["", "Fatal Python error", "[]", "7", '{"at": "x"}', '{"at": 1, "event": "e", "text": "t"}', "[" * 9999],
)
def test_a_line_that_is_not_ours_is_shown_as_it_is(line: str) -> None:
    assert entry_of(line) == Entry(0.0, OUTPUT, line)


def test_the_log_is_rotated_while_it_is_written_and_bounded(tmp_path: Path) -> None:
    log = ControllerLog(tmp_path, bytes_max=1000)
    for number in range(1, 101):
        log.write(said(number))
    files = (tmp_path / "controller.log", *older(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files)
    assert all(path.stat().st_size < 1200 for path in files)
    numbers = [int(entry.at) for entry in read(tmp_path)]
    assert numbers == list(range(numbers[0], 101)), "none is missing or twice, and the oldest are gone"
    assert len(numbers) > OLDER_MAX
    assert [int(entry.at) for entry in read(tmp_path, tail=2)] == [99, 100]
    assert read(tmp_path, tail=0) == []


def test_somebody_else_may_move_or_remove_the_log(tmp_path: Path) -> None:
    log = ControllerLog(tmp_path)
    log.write(said(1))
    (tmp_path / "controller.log").rename(tmp_path / "moved")
    log.write(said(2))
    (tmp_path / "controller.log").unlink()
    log.write(said(3))
    assert read(tmp_path) == [said(3)]


def test_a_log_that_is_a_link_is_not_followed_and_stops_nothing(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "controller.log").symlink_to(victim)
    log = ControllerLog(tmp_path)
    log.write(said(1))
    assert log.trouble
    assert victim.read_text() == "precious"
    (tmp_path / "controller.log").unlink()
    log.write(said(2))
    assert (log.trouble, read(tmp_path)) == ("", [said(2)])


FULL = """
import resource, signal, sys
from pathlib import Path
from orchestrator.client.controller_log import ControllerLog, Entry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
log = ControllerLog(Path(sys.argv[1]))
log.write(Entry(1.0, "controller", "before"))
size = (Path(sys.argv[1]) / "controller.log").stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, resource.RLIM_INFINITY))
log.write(Entry(2.0, "controller", "torn"))
log.write(Entry(3.0, "controller", "lost"))
assert log.trouble, "the disk is full"
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
log.write(Entry(4.0, "controller", "after"))
assert not log.trouble
"""


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    """A limit of the file's size ends writes as a full disk does: in part, then with an error."""
    subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], check=True, cwd=Path.cwd())
    found = read(tmp_path)
    assert [entry.text for entry in found if entry.event != OUTPUT] == ["before", "after"]


BEHIND = """
import os, sys
from pathlib import Path
from orchestrator.client.controller_log import ControllerLog, Entry
log = ControllerLog(Path(sys.argv[1]), bytes_max=300)
assert log.is_standard_output
for number in range(9):
    log.write(Entry(1.0, "controller", "x" * 100))
    os.write(2, b"a warning of a library\\n")
assert log.is_standard_output, "standard output has moved with the log"
"""


def test_standard_output_moves_with_a_log_that_it_is(tmp_path: Path) -> None:
    with (tmp_path / "controller.log").open("ab") as output:
        command = [sys.executable, "-c", BEHIND, str(tmp_path)]
        subprocess.run(command, stdout=output, stderr=output, check=True, cwd=Path.cwd())
    for path in (tmp_path / "controller.log", *older(tmp_path)):
        assert path.stat().st_size < 900
        assert "a warning of a library" in path.read_text()


def test_whoever_follows_sees_each_entry_once_across_rotations(tmp_path: Path) -> None:
    log, seen, over = ControllerLog(tmp_path, bytes_max=500), [], threading.Event()

    def follow() -> None:
        for entry in reading_log.entries(tmp_path, SystemClock(), tail=None, follow=True, stop=over.is_set):
            seen.append(int(entry.at))

    reader = threading.Thread(target=follow)
    reader.start()
    try:
        for number in range(1, 13):
            log.write(said(number))
            wait_until(lambda number=number: number in seen, "the entry to be seen")  # type: ignore[misc]
    finally:
        over.set()
        reader.join()
    assert seen == list(range(1, 13))


def test_secrets_that_the_controller_can_read_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_text("in-a-file-77\n")
    (tmp_path / "config.yaml").write_text(
        "stores: {far: {type: s3, key_id: 'env:WORD', key: 'file:key'}}\nhome_store: far\n"
    )
    monkeypatch.setenv("WORD", "by-reference-1")
    monkeypatch.setenv("SOME_TOKEN", "by-name-22222")
    monkeypatch.setenv("SLASHED_KEY", "/4bCdEfGh1jK+lmn=")
    monkeypatch.setenv("ADC_CREDENTIALS", str(tmp_path / "key"))
    monkeypatch.setenv("HARMLESS", "a harmless value")
    mask = unsaid.mask(config.load(tmp_path)).text
    text = mask("by-reference-1 in-a-file-77 by-name-22222 a harmless value")
    assert not any(secret in text for secret in ("by-reference-1", "in-a-file-77", "by-name-22222"))
    assert text.endswith("a harmless value")
    assert "4bCdEfGh1jK" not in mask("it begins with a slash: /4bCdEfGh1jK+lmn=")
    assert mask(f"reads {tmp_path / 'key'}") == f"reads {tmp_path / 'key'}", "where a secret is, is none"
    assert os.environ["SOME_TOKEN"] == "by-name-22222"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_secret_in_an_event_gets_neither_into_the_log_nor_onto_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    secret = 'by "name" 22222 ü'  # JSON escapes some of it
    monkeypatch.setenv("SOME_TOKEN", secret)
    event = replace(runs.ended(Outcome.CRASHED, message=f"refused {secret}"), tail=f"a line\n{secret}\n")
    with Client(tmp_path) as client:
        speaker = _Speaker(Call(argparse.Namespace(), client, Output(as_json)))
        speaker.told(runs.record(*runs.running()), event)
        speaker.warn(f"cannot log in with {secret}")
    log, out = (tmp_path / "controller.log").read_text(), capsys.readouterr().out
    for text in (log, out):
        assert "refused ***" in text
        assert "cannot log in with ***" in text
        assert not any(part in text for part in ("22222", 'by "name', 'by \\"name'))
    if as_json:
        body = json.loads(out.splitlines()[0])["body"]
        assert (body["message"], body["tail"]) == ("refused ***", "a line\n***\n")
