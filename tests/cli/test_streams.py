"""Commands whose output cannot be written or has no place to go, and Ctrl-C while a command starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.cli.call import Exit
from orchestrator.client.home import Home
from tests.cli.calls import BINARIES, PATIENCE, Answer, Caller
from tests.cli.conftest import Finished

LOST = "standard output cannot be written: No space left on device"
SIGNALLED = """
import os, signal, sys
def hook(event, given):
    if event == "exec" and given[0].co_filename.endswith({file!r}):
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(hook)
from orchestrator.cli import main
sys.exit(main({words!r}))
"""


def redirected(user: Caller, where: str, *words: str) -> Answer:
    """Runs a command with its output redirected by a shell."""
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" "$@" {where}', str(BINARIES / "orchestrator"), *words],
        cwd=user.folder, env=user.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stdout + done.stderr
    assert "Exception ignored" not in done.stderr
    return Answer(done.returncode, done.stdout, done.stderr)


def full(user: Caller, *words: str, code: int = 4) -> str:
    """What a command says on standard error when its standard output is full."""
    answer = redirected(user, ">/dev/full", *words)
    assert answer.code == code, answer.err
    assert "try again" not in answer.err
    return answer.err


@pytest.mark.parametrize("json", [(), pytest.param(("--json",), marks=pytest.mark.soak)])
def test_a_submit_that_cannot_print_says_what_it_submitted(user: Caller, json: tuple[str, ...]) -> None:
    job = user.job(total=20_000)
    told = full(user, "submit", job, *json)
    [row] = user("ps", "--json").json["runs"]
    run = row["run"]
    assert f"{LOST}; the command itself was carried out: {run} was submitted" in told
    told = full(user, "cancel", run, *json)
    assert f"{LOST}; the command itself was carried out: {run} ends" in told
    user.wait_for_phase(run, "cancelled")


@pytest.mark.parametrize("words", ["ps", "ps --json", "schema", "--help", "ps --help", "--version"])
def test_what_only_prints_says_that_it_cannot(user: Caller, words: str) -> None:
    told = full(user, *words.split())
    assert told.count(LOST) == 1
    assert len(told.splitlines()) <= 2, "the other line may be a hint, also on standard error"


def test_a_view_that_cannot_print_ends(user: Caller) -> None:
    told = full(user, "submit", user.job(total=20_000), "--follow")
    [row] = user("ps", "--json").json["runs"]
    run = row["run"]
    assert f"{LOST}; the view has ended; {run} was submitted" in told
    for words in (("show", run, "-f", "--json"), ("logs", run, "-f")):
        assert f"{LOST}; the view has ended" in full(user, *words)
    assert user.phase(run) not in ("done", "failed"), "the views ended before the run"
    user("cancel", run)


@pytest.mark.parametrize("words", [["ps", "--watch"], ["logs", "--controller", "-f"]])
def test_a_view_whose_reader_has_gone_ends_though_nothing_is_new(user: Caller, words: list[str]) -> None:
    Home.of(str(user.home)).ledger().close()
    view = subprocess.Popen(
        [str(BINARIES / "orchestrator"), *words], env=user.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert view.stdout is not None
    if words[0] == "ps":
        assert view.stdout.readline()
    view.stdout.close()
    _, told = view.communicate(timeout=PATIENCE)
    assert view.returncode == Exit.PIPE, told


def test_an_error_that_cannot_be_printed_as_json_is_told_in_words(user: Caller) -> None:
    assert "unknown command 'nosuch'" in full(user, "nosuch", "--json", code=2)


def test_a_full_standard_error_changes_nothing(user: Caller) -> None:
    assert redirected(user, "2>/dev/full", "nosuch").code == 2
    assert redirected(user, "2>/dev/full", "ps").code == 0


@pytest.mark.parametrize(
    "words",
    [
        *("ps", "show RUN -f", "logs RUN", "doctor"),
        *(
            pytest.param(each, marks=pytest.mark.soak)
            for each in ("show RUN", "why RUN", "schema", "prune", "--help")
        ),
    ],
)
def test_output_that_nobody_can_see_is_dropped(finished: Finished, words: str) -> None:
    given = words.replace("RUN", finished.run).split()
    for each in (given, ["--json", *given]):
        assert redirected(finished.user, ">&-", *each).code == 0


def test_all_streams_may_be_closed(finished: Finished) -> None:
    assert redirected(finished.user, "<&- >&- 2>&-", "show", finished.run).code == 0


def test_a_closed_standard_error_does_not_mix_into_the_output(user: Caller) -> None:
    answer = redirected(user, "2>&-", "nosuch")
    assert (answer.code, answer.out) == (2, "")


@pytest.mark.parametrize("file", ["/cli/streams.py", "/cli/running.py", "/cli/doctoring.py"])
@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_ctrl_c_while_a_command_starts(user: Caller, file: str, words: list[str]) -> None:
    """The signal arrives when the file's code is about to run."""
    user.home.chmod(0o700)  # else it says that it makes the home private
    done = subprocess.run(
        [sys.executable, "-c", SIGNALLED.format(file=file, words=words)],
        env=user.environment(), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    told = "" if "--json" in words else "interrupted\n"
    assert (done.returncode, done.stdout, done.stderr) == (130, "", told)
