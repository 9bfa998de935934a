"""Forks a process per errand, after importing what errands need: `python -I -u forker.py PROGRAM`.

Importing Colab's command line takes a second of processor time, and a controller reads its account every few
seconds for weeks. Started by starting.py with the command line's own Python, so it uses only the standard
library. PROGRAM is errand.py: its `warm` imports, its `main` is one errand. Standard input is a socket. A
message there is JSON, and either starts an errand, with two descriptors: one for what it prints, and one that
it only holds, so that its end is seen; or it kills one.

Every errand is a process in its own session, in the folder and with the variables that it is given. HOME is
`home` while this imports: a relative path, so whatever the command line derives from it is inside the folder
of each errand. Must never run an errand itself: no login and no answer is ever in this process. It ends with
its socket, and whatever the reason, its errands end with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Any

MESSAGE_BYTES_MAX = 1 << 17
_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)
_LIBC = ctypes.CDLL(None)


class Forker:
    """Has one thread, because a fork copies only the thread that forks."""

    def __init__(self, control: socket.socket, program: Any) -> None:
        self._control = control
        self._program = program
        self._running: dict[str, int] = {}  # the errand's name → its pid; reaped nowhere but in `_reap`
        self._wakes, self._woken = socket.socketpair()
        for each in (self._wakes, self._woken):
            each.setblocking(False)

    def serve(self) -> None:
        """Returns when the other side has closed the socket, or has died."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken.fileno())
        try:
            while self._is_told():
                pass
        finally:
            for name in tuple(self._running):
                self._kill(name)

    def _is_told(self) -> bool:
        """Does one message, or buries the dead. False at the end."""
        ready, _, _ = select.select([self._control, self._wakes], [], [])
        if self._wakes in ready:
            with suppress(BlockingIOError):
                self._wakes.recv(1 << 12)
            self._reap()
        if self._control not in ready:
            return True
        flags = socket.MSG_CMSG_CLOEXEC
        data, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES_MAX, 2, flags)
        try:
            if data:
                self._do(json.loads(data), descriptors)
        finally:
            for each in descriptors:
                os.close(each)
        return bool(data)

    def _do(self, message: dict[str, Any], descriptors: list[int]) -> None:
        if "kill" in message:
            self._kill(message["kill"])
            return
        ours = os.getpid()
        with suppress(OSError):  # too many processes: its end is seen at once
            pid = os.fork()
            if pid == 0:
                self._become(message, descriptors, ours)
            self._running[message["start"]] = pid

    def _kill(self, name: str) -> None:
        """Kills an errand with its children. It is not reaped yet, so the pid is its own."""
        if name not in self._running:
            return
        with suppress(ProcessLookupError):
            os.kill(self._running[name], signal.SIGKILL)  # it may not lead a group yet
        with suppress(ProcessLookupError):
            os.killpg(self._running[name], signal.SIGKILL)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (dead := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._running = {name: pid for name, pid in self._running.items() if pid != dead}

    def _become(self, message: dict[str, Any], descriptors: list[int], parent: int) -> None:
        """Turns this process into the errand, and never returns."""
        try:
            _LIBC.prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                return
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (self._control, self._wakes, self._woken):
                each.close()
            nothing = os.open(os.devnull, os.O_RDONLY)
            for source, target in ((nothing, 0), (descriptors[0], 1), (descriptors[0], 2)):
                os.dup2(source, target)
            os.chdir(message["folder"])
            os.environ.clear()
            os.environ.update(message["variables"])
            self._program.main(message["words"])
        except BaseException:  # noqa: BLE001 - nothing of this process's parent may run on
            traceback.print_exc()
        finally:
            with suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(0)


def main(words: list[str]) -> None:
    spec = importlib.util.spec_from_file_location("program", words[0])
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    sys.modules["program"] = program
    spec.loader.exec_module(program)
    with suppress(Exception, SystemExit):  # every errand says what is wrong
        program.warm()
    gc.collect()
    gc.freeze()  # so that errands share this memory
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    Forker(control, program).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
