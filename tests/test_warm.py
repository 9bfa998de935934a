"""A program that starts warm behaves as if it were started for real, and its servers leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.training.scripts import until_printed
from tests.waiting import wait_until

SHOWN = """
import os, sys
print(sys.argv, os.getcwd(), sys.stdin.read(), os.environ.get("GIVEN"), __name__, sys.path[0])
print("and an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
WAITS = "import signal\nprint('waits', flush=True)\nsignal.pause()\n"
PATIENCE_SECONDS = 240.0  # on a machine that others use as well


def script(folder: Path, text: str) -> str:
    (folder / "script.py").write_text(text)
    return str(folder / "script.py")


def test_it_has_its_own_words_folder_environment_and_streams(tmp_path: Path) -> None:
    words, environ = [script(tmp_path, SHOWN), "7"], {"GIVEN": "this", "HOME": "/"}
    with warm.Process("training", words, tmp_path, environ, apart=True) as process:
        said = process.communicate("read", PATIENCE_SECONDS)
    real = subprocess.run(
        [sys.executable, *words], cwd=tmp_path, env=environ, input="read", capture_output=True, text=True
    )
    assert (process.returncode, *said) == (real.returncode, real.stdout, real.stderr)
    assert real.returncode == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_reaches_it_alone(tmp_path: Path, number: signal.Signals) -> None:
    words = [script(tmp_path, WAITS)]
    with (
        warm.Process("training", words, tmp_path, {}, apart=False) as first,
        warm.Process("training", words, tmp_path, {}, apart=False) as second,
    ):
        until_printed(first, "waits")
        first.send_signal(number)
        codes = first.wait(PATIENCE_SECONDS), second.poll()
        second.kill()
        assert (*codes, second.wait(PATIENCE_SECONDS)) == (-number, None, -signal.SIGKILL)


def test_an_error_ends_it_with_a_traceback(tmp_path: Path) -> None:
    words = [script(tmp_path, "raise OSError('planted')")]
    with warm.Process("training", words, tmp_path, {}, apart=True) as process:
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert errors.splitlines()[-1] == "OSError: planted"


def test_a_command_says_what_the_installed_one_says(tmp_path: Path) -> None:
    environ = {"ORCHESTRATOR_HOME": str(tmp_path / "home"), "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for words in (["ps"], ["ps", "--json"], ["show", "nosuch"], ["nosuch"], ["--help"]):
        installed = Path(sys.executable).with_name("orchestrator")
        real = subprocess.run(
            [str(installed), *words], cwd=tmp_path, env=environ, capture_output=True, text=True
        )
        ended = warm.run(("orchestrator", *words), tmp_path, environ, None, PATIENCE_SECONDS)
        assert ended == (real.returncode, real.stdout, real.stderr)


def test_its_servers_end_with_the_process_that_started_them() -> None:
    code = (
        "import os; from pathlib import Path; from tests import warm\n"
        "code, *_ = warm.run(('orchestrator', '--version'), Path('/'), {}, None, 240.0)\n"
        "children = Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read_text()\n"
        "print(code, *children.split(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
    code, server = said.split()
    assert code == "0"
    wait_until(lambda: not Path(f"/proc/{server}").exists(), "the server to leave")
