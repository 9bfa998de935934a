"""What a failed command's result says of the reason: a port, a missing repository, a module of the root."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.agent.remedies import explained
from orchestrator.core.order import GIT_COMMIT, Outcome, Result
from orchestrator.processes import SESSION
from tests.agent.sessions import new_order

T = 'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n    {}\n'
CALLED = "subprocess.CalledProcessError: Command "
LISTENS = """
import socket
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
input()
"""


def crashed(output: str, source: Path, **changes: object) -> Result:
    """The result of an own session in this home, whose command ended with this output."""
    result = Result("i", Outcome.CRASHED, 1, None, "exit code 1: x", error="x")
    mine = str(source / "home" / "platforms" / "here" / "mine-aaaaaaaa-s01")
    return explained(result, output, source, new_order("train.py", **changes), mine)


@contextmanager
def listening(session: Path) -> Iterator[int]:
    """The port of another program, which belongs to this session."""
    program = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", LISTENS], env={SESSION: str(session)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        yield int(program.stdout.readline())
    finally:
        program.communicate("\n")


TAKEN = [
    T.format("dist.init_process_group('gloo')")
    + "torch.distributed.DistNetworkError: The server socket has failed "
    "to listen on any local network address. port: {port}, useIpv6: false, code: -98, name: EADDRINUSE, "
    "message: address already in use",
    T.format("server.bind(('', {port}))") + "OSError: [Errno 98] Address already in use",
    T.format("bind()")
    + "OSError: [Errno 98] error while attempting to bind on address ('127.0.0.1', {port}): "
    "address already in use",
    T.format("launch()")
    + "ConnectionError: Tried to launch distributed communication on port `{port}`, but another "
    "process is utilizing it.",
    "ERROR: [Errno 98] Address already in use: 0.0.0.0:{port}",
]


@pytest.mark.parametrize("output", TAKEN)
def test_a_port_of_another_run_of_this_home_is_waited_for(tmp_path: Path, output: str) -> None:
    with listening(tmp_path / "home" / "platforms" / "also-here" / "other-bbbbbbbb-s03") as port:
        found = crashed(output.replace("{port}", str(port)), tmp_path)
    assert found.outcome is Outcome.NO_CAPACITY
    assert found.message.startswith(f"port {port} is in use by other-bbbbbbbb, another run on this machine")


def test_a_port_that_nobody_names_is_thought_to_be_the_other_runs(tmp_path: Path) -> None:
    output = T.format("serve()") + "OSError: [Errno 98] Address already in use"
    with listening(tmp_path / "home" / "platforms" / "here" / "other-bbbbbbbb-s03"):
        found = crashed(output, tmp_path)
    assert found.outcome is Outcome.NO_CAPACITY
    assert "probably by other-bbbbbbbb" in found.message
    assert crashed(output, tmp_path).outcome is Outcome.CRASHED


@pytest.mark.parametrize(
    "where", ["elsewhere/platforms/here/other-bbbbbbbb-s03", "home/platforms/here/mine-aaaaaaaa-s01"]
)
def test_a_port_of_anything_else_is_an_ordinary_failure_that_names_it(tmp_path: Path, where: str) -> None:
    with listening(tmp_path / where) as port:
        found = crashed(TAKEN[0].replace("{port}", str(port)), tmp_path)
    assert found.outcome is Outcome.CRASHED
    assert f"port {port} is in use by python" in found.message


@pytest.mark.parametrize(
    "output",
    [
        "fatal: not a git repository (or any of the parent directories: .git)\n" + T.format("run()") +
        f"{CALLED}'['git', 'rev-parse', 'HEAD']' returned non-zero exit status 128.",
        T.format("run()") + f"{CALLED}'git describe' returned non-zero exit status 128.",
        T.format("Repo('.')") + "git.exc.InvalidGitRepositoryError: /x/source",
        T.format("run()") + "git.exc.GitCommandError: Cmd('git') failed due to: exit code(128)\n"
        "  stderr: 'fatal: not a git repository'",
        T.format("open()") + "FileNotFoundError: [Errno 2] No such file or directory: '.git/HEAD'",
        T.format("run()") + "FileNotFoundError: [Errno 2] No such file or directory: 'git'",
        T.format("v()") + "LookupError: setuptools-scm was unable to detect version for /x/source.",
        "fatal: not a git repository (or any of the parent directories: .git)",
    ],
)  # fmt: skip
def test_a_repository_that_stays_at_home_is_named_with_the_variable(tmp_path: Path, output: str) -> None:
    found = crashed(output, tmp_path, env=((GIT_COMMIT, "a" * 40),))
    assert (found.outcome, found.hopeless) == (Outcome.CRASHED, True)
    assert f".git stays at home, so a session has no repository; {GIT_COMMIT}" in found.message
    assert GIT_COMMIT not in crashed(output, tmp_path).message, "it was in no repository"


def test_another_failure_of_git_is_left_as_it_is(tmp_path: Path) -> None:
    for output in ("fatal: ambiguous argument 'x'", T.format("x()") + "KeyError: 'git'"):
        assert crashed(output, tmp_path).message == "exit code 1: x"
    (tmp_path / ".git").mkdir()
    failed = f"{CALLED}'git log' returned non-zero exit status 128."
    assert not crashed(T.format("x()") + failed, tmp_path).hopeless


@pytest.mark.parametrize(
    ("path", "name", "remedy"),
    [
        ("helpers.py", "helpers", "env: {PYTHONPATH: .}"),
        ("pkg/sub.py", "pkg.sub", "env: {PYTHONPATH: .}"),
        ("src/pkg/__init__.py", "pkg", "env: {PYTHONPATH: src}"),
        ("pkg/__init__.py", "pkg.sub", ""),
        ("other.py", "flash_attn", ""),
    ],
)
def test_a_module_that_lies_in_the_source_is_said_to(
    tmp_path: Path, path: str, name: str, remedy: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).touch()
    found = crashed(T.format(f"import {name}") + f"ModuleNotFoundError: No module named '{name}'", tmp_path)
    assert (remedy in found.message) if remedy else found.message == "exit code 1: x"
