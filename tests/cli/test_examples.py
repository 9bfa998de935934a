"""`examples`: what comes with the orchestrator, and how it gets into a folder without replacing anything."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator import spec
from orchestrator.cli import running
from orchestrator.client.examples import EXAMPLES, Example, copy
from orchestrator.errors import InputError

WRITTEN = Path(__file__).resolve().parents[2] / "docs" / "examples"


def test_every_script_and_job_of_the_documents_is_an_example() -> None:
    files = [file for each in EXAMPLES for file in each.files]
    assert sorted(files) == sorted(path.name for path in WRITTEN.iterdir() if path.suffix in (".py", ".yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: each.name)
def test_an_example_is_copied_as_it_is_written_and_can_be_submitted(example: Example, tmp_path: Path) -> None:
    done = copy(example.name, tmp_path / "new" / "folder")
    assert {path.name: path.read_bytes() for path in done.folder.iterdir()} == {
        file: (WRITTEN / file).read_bytes() for file in example.files
    }
    job = spec.parse(done.job.read_bytes(), str(done.job), done.folder).job
    assert example.script in job.command
    assert {"cpu", "default"} & {key for key, _ in job.profiles}


def test_what_is_in_the_way_stays_and_nothing_is_copied(tmp_path: Path) -> None:
    mine = tmp_path / "plain_pytorch.py"
    mine.write_text("mine")
    with pytest.raises(InputError, match="give another folder"):
        copy("first", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [mine.name]
    mine.unlink()
    mine.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="give another folder"):
        copy("first", tmp_path)
    assert not (tmp_path / "elsewhere").exists()
    with pytest.raises(InputError, match=r"cannot be written .* -o"):
        copy("first", Path("/proc/none"))


def test_a_second_copy_changes_nothing(tmp_path: Path) -> None:
    script = copy("first", tmp_path).folder / "plain_pytorch.py"
    os.utime(script, (1, 1))
    copy("first", tmp_path)
    assert script.stat().st_mtime == 1


def test_the_command_lists_and_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    home = ("--home", str(tmp_path / "home"))
    assert running.run(["examples", *home]) == 0
    told = capsys.readouterr().out
    assert all(each.name in told and each.needs in told for each in EXAMPLES)
    assert running.run(["examples", "--json", *home]) == 0
    assert [each["name"] for each in json.loads(capsys.readouterr().out)["examples"]] == [
        each.name for each in EXAMPLES
    ]
    assert running.run(["examples", "first", *home]) == 0
    told = capsys.readouterr().out
    assert "first/first.yaml --follow" in told
    assert "init" in told
    assert running.run(["examples", "frist", "--json", *home]) == 2
    assert "did you mean 'first'" in json.loads(capsys.readouterr().out)["error"]["message"]
    assert not (tmp_path / "home").exists()
