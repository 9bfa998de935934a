"""Where `submit --follow -o DIR` and `pull` put a checkpoint: refused early, and told in the user's words."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import pytest

from orchestrator import Client
from orchestrator.cli import running, submitting
from orchestrator.cli.call import Call
from orchestrator.cli.output import Output
from orchestrator.client import Run
from orchestrator.client.pulling import check_target
from orchestrator.core.event import Completed
from orchestrator.core.order import Outcome
from orchestrator.errors import InputError
from tests.cli.calls import JOB
from tests.client.homes import append, run_after
from tests.client.test_checkpoints import published
from tests.core.runs import NOW, RUN, ended
from tests.core.runs import running as started


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A job of somebody without a home yet, who works in this folder."""
    monkeypatch.setenv("ORCHESTRATOR_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("")
    (tmp_path / "job.yaml").write_text(JOB.format(total=40, pace=0.1, accelerator="cpu"))
    return "job.yaml"


def test_an_output_without_follow_is_refused(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert running.run(("submit", job, "-o", "out")) == 2
    told = capsys.readouterr().err
    assert "add --follow" in told
    assert "pull RUN -o out` once it is done" in told
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_an_output_that_cannot_be_created_is_refused_before_the_run(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    for output, words in (
        ("/proc/zz", "-o: /proc/zz cannot be created (No such file or directory): give another folder"),
        ("/proc/zz/deep", "-o: /proc/zz/deep cannot be created (No such file or directory)"),
        ("job.yaml/x", f"-o: {tmp_path}/job.yaml/x cannot be created (Not a directory)"),
        ("full", f"-o: {tmp_path}/full exists: give a folder that does not exist yet"),
        ("~no-such-user/x", "-o: ~no-such-user/x: the home folder of '~no-such-user' is not known"),
    ):
        assert running.run(("submit", job, "-f", "-o", output)) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "home" / "ledger.sqlite").exists()


def test_a_look_at_the_output_leaves_nothing(tmp_path: Path) -> None:
    check_target(tmp_path / "deep" / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_target_of_pull_is_named_as_it_was_given(tmp_path: Path) -> None:
    run = run_after(tmp_path / "home", *started())
    published(run, 10)
    with pytest.raises(InputError, match=r"^/proc/zz cannot be created \(No such file or directory\): give"):
        run.pull("/proc/zz")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds something else"):
        run.pull(tmp_path / "link")


def test_an_output_that_cannot_be_written_in_the_end_is_told_with_the_way_out(tmp_path: Path) -> None:
    """It could be created when the run was submitted; something else has its name by now."""
    home, output = tmp_path / "home", tmp_path / "out"
    published(run_after(home, *started()), 10)
    append(home, [ended(Outcome.COMPLETED), Completed(NOW, "all steps are trained")])
    output.write_text("something else")
    client = Client(home)
    call = Call(Namespace(output=str(output), command="submit"), client, Output(as_json=False))
    with pytest.raises(InputError) as caught:
        submitting.followed(call, Run(client, RUN))
    told = str(caught.value)
    assert told.startswith(f"{RUN} is done, but its checkpoint was not copied to -o: {output} exists")
    assert told.endswith(f" {RUN} -o DIR` copies it")
