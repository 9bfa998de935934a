"""`replay` as a user meets it: what was decided, what differs, and what another config would have done."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Client
from orchestrator.cli.running import run as call
from orchestrator.client.replaying import Answer
from orchestrator.core.event import Assigned
from tests.months import CONFIG, recorded_home
from tests.test_ledger_upgrade import DUMPS, restored

Say = Callable[..., tuple[int, str, str]]
CLOUDLESS = "platforms:\n  box: {type: process, accelerator: RTX3050}\n"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A copy of a recorded home, as a backup is one."""
    return Path(shutil.copytree(recorded_home()[0], tmp_path / "copy"))


@pytest.fixture
def say(home: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    def said(*words: str) -> tuple[int, str, str]:
        code = call(["--home", str(home), *words])
        out, err = capsys.readouterr()
        return code, out, err

    return said


def change(home: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(home / "ledger.sqlite")) as ledger, ledger:
        assert ledger.execute(statement, values).rowcount > 0


def first_decision(home: Path, run: str) -> tuple[int, dict[str, Any]]:
    """The first decision of a run that was routed."""
    query = "select seq, inputs from events where run = ? and inputs like '%\"case\":{%' order by seq"
    with closing(sqlite3.connect(home / "ledger.sqlite")) as ledger:
        seq, inputs = ledger.execute(query, (run,)).fetchone()
    return seq, json.loads(inputs)


@pytest.mark.soak
def test_no_decision_of_this_version_differs_and_nothing_changes(home: Path, say: Say) -> None:
    before = (home / "ledger.sqlite").read_bytes()
    code, out, _ = say("replay", "--all")
    assert code == 0
    assert "8 runs: " in out
    assert "none differs" in out
    code, out, _ = say("replay", "run2", "--steps")
    assert code == 0
    assert "the user's wish" in out
    assert "assigned" in out
    assert (home / "ledger.sqlite").read_bytes() == before


def test_a_decision_that_differs_is_told_field_by_field(home: Path, say: Say) -> None:
    seq, inputs = first_decision(home, "run1")
    inputs["case"]["offers"] = [o for o in inputs["case"]["offers"] if o["platform"] != "cloud"]
    change(home, "update events set inputs = ? where run = 'run1' and seq = ?", json.dumps(inputs), seq)
    code, out, _ = say("replay", "run1")
    assert code == 1
    assert "1 of them differs" in out
    assert "route: cloud/T4 was chosen, now not offered" in out
    code, out, _ = say("replay", "--all", "--json")
    found = json.loads(out)
    assert code == 1
    assert (found["differs"], found["runs_that_differ"]) == (1, 1)
    [step] = [step for each in found["runs"] for step in each["steps"]]
    assert step["events"] == [seq, seq]
    assert any("route: cloud/T4" in text for text in step["differences"])


def test_what_is_damaged_is_counted_and_stops_nothing(home: Path, say: Say) -> None:
    seq, _ = first_decision(home, "run1")
    change(home, "update events set inputs = '{\"now\": 1e' where run = 'run1' and seq = ?", seq)
    change(home, "update events set body = '{}' where run = 'run3' and seq = 2")
    change(home, "delete from events where run = 'run4' and seq = 3")
    code, out, _ = say("replay", "run1")
    assert code == 0
    assert "cannot be judged" in out
    assert f"the inputs of event {seq}, 'assigned', cannot be read" in out
    code, out, _ = say("replay", "--all")
    assert code == 0
    assert all(f"{name}: " in out for name in ("run1", "run3", "run4"))
    assert "event 2, 'deferred', cannot be read" in say("replay", "run3")[1] or (
        "event 2, 'assigned', cannot be read" in say("replay", "run3")[1]
    )
    assert "event 3 is missing" in say("replay", "run4")[1]


def test_another_config_is_compared_with_what_happened(say: Say, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CLOUDLESS)
    code, out, _ = say("replay", "--all", "--config", str(other))
    assert code == 0
    assert "hours on cloud/T4" in out
    assert "assumed  each run stops when it has done the work" in out
    assert "without cloud" in out
    code, out, _ = say("replay", "--all", "--config", str(other), "--json")
    found = json.loads(out)
    assert found["error"]["max"] < 0.05
    assert set(found["supposed"]["seconds"]) == {"box/RTX3050"}
    assert found["supposed"]["mean_seconds"] > found["then"]["mean_seconds"]
    assert len(found["runs"]) == 8


def test_slots_and_session_limits_of_another_config_count(say: Say, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CONFIG.replace("RTX3050}", "RTX3050, slots: 8, setup_seconds: 9, disk_gb: 3}"))
    found = json.loads(say("replay", "--all", "--config", str(other), "--json")[1])
    assert found["supposed"]["mean_waited"] < found["again"]["mean_waited"] / 2
    assumed = "\n".join(found["assumed"])
    assert "box/RTX3050: 8 slots instead of 1" in assumed
    assert "box/RTX3050: setup_seconds 9" in assumed
    assert "box: `disk_gb` differs, which is not played" in assumed


def test_a_new_platform_is_played_as_its_options_or_the_user_say(say: Say, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(f"{CONFIG}  new: {{type: process, accelerator: P100, slots: 4}}\n")
    found = json.loads(say("replay", "--all", "--config", str(other), "--json")[1])
    assert found["supposed"]["seconds"]["new/P100"] > 0
    assert any("new/P100 was never asked: 4 slots" in text for text in found["assumed"])
    other.write_text(f"{CONFIG}  far: {{type: kaggle}}\n")
    code, _, err = say("replay", "--all", "--config", str(other))
    assert code == 2
    assert "state it with --offer far=ACCELERATOR" in err
    code, out, _ = say("replay", "--all", "--config", str(other), "--offer", "far=P100:2", "--json")
    assert code == 0
    assert "far/P100" in json.loads(out)["supposed"]["seconds"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "give a run, or a time with --all or --since"),
        (("run1", "--all"), "give one run, or a time"),
        (("run1", "--config", "FILE"), "give one run, or a time"),
        (("--all", "--since", "3d"), "not allowed with"),
        (("--since", "soon"), "--since 'soon' is not a time"),
        (("run1", "--offer", "box=T4"), "give it with --config FILE"),
        (("--config", "missing.yaml"), "missing.yaml does not exist"),
        (("--all", "--config", "FILE", "--offer", "nox=T4"), "did you mean 'box'?"),
        (("--all", "--config", "FILE", "--offer", "box=T5"), "unknown accelerator 'T5'"),
        (("--all", "--config", "FILE", "--offer", "box=T4:0"), "'0' is not a number of slots"),
        (("--all", "--config", "FILE", "--offer", "box=T4:1e9"), "'1e9' is not a number of slots"),
        (("--all", "--config", "FILE", "--offer", "box=RTX3050"), "the ledger knows what it offered"),
        (("--since", "1s", "--config", "FILE"), "no run of this ledger trained anything in the last 1 s"),
        (("nosuch",), "there is no run called 'nosuch'"),
    ],
)
def test_a_wrong_call_says_what_to_give(words: tuple[str, ...], said: str, say: Say, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(CLOUDLESS)
    code, out, err = say("replay", *(str(other) if word == "FILE" else word for word in words))
    assert (code, out) == (2, "")
    assert said in err


def test_a_wrong_config_is_told_by_its_own_file_and_line(say: Say, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text("platforms:\n  box: {type: process, slotz: 3}\n")
    code, _, err = say("replay", "--all", "--config", str(other))
    assert code == 2
    assert err.startswith(f"{other}:2: platforms.box: ")
    assert "unknown option 'slotz'; did you mean 'slots'?" in err
    other.write_text("plattforms: {}\n")
    err = say("replay", "--all", "--config", str(other))[2]
    assert err.startswith(f"{other}:1: plattforms: unknown key; did you mean 'platforms'?")


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name.split(".")[0])
def test_a_ledger_of_an_older_version_is_judged_and_what_changed_since_is_found(
    path: Path, tmp_path: Path
) -> None:
    revision = path.name.removeprefix("ledger-").split(".")[0]
    restored(json.loads(gzip.decompress(path.read_bytes())), revision, f"sqlite:///{tmp_path}/ledger.sqlite")
    found = list(Client(tmp_path).past.replays())
    counts = {answer: sum(each.counts[answer] for each in found) for answer in Answer}
    assert counts[Answer.SAME] >= 70
    told = [text for each in found for step in each.steps for text in step.differences]
    if revision != "0001":
        assert told == []
        return
    [reworded] = told  # the version after it changed this sentence
    assert reworded.startswith("gave_up.reason: recorded ")
    assert "the last: " in reworded
    assert "the last one: " in reworded


def test_why_tells_the_route_that_is_judged_again(home: Path) -> None:
    client = Client(home)
    for name in ("run1", "run2", "run3"):
        told = client.run(name).route()
        [*_, last] = [step for step in client.past.replay(name).steps if step.routed]
        assert (told.decided_at, last.answer) == (last.at, Answer.SAME)
        assert told.decided is not None
        assert told.decided.chosen is not None
        [assigned] = [event for event in last.recorded if isinstance(event, Assigned)]
        offer = told.decided.chosen.offer
        assert (offer.platform, offer.accelerator) == (assigned.order.platform, assigned.order.accelerator)
