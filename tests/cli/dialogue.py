"""A command that asks questions on a terminal, and a person who answers them."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.cli.calls import BINARIES, PATIENCE, Caller


class Dialogue:
    """`said` is all that the terminal has shown, with what the person typed unless it was hidden."""

    def __init__(self, child: subprocess.Popen[bytes], terminal: int) -> None:
        self.said = ""
        self._child, self._terminal = child, terminal
        self._seen = 0

    def expect(self, text: str) -> None:
        """Waits until this text is shown after all that was expected before."""
        while text not in self.said[self._seen :]:
            if not self._read():
                raise AssertionError(f"no {text!r} came:\n{self.said}")
        self._seen = self.said.index(text, self._seen) + len(text)

    def hears(self) -> bool:
        """Whether the terminal shows what is typed."""
        return bool(termios.tcgetattr(self._terminal)[3] & termios.ECHO)

    def answer(self, text: str) -> None:
        os.write(self._terminal, text.encode() + b"\n")

    def interrupt(self) -> None:
        os.write(self._terminal, b"\x03")

    def ends(self) -> int:
        """The exit code, once everything was read."""
        while self._read():
            pass
        return self._child.wait(PATIENCE)

    def _read(self) -> bool:
        ready, _, _ = select.select([self._terminal], [], [], PATIENCE)
        assert ready, f"nothing more came:\n{self.said}"
        with suppress(OSError):  # the last writer has exited
            data = os.read(self._terminal, 1 << 16)
            self.said += data.decode("utf-8", "replace").replace("\r\n", "\n")
            return bool(data)
        return False


@contextmanager
def dialogue(user: Caller, *words: str, **more: str) -> Iterator[Dialogue]:
    """Runs a command on a terminal of its own, so that Ctrl-C reaches it as in a shell."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        ["setsid", "--ctty", "--wait", str(BINARIES / "orchestrator"), *words],
        cwd=user.folder,
        env=user.environment({"TERM": "xterm", "COLUMNS": "200", **more}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        yield Dialogue(child, ours)
    finally:
        os.close(ours)  # a command that still runs is hung up
        child.wait(PATIENCE)
