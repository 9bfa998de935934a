"""What the command line prints before there is any run: plans, mistakes, set-up, help."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import jsonschema
import pytest

from orchestrator import config
from orchestrator.cli import arguments, running
from orchestrator.cli.arguments import COMMANDS, Command
from orchestrator.cli.options import SHELLS
from orchestrator.client import home
from orchestrator.clock import SystemClock
from tests.cli.calls import BINARIES, CONFIG, Caller

NO_ENGINE = "unix:///tmp/no-engine.sock"  # whatever engine this machine has
READ_ONLY = Path("/sys/orchestrator-home")  # not even root may create this


def test_a_plan_launches_and_writes_nothing(user: Caller) -> None:
    (user.home / "config.yaml").unlink()
    user.home.rmdir()
    job = user.job(total=1000)
    claim = "{steps_per_second: [5, 9], batch: 8, on: here, source: a guess, date: 2026-01-01}"
    spec = user.folder / job
    spec.write_text(spec.read_text().replace("precision: fp32", f"precision: fp32, claim: {claim}"))
    for words in (("plan", job), ("submit", job, "--dry-run")):
        text = user(*words).out
        assert "process/cpu" in text
        assert "HOP" in text
        assert "Nothing was launched" in text
    document = user("plan", job, "--json").json
    assert document["verdict"] == "ok"
    assert document["hops"][-1]["to_step"] == 1000
    assert not user.home.exists()


def test_a_plan_of_an_unknown_speed_promises_no_dates(user: Caller) -> None:
    job = user.job()
    answer = user("plan", job)
    assert "unknown until the first session measures its speed" in answer.out
    assert "HOP" not in answer.out
    assert user("plan", job, "--json").json["hops"] == []


def test_a_job_that_no_offer_ever_takes_makes_no_run(user: Caller) -> None:
    job = user.job(accelerator="T4")
    for words in (("plan", job), ("submit", job)):
        answer = user(*words, code=2)
        assert "no profile for cpu" in answer.out + answer.err
    assert user("submit", job, "--json", code=2).json["error"]["type"] == "NoRoute"
    assert user("ps", "--all", "--json").json == {"runs": []}
    assert user.owner() is None


def test_claims_beyond_the_physical_bound_are_shown_as_such(user: Caller) -> None:
    spec = Path(__file__).parents[2] / "jobs" / "graphmer_50k.yaml"
    answer = user("plan", str(spec), "--json", code=2).json
    assert "impossible" in answer["claims"]["T4"]
    assert "impossible" in user("plan", str(spec), code=2).out


def test_a_job_that_must_wait_is_queued_with_the_date(user: Caller) -> None:
    hour = datetime.fromtimestamp(SystemClock().now(), UTC).hour
    hours = [hour, (hour + 12) % 24]
    rule = f"{{name: not now, when: {{hours_of_day: {hours}}}, avoid: {{owned: true}}}}"
    user.config(f"{CONFIG}timezone: UTC\nrules: [{rule}]\n")
    assert "it would be queued until 20" in user("plan", user.job()).out
    document = user("submit", "job.yaml", "--json").json
    assert document["verdict"] == "time"
    assert document["opens_at"] is not None
    why = user("why", document["run"], "--json").json["route_now"]["rejections"]
    assert [("not now" in each["reason"], each["until"]["kind"]) for each in why] == [(True, "time")]
    user.wait_for_phase(document["run"], "queued")
    user("cancel", document["run"])
    user.wait_for_phase(document["run"], "cancelled")


def test_every_mistake_of_a_spec_is_told_at_once(user: Caller) -> None:
    (user.folder / "bad.yaml").write_text("name: Bad Name\ncomand: python x.py\nwork: {total: -1}\n")
    answer = user("submit", "bad.yaml", code=2)
    assert "bad.yaml:1: name:" in answer.err
    assert "command" in answer.err
    error = user("submit", "bad.yaml", "--json", code=2).json["error"]
    assert {"name", "comand", "work.total"} <= {each["path"] for each in error["faults"]}
    assert error["exit_code"] == 2
    assert "does not exist" in user("submit", "missing.yaml", code=2).err


def test_a_mistake_in_the_config_has_its_line(user: Caller) -> None:
    user.config("platforms:\n  here:\n    type: process\n    acelerator: cpu\n")
    answer = user("plan", user.job(), code=2)
    assert "config.yaml:" in answer.err
    assert "did you mean 'accelerator'" in answer.err
    assert "there are no runs yet" in user("ps").out, "a listing needs no config"


def test_what_a_human_must_do_first_is_exit_3(user: Caller) -> None:
    text = (user.folder / user.job()).read_text() + "secrets: [SOME_TOKEN]\n"
    (user.folder / "job.yaml").write_text(text)
    assert "export SOME_TOKEN=" in user("submit", "job.yaml", code=3).err
    assert user("ps", "-a", "--json").json == {"runs": []}


def test_a_platform_by_name(user: Caller) -> None:
    job = user.job()
    assert "did you mean 'here'" in user("plan", job, "--platform", "hera", code=2).err
    assert user("plan", job, "--platform", "here", "--json").json["verdict"] == "ok"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("sumbit",), "did you mean 'submit'"),
        (("ps", "--al"), "did you mean '--all'"),
        (("--jsn", "ps"), "did you mean '--json'"),
        (("show",), "RUN"),
        (("completion", "ksh"), "bash"),
        (("pull", "x", "--best", "--latest"), "not allowed with"),
    ],
)
def test_a_wrong_word_suggests_the_right_one(user: Caller, words: tuple[str, ...], hint: str) -> None:
    assert hint in user(*words, code=2).err
    assert hint in user(*words, "--json", code=2).json["error"]["message"]


def test_a_home_that_cannot_be_written(user: Caller) -> None:
    job = user.job()
    for words in (("submit", job), ("init",), ("up",)):
        answer = user(*words, code=2 if words == ("init",) else 3, ORCHESTRATOR_HOME=str(READ_ONLY))
        assert str(READ_ONLY) in answer.err
    assert "there are no runs yet" in user("ps", ORCHESTRATOR_HOME=str(READ_ONLY)).out
    assert "there are no runs in" in user("cancel", "tiny", code=2, ORCHESTRATOR_HOME=str(READ_ONLY)).err
    assert user("plan", job, ORCHESTRATOR_HOME=str(READ_ONLY)).out
    answer = user("ps", "--home", str(user.folder / job), code=2)
    assert "is not a folder" in answer.err


def test_init_writes_a_config_once(user: Caller) -> None:
    assert "already exists" in user("init", code=2).err
    kept = user("init", "--force", "--json", DOCKER_HOST=NO_ENGINE).json["kept"]
    assert Path(kept).read_text() == CONFIG
    written = config.load(user.home)
    assert [(each.name, each.type) for each in written.platforms] == [("here", "process")]
    assert user("plan", user.job()).out
    (user.home / "config.yaml").unlink()
    text = user("init", DOCKER_HOST=NO_ENGINE).out
    assert all(word in text for word in ("cpu", "gpu", "docker", "kaggle", "colab", "written"))
    assert "run `orchestrator colab login colab`" in text


def test_doctor_says_what_works_and_what_does_not(user: Caller) -> None:
    findings = user("doctor", "--json").json["findings"]
    assert {each["state"] for each in findings} == {"ok"}
    assert {"python", "home", "ledger", "agent", "platform here", "store home"} <= {
        f["what"] for f in findings
    }
    assert len(user("doctor", "here").out.splitlines()) == 4
    assert "did you mean 'here'? valid: here, home" in user("doctor", "hare", code=2).err
    user.config(f"{CONFIG}stores: {{attic: {{type: folder, path: config.yaml}}}}")
    answer = user("doctor", "--json", code=4)
    assert [f["what"] for f in answer.json["findings"] if f["state"] != "ok"] == ["store attic"]
    user.config("platforms: {here: {type: process, slotz: 3, threads: 0}}")
    answer = user("doctor", code=2)
    assert "and 1 more mistake" in answer.out
    assert {"slotz", "threads"} <= {word.strip("':,;()") for word in answer.out.split()}


def test_doctor_sends_nobody_to_the_config_for_a_ledger_that_is_none(user: Caller) -> None:
    ledger = user.home / "ledger.sqlite"
    ledger.write_text("no database at all, but long enough to be read as one\n" * 4)
    found = {each["what"]: each for each in user("doctor", "--json", code=2).json["findings"]}
    assert "is not an SQLite database: move that file away" in found["ledger"]["text"]
    assert found["ledger"]["advice"] == ""
    ledger.unlink()
    user.config("platforms: {here: {type: process, slotz: 3}}")
    assert "correct the config" in user("doctor", code=2).out


def test_a_folder_in_the_configs_place_is_told_as_such(user: Caller) -> None:
    assert "is a folder, not a file: give the file of a spec" in user("plan", "source", code=2).err
    (user.home / "config.yaml").unlink()
    (user.home / "config.yaml").mkdir()
    told = user("plan", user.job(), code=2).err
    assert "config.yaml is a folder, not a file: move it away" in told
    assert "spec" not in told


def test_the_schema_accepts_the_job_and_completion_knows_the_commands(user: Caller) -> None:
    jsonschema.Draft202012Validator.check_schema(user("schema").json)
    for shell in SHELLS:
        script = user("completion", shell).out
        assert all(command.name in script for command in COMMANDS)


def test_help_lists_every_command(user: Caller) -> None:
    text = user("--help").out
    assert user().out == text
    for command in COMMANDS:
        assert command.name in text
        assert "--json" in user(command.name, "--help").out if command.name in ("ps", "pull") else True
    assert user("--version").out == user("--version", program="submit").out


def test_a_bug_leaves_its_traceback_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arguments, "COMMANDS", (Command("broken", "", "nowhere:nothing"),))
    assert running.run(["broken", "--home", str(tmp_path)]) == 70
    told = capsys.readouterr()
    assert str(tmp_path / "crash.log") in told.err
    assert "Traceback" not in told.err + told.out
    assert "Traceback" in (tmp_path / "crash.log").read_text()
    assert running.run(["broken", "--home", str(tmp_path), "--json"]) == 70
    assert json.loads(capsys.readouterr().out)["error"]["exit_code"] == 70


def test_a_crash_log_that_is_a_link_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here, temporary, victim = tmp_path / "home", tmp_path / "temporary", tmp_path / "victim"
    for folder in (here, temporary):
        folder.mkdir()
    victim.write_text("precious")
    (here / "crash.log").symlink_to(victim)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr(arguments, "COMMANDS", (Command("broken", "", "nowhere:nothing"),))
    assert running.run(["broken", "--home", str(here)]) == 70
    [written] = temporary.iterdir()
    assert str(written) in capsys.readouterr().err
    assert "Traceback" in written.read_text()
    written.unlink()
    written.symlink_to(victim)
    assert running.run(["broken", "--home", str(here)]) == 70
    assert "Traceback" in capsys.readouterr().err
    assert victim.read_text() == "precious"


def test_the_home_and_the_config_agree_on_their_names(tmp_path: Path) -> None:
    user = home.Home(tmp_path)
    assert user.database() == config.load(tmp_path).database
    for text in (
        "timezone: UTC\n",
        "# database: elsewhere\n",
        f"database: sqlite:///{tmp_path}/other.sqlite\n",
    ):
        (tmp_path / "config.yaml").write_text(text)
        assert user.database() == config.load(tmp_path).database


@pytest.mark.parametrize(
    ("words", "unwanted"),
    [
        ("--version", {"argparse", "sqlalchemy", "pydantic", "rich", "yaml", "json"}),
        ("ps", {"pydantic", "rich", "yaml", "alembic", "tenacity", "torch", "orchestrator.config"}),
        ("show tiny", {"pydantic", "rich", "yaml", "alembic", "torch", "orchestrator.config"}),
    ],
)
def test_what_only_looks_loads_little(finished_home: Path, words: str, unwanted: set[str]) -> None:
    code = f"""
import sys
before = set(sys.modules)
from orchestrator.cli import main
assert main({words.split()!r}) == 0
print(*(set(sys.modules) - before), file=sys.stderr)
"""
    environment = {"PATH": os.environ["PATH"], "ORCHESTRATOR_HOME": str(finished_home)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert not unwanted & set(done.stderr.split())


def test_the_installed_commands_are_there() -> None:
    assert (BINARIES / "orchestrator").exists()
    assert (BINARIES / "submit").exists()
