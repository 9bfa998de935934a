"""Starts real training scripts for tests, waits for what they do, and compares what they leave."""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests import warm

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 900.0  # on a machine that others use as well
ATTEMPTS = 20
T = TypeVar("T")


@contextmanager
def started(
    command: Sequence[str],
    cwd: Path,
    given: Mapping[str, object] | None = None,
    *paths: Path,
    kind: str = "training",
    also: Mapping[str, object] | None = None,
) -> Iterator[warm.Process]:
    """A running Python script with only the given ORCHESTRATOR_* variables, and `also` others. Killed if a
    test ends early.

    It starts warm: torch is there already, and so is what an optimizer imports. `kind` is another one of
    tests/warm_server.py."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    environ |= {"PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))), "OMP_NUM_THREADS": "1"}
    environ |= {f"ORCHESTRATOR_{name}": str(value) for name, value in (given or {}).items()}
    environ |= {name: str(value) for name, value in (also or {}).items()}
    with warm.Process(kind, command, cwd, environ, apart=False) as process:
        try:
            yield process
        finally:
            process.kill()


def finish(process: warm.Process) -> str:
    """Waits for its end and returns its output. Its exit code is then in `returncode`."""
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    return output


def until_printed(process: warm.Process, *lines: str) -> None:
    """Blocks until the script has printed these lines, in any order: several threads may print. If the script
    ends first, fails with all its output."""
    seen, missing = [], set(lines)
    for printed in process.stdout:
        seen.append(printed)
        missing.discard(printed.strip())
        if not missing:
            return
    raise AssertionError(f"ended without {missing}:\n{''.join(seen)}")


def go_on(process: warm.Process) -> None:
    """Releases a script that waits on its standard input."""
    process.stdin.write("\n")
    process.stdin.flush()


def until(condition: Callable[[], object], process: warm.Process) -> None:
    """Blocks until the condition holds. Fails if the script ends first, or after PATIENCE_SECONDS."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause = threading.Event()
    while not condition():
        if process.poll() is not None and not condition():
            failure = Done if process.returncode == 0 else AssertionError
            raise failure(f"ended with {process.returncode}:\n{finish(process)}")
        assert time.monotonic() < deadline, "it took too long"
        pause.wait(0.005)


class Done(AssertionError):
    """The script came to its end before it was disturbed."""


def in_time(attempt: Callable[[int], T]) -> T:
    """What the first attempt returns that is not `Done`: on a machine that others use as well, a script may
    be done before the test gets to disturb it."""
    for number in range(ATTEMPTS):
        with suppress(Done):
            return attempt(number)
    raise AssertionError(f"{ATTEMPTS} scripts were done before they were disturbed")


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that nobody else gets meanwhile. torch can still listen there: it sets SO_REUSEADDR, too."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def fingerprints(folder: Path) -> dict[str, str]:
    """File name → sha256 of a checkpoint's files."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def steps(checkpoints: Path) -> list[int]:
    """The steps of the committed checkpoints, ascending."""
    return sorted(int(path.name.removeprefix("step-")) for path in checkpoints.glob("step-*"))
