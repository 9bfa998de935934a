"""Programs that start at once: each is forked from a process that has imported what it imports.

Importing is most of what a short process costs: 0.3 of 0.35 seconds of a command, 3 of 3.1 of a small
training. The suite runs hundreds of both. Each is still a process of its own, with its own environment,
folder, streams and signals, and runs what it would run otherwise. Decides how it starts and how its end is
noticed. Must never know what a program does.

Before its first line it is not the same: the command line in /proc, variables that only Python's start
reads, a signal during the imports. Tests of such things start the real one.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TextIO

SERVER = Path(__file__).with_name("warm_server.py")
TOLD_BYTES = 10  # of a process id, and of an exit code


class Ended(NamedTuple):
    """A program's end; `code` as in `subprocess.Popen.returncode`."""

    code: int
    out: str
    err: str


def is_same(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether this command, with these variables of its own, does the same as if it were started for real.
    `up` is found by its command line."""
    return "up" not in words and not any(name.startswith(("PYTHON", "LC_", "LANG")) for name in environ)


def run(
    words: Sequence[str], folder: Path, environ: Mapping[str, str], given: str | None, seconds: float
) -> Ended:
    """Runs a command of this project to its end, such as ("orchestrator", "ps"). `given`: what it reads."""
    with Process("command", words, folder, environ, apart=True) as process:
        try:
            out, err = process.communicate(given, seconds)
        finally:
            process.kill()
    return Ended(process.wait(), out, err)


class Process:
    """A running program, used like a `subprocess.Popen` with text. Standard error goes to standard output
    unless `apart`."""

    def __init__(
        self, kind: str, words: Sequence[str], folder: Path, environ: Mapping[str, str], *, apart: bool
    ) -> None:
        """`kind` is one of those of tests/warm_server.py; `environ` is the whole environment."""
        self.returncode: int | None = None
        asked = {"words": list(words), "folder": str(folder), "environ": dict(environ)}
        pipes = [os.pipe() for _ in range(4 if apart else 3)]
        (stdin, into), (out, stdout), (self._end, end), *errors = pipes
        stderr = errors[0][1] if apart else stdout
        socket.send_fds(_server(kind), [json.dumps(asked).encode()], [stdin, stdout, stderr, end])
        for each in {stdin, stdout, stderr, end}:
            os.close(each)
        self.stdin: TextIO = os.fdopen(into, "w")
        self.stdout: TextIO = os.fdopen(out)
        self.stderr: TextIO | None = os.fdopen(errors[0][0]) if apart else None
        told = os.read(self._end, TOLD_BYTES)
        assert told, f"the server of each {kind} has ended; what it said on standard error tells why"
        self.pid = int(told)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], seconds)[0]:
            self.returncode = int(os.read(self._end, TOLD_BYTES))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Does nothing if it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, given: str | None = None, timeout: float | None = None) -> tuple[str, str]:
        """Writes `given`, then reads all that it still says, to its end: output and errors."""
        said: dict[TextIO, str] = {}
        readers = [
            threading.Thread(target=lambda each=each: said.update({each: each.read()}), daemon=True)
            for each in (self.stdout, self.stderr)
            if each is not None
        ]
        for reader in readers:
            reader.start()
        with suppress(BrokenPipeError):  # as in subprocess: what it does not read is lost
            self.stdin.write(given or "")
            self.stdin.close()
        for reader in readers:
            reader.join(timeout)
            if reader.is_alive():
                raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0)
        self.wait(timeout)
        return said[self.stdout], "" if self.stderr is None else said[self.stderr]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdout, self.stderr, self.stdin):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()
        os.close(self._end)


@functools.cache
def _server(kind: str) -> socket.socket:
    """Our end of the connection to a new server of this kind. It ends when nobody has that any more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    process = subprocess.Popen(
        [sys.executable, "-P", str(SERVER), str(theirs.fileno()), kind],
        env=environ | {"OMP_NUM_THREADS": "1"},
        cwd="/", pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # runs first
    return ours
