"""`new` writes a job file that `submit` takes, for scripts of every kind, and never runs them."""

from __future__ import annotations

import json
import os
import stat
import venv
from pathlib import Path

import pytest

from orchestrator.client import Client
from orchestrator.errors import InputError
from tests.agent.cells import notebook
from tests.drafting.scripts import FORGETFUL, NOTEBOOK, PLAIN, REFUSED, SAMPLES, Sample

CONFIG = """
platforms:
  here: {type: process}
  there: {type: process, accelerator: T4x2}
"""


@pytest.fixture
def client(tmp_path: Path) -> Client:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.yaml").write_text(CONFIG)
    return Client(tmp_path / "home")


def written(folder: Path, sample: Sample) -> Path:
    """The script as a file; running or importing it would leave a trace."""
    folder.mkdir(exist_ok=True)
    path = folder / sample.name
    if isinstance(sample.code, str):
        trace = f"import pathlib\npathlib.Path({str(folder / 'was-run')!r}).touch()\n"
        path.write_bytes(f"{sample.code}\n{trace}".encode(sample.encoding))
    else:
        path.write_text(json.dumps(notebook(*sample.code, tags={2: ["parameters"]})))
    return path


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_what_is_written_has_these_lines_and_is_a_valid_job(
    tmp_path: Path, client: Client, sample: Sample
) -> None:
    script = written(tmp_path / "code", sample)
    made = client.jobs.draft(script)
    text = made.path.read_text(encoding="utf-8")
    assert [line for line in sample.lines if line not in text.splitlines()] == [], text
    assert [words for words in sample.never if words in text] == [], text
    assert client.plan(made.path).route.chosen is not None
    assert not (tmp_path / "code" / "was-run").exists()
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.parametrize(("name", "data", "why"), REFUSED, ids=[each[0] for each in REFUSED])
def test_what_is_no_script_is_refused_and_nothing_is_written(
    tmp_path: Path, client: Client, name: str, data: bytes, why: str
) -> None:
    (tmp_path / "code").mkdir()
    path = tmp_path / "code" / name
    path.write_bytes(data)
    with pytest.raises(InputError) as refused:
        client.jobs.draft(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert why in str(refused.value)
    assert [each.name for each in (tmp_path / "code").iterdir()] == [name]


def test_what_is_no_file_is_refused(tmp_path: Path, client: Client) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    for name, why in (("pipe.py", "not a file"), ("folder.py", "not a file"), ("none.py", "No such file")):
        with pytest.raises(InputError, match=why):
            client.jobs.draft(tmp_path / name)
    with pytest.raises(InputError, match="is a folder: give a Python script"):
        client.jobs.draft(tmp_path)


def test_a_file_that_exists_is_replaced_only_if_asked(tmp_path: Path, client: Client) -> None:
    script = written(tmp_path / "code", PLAIN)
    (tmp_path / "code" / "train.yaml").write_text("mine")
    with pytest.raises(InputError, match="exists: give another file with -o, or --force"):
        client.jobs.draft(script)
    elsewhere = client.jobs.draft(script, tmp_path / "elsewhere.yaml").path
    assert "source: code  #" in elsewhere.read_text()
    client.plan(elsewhere)
    deep = tmp_path / "jobs"
    deep.mkdir()
    assert (
        f"source: {json.dumps(str(tmp_path / 'code'))}  #"
        in client.jobs.draft(script, deep / "a.yaml").path.read_text()
    )
    client.plan(deep / "a.yaml")
    assert stat.S_IMODE(client.jobs.draft(script, force=True).path.stat().st_mode) == 0o644


def test_the_requirements_beside_a_script_are_named(tmp_path: Path, client: Client) -> None:
    script = written(tmp_path / "code", FORGETFUL)
    (script.parent / "requirements.txt").write_text("matplotlib\n")
    text = client.jobs.draft(script).path.read_text()
    assert "requirements: requirements.txt  # for platforms" in text
    assert "It imports" not in text


def test_an_environment_beside_a_script_is_named_unless_one_is_active(
    tmp_path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("VIRTUAL_ENV", "CONDA_DEFAULT_ENV"):
        monkeypatch.delenv(name, raising=False)
    script = written(tmp_path / "code", PLAIN)
    assert "python: " not in client.jobs.draft(script).path.read_text()
    venv.EnvBuilder(symlinks=True).create(script.parent / ".venv")
    made = client.jobs.draft(script, force=True).path
    assert '\npython: ".venv"  # GUESSED' in made.read_text()
    assert client.plan(made).pythons[0].path == str(script.parent / ".venv" / "bin" / "python")
    above = client.jobs.draft(script, tmp_path / "above.yaml").path
    assert "\npython: code/.venv  #" in above.read_text()
    monkeypatch.setenv("VIRTUAL_ENV", "/another")
    assert "python: " not in client.jobs.draft(script, force=True).path.read_text()


def test_what_is_missing_is_returned_and_a_cell_that_was_not_read_is_told(
    tmp_path: Path, client: Client
) -> None:
    made = client.jobs.draft(written(tmp_path / "code", FORGETFUL))
    assert "the checkpoint does not seem to hold the optimizer's state" in made.missing
    text = client.jobs.draft(written(tmp_path / "code", NOTEBOOK)).path.read_text()
    assert "# Code cell 6 was not read: line 1: not valid in Python" in text


def test_without_platforms_there_is_a_profile_of_this_machine(tmp_path: Path) -> None:
    client = Client(tmp_path / "nothing")
    text = client.jobs.draft(written(tmp_path / "code", PLAIN)).path.read_text()
    assert "  cpu: {micro_batch: 64, precision: fp32}  #" in text
