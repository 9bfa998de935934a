"""Rehearsals of real trainings: each fault is told apart, with what to do about it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.client import Client
from orchestrator.errors import InputError, SpecError
from orchestrator.rehearsal.judging import Grade, Rehearsed
from tests.cli.calls import Caller, caller

HERE = Path(__file__).parent
JOB = """
name: demo
source: .
command: python train.py {{steps}} "{forgets}" --resume {{resume}}
work: {{total: 500, global_batch: 8}}
checkpoint: {{watch: "saved/{{step}}.pt"}}
profiles: {{default: {{micro_batch: 8, precision: fp32}}}}
"""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    (home / "config.yaml").write_text("platforms: {here: {type: process, threads: 1}}\n")
    return Client(home)


def rehearsed(
    client: Client, folder: Path, text: str, script: str = "train.py", steps: int | None = 30
) -> Rehearsed:
    source = folder / "job"
    source.mkdir(exist_ok=True)
    (source / script).write_bytes((HERE / script).read_bytes())
    (source / "job.yaml").write_text(text)
    return client.rehearse(source / "job.yaml", steps=steps, patience=60.0)


def whats(done: Rehearsed) -> list[str]:
    return [each.what for each in done.findings]


def test_an_exact_one_is_bitwise(client: Client, tmp_path: Path) -> None:
    done = rehearsed(client, tmp_path, JOB.format(forgets="nothing"), steps=None)
    assert (done.grade, done.findings) == (Grade.BITWISE, ())
    assert [leg.name for leg in done.legs] == ["pace", "whole", "stopped", "killed", "resumed"]
    assert done.steps == max(done.legs[1].steps)
    assert all(leg.trace for leg in done.legs)
    assert list((tmp_path / "home").iterdir()) == [tmp_path / "home" / "config.yaml"], "nothing is left"


@pytest.mark.parametrize(
    ("forgets", "what", "text"),
    [
        ("the random state", "random lost", "another way: torch"),
        ("the data order", "data lost", "the epoch began again"),
        ("the optimizer", "optimizer lost", "another state"),
        ("to load", "starts over", "from the start"),
        ("the seed", "not reproducible", "differ in weights, data, torch"),
    ],
)
def test_what_is_forgotten_is_named(
    client: Client, tmp_path: Path, forgets: str, what: str, text: str
) -> None:
    done = rehearsed(client, tmp_path, JOB.format(forgets=forgets))
    assert done.grade is Grade.NOT_EXACT
    assert what in whats(done)
    assert text in next(each.text for each in done.findings if each.what == what)
    assert not {"random lost", "data lost", "optimizer lost", "weights lost"} & {*whats(done)} - {what}


def test_one_that_never_saves_is_told_the_line_to_add(client: Client, tmp_path: Path) -> None:
    done = rehearsed(client, tmp_path, JOB.format(forgets="to save"))
    assert (done.grade, whats(done)) == (Grade.NOT_RESUMABLE, ["no checkpoint"])
    done = rehearsed(client, tmp_path, JOB.format(forgets="nothing").replace("saved/", "elsewhere/"))
    assert 'watch: "saved/{step}.pt"' in done.findings[0].text


def test_torn_files_are_named(client: Client, tmp_path: Path) -> None:
    text = JOB.replace('train.py {{steps}} "{forgets}" --resume {{resume}}', "torn.py {{steps}}")
    text = text.replace('checkpoint: {{watch: "saved/{{step}}.pt"}}\n', "").format()
    done = rehearsed(client, tmp_path, text, "torn.py", steps=4)
    assert "torn files" in whats(done)
    assert "model.pt" in next(each.text for each in done.findings if each.what == "torn files")


def test_a_crash_is_shown_with_its_output(client: Client, tmp_path: Path) -> None:
    text = JOB.format(forgets="nothing").replace("{steps}", "{steps}x")
    done = rehearsed(client, tmp_path, text)
    assert (done.grade, whats(done)) == (Grade.NOT_RESUMABLE, ["crash"])
    assert "argument steps: invalid int value: '30x'" in done.findings[0].text


def test_what_cannot_be_rehearsed_is_told(client: Client, tmp_path: Path) -> None:
    text = JOB.format(forgets="nothing")
    with pytest.raises(InputError, match="--steps 501: the job has 500 steps"):
        rehearsed(client, tmp_path, text, steps=501)
    with pytest.raises(InputError, match="has no profile for cpu"):
        rehearsed(client, tmp_path, text.replace("default:", "T4:"))
    with pytest.raises(SpecError, match="unknown key"):
        rehearsed(client, tmp_path, text + "nonsense: 1\n")
    with pytest.raises(InputError, match="only on this machine: here, process, docker"):
        client.rehearse(tmp_path / "job" / "job.yaml", platform="kaggle")


def test_the_command_says_it_with_its_exit_code(tmp_path: Path) -> None:
    with caller(tmp_path) as user:
        user.config()
        _command(user)


def _command(user: Caller) -> None:
    for name in ("train.py", "torn.py"):
        (user.folder / name).write_bytes((HERE / name).read_bytes())
    (user.folder / "job.yaml").write_text(JOB.format(forgets="to load"))
    answer = user("rehearse", "job.yaml", "--steps", "20", code=1)
    assert "not exact" in answer.out
    assert "starts over" in answer.out
    assert "without interruption" in answer.err
    (user.folder / "job.yaml").write_text(JOB.format(forgets="nothing"))
    told = json.loads(user("rehearse", "job.yaml", "--steps", "30", "--json").out)
    assert (told["grade"], told["exact"], told["compared_at"]) == ("bitwise", True, 30)
    assert user.owner() is None, "no controller is started"
