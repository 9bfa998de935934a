"""What a user sees of a run that hit its session limit and is done: every command that only reads."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import pairwise
from pathlib import Path

from tests.cli.calls import BINARIES
from tests.cli.conftest import Finished


def test_following_tells_each_change_and_ends_with_a_verified_checkpoint(finished: Finished) -> None:
    lines = finished.followed.out.splitlines()
    assert re.fullmatch(r"tiny-[a-z0-9]{8}", lines[0])
    told = [re.sub(r"^\S+Z  ", "", line) for line in lines if re.match(r"\d\d:\d\d:\d\dZ", line)]
    assert told[0] == "s01 starts on here/cpu, from the beginning"
    assert any(re.match(r"s01 saved step \d+ and left for the session's deadline", line) for line in told)
    assert any(re.match(r"s02 starts on here/cpu, from step \d+", line) for line in told)
    assert any("steps/s" in line and "loss" in line and "left" in line for line in told)
    for earlier, later in pairwise(progress_times(lines)):
        assert (later - earlier) % 86400 >= 9, "a pipe gets a line of progress every 10 s"
    assert "\x1b" not in finished.followed.out
    [folder] = [line.split(maxsplit=1)[1] for line in lines if line.startswith("folder")]
    assert json.loads((Path(folder) / "state.json").read_text()) == {"step": 100}
    for command in ("show", "why", "logs", "pull"):
        assert f"orchestrator {command} {finished.run}" in finished.followed.out


def progress_times(lines: list[str]) -> list[int]:
    """When the lines of progress of the session that had the most came, in whole seconds of the day."""
    found: dict[str, list[int]] = {}
    for line in lines:
        if match := re.match(r"(\d\d):(\d\d):(\d\d)Z  (s\d+) .*steps ", line):
            hours, minutes, seconds, session = match.groups()
            found.setdefault(session, []).append(3600 * int(hours) + 60 * int(minutes) + int(seconds))
    return max(found.values(), key=len)


def test_ps_lists_what_is_over_only_when_asked(finished: Finished) -> None:
    user, run = finished.user, finished.run
    assert "no run is under way" in user("ps").out
    assert run not in user("ps").out
    header, row = user("ps", "--all").out.splitlines()
    assert header.split()[:3] == ["RUN", "PHASE", "STEP"]
    assert row.split()[:4] == [run, "done", "100/100", "100%"]
    [found] = user("ps", "-a", "--json").json["runs"]
    assert (found["run"], found["phase"], found["step"], found["steps_total"]) == (run, "done", 100, 100)


def test_show_tells_of_every_session(finished: Finished) -> None:
    user, run = finished.user, finished.run
    text = user("show", run[:8]).out
    assert f"{run}  done" in text
    assert "100 of 100 steps (100%)" in text
    found = user("show", "tiny", "--json").json
    first, *_, last = found["sessions"]
    assert first["to_step"] == found["sessions"][1]["order"]["resume_step"]
    assert last["to_step"] == 100
    assert [len(row.split()) > 5 for row in text.splitlines() if row.startswith("s0")] == [True] * len(
        found["sessions"]
    )
    assert found["job"]["name"] == "tiny"


def test_why_tells_the_story_in_order_and_the_route(finished: Finished) -> None:
    user, run = finished.user, finished.run
    _, _, text = user("why", run).out.partition("\n")
    parts = ("submitted: 100 steps", "session s01 on here/cpu", "saved step", "session s02", "done")
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert re.search(r"^route +here/cpu", text, re.MULTILINE)
    document = user("why", run, "--json").json
    assert document["route_decided"]["chosen"]["offer"]["platform"] == "here"
    assert any(event["inputs"] for event in document["events"]), "a decision can be replayed"
    assert [event["seq"] for event in document["events"]] == list(range(1, len(document["events"]) + 1))


def test_logs_are_one_stream_over_all_sessions(finished: Finished) -> None:
    user, run = finished.user, finished.run
    lines = user("logs", run).out.splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("──")]
    assert [lines[n].split()[1] for n in heads[:2]] == ["s01", "s02"]
    counted = [n for n, line in enumerate(lines) if line.startswith("counting from")]
    assert heads[0] < counted[0] < heads[1] < counted[1]
    assert "counted to 100" in lines
    raw = user("logs", run, "--raw").out
    assert raw.splitlines() == [line for line in lines if not line.startswith("──")]
    followed = user("logs", run, "-f", "--json").lines
    assert [each["line"] for each in followed] == raw.splitlines()
    assert followed[0]["session"] == f"{run}-s01"


def test_checkpoints_are_listed_with_their_metrics(finished: Finished) -> None:
    user, run = finished.user, finished.run
    last = user("checkpoints", run).out.splitlines()[-1]
    assert last.split()[0] == "100"
    assert "newest, best" in last
    assert last.endswith("accuracy 1")
    found = user("checkpoints", run, "--json").json["checkpoints"]
    assert [each["step"] for each in found] == sorted(each["step"] for each in found)
    assert found[-1]["metrics"] == {"accuracy": 1.0}
    resumed = [each["resumed"] for each in found if each["resumed"]]
    assert set(resumed) <= {"bitwise"}, "all sessions ran on the same machine"


def test_pull_verifies_and_is_idempotent(finished: Finished, tmp_path: Path) -> None:
    user, run = finished.user, finished.run
    target = tmp_path / "result"
    first = user("pull", run, "-o", str(target))
    assert str(target) in first.out
    assert json.loads((target / "state.json").read_text()) == {"step": 100}
    assert user("pull", run, "--latest", "-o", str(target), "--json").json["folder"] == str(target)
    (target / "state.json").write_text('{"step": 101}')
    assert "holds something else" in user("pull", run, "-o", str(target), code=2).err
    assert list(tmp_path.iterdir()) == [target], "nothing is left next to it"
    assert str(target.resolve()) in (user.home / "pulled.json").read_text(), "so no source includes it"
    oldest = user("checkpoints", run, "--json").json["checkpoints"][0]["step"]
    answer = user("pull", run, "--step", str(oldest), "-o", str(tmp_path / "oldest"), "--json")
    assert answer.json["step"] == oldest
    assert json.loads((tmp_path / "oldest" / "state.json").read_text()) == {"step": oldest}
    assert user("pull", run, "--best", "-o", str(tmp_path / "best"), "--json").json["step"] == 100
    missing = user("pull", run, "--step", "1", code=2).err
    assert f"it has: {oldest}, " in missing


def test_a_run_that_is_over_is_not_cancelled_held_or_released(finished: Finished) -> None:
    user, run = finished.user, finished.run
    assert "is already done" in user("cancel", run).out
    assert user("cancel", run, "--json").json["changed"] is False
    for word in ("hold", "release"):
        assert f"nothing to {word}" in user(word, run, code=2).err


def test_an_unknown_run_names_the_nearest(finished: Finished) -> None:
    user, run = finished.user, finished.run
    wrong = run[:-1] + ("a" if run[-1] != "a" else "b")
    answer = user("show", wrong, code=2)
    assert f"did you mean '{run}'?" in answer.err
    error = user("show", wrong, "--json", code=2).json["error"]
    assert error["exit_code"] == 2
    assert run in error["message"]


def test_a_reader_that_leaves_is_no_failure(finished: Finished) -> None:
    command = (
        f"{BINARIES / 'orchestrator'} schema | head -n 1; {BINARIES / 'orchestrator'} logs tiny | head -n 1"
    )
    done = subprocess.run(
        ["sh", "-c", command], env=finished.user.environment(), capture_output=True, text=True, check=True
    )
    first, second = done.stdout.splitlines()
    assert first == "{"
    assert second.startswith("── s01")
    assert done.stderr == ""


def test_everything_looks_without_a_controller(finished: Finished) -> None:
    assert finished.user("down", "--json").json == {"ended": None} or finished.user.owner() is None
    assert finished.user("show", finished.run).out
