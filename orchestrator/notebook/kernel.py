"""A kernel of this Python, as a child process: started, asked to execute code, signalled and ended.

Speaks Jupyter's protocol through jupyter_client, which comes with ipykernel. Decides nothing about cells and
their outputs: it passes on each message as it comes.
"""

from __future__ import annotations

import os
import queue
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.connect import write_connection_file

from orchestrator.agent import family

_TICK = 0.2  # how often a silent kernel is looked at, in seconds
_QUIET_TICKS = 50  # after its reply, a kernel that does not say that it is idle never will
_SOCKET_PATH_MAX = 60  # of 107 bytes, less our folder and the socket's name
_ENDED = "application/vnd.orchestrator.ended"
# What Python does at its end: it waits for threads, then calls exit handlers, the newest first. Ours is older
# than those of the cells, and newer than ipykernel's, which are not called: asked to shut down, ipykernel 7.4
# hangs now and then (its control thread flushes while the main thread closes what the flush waits for).
_BEGIN = f"""
def _begin():
    import atexit, logging, sys, threading
    from IPython.display import publish_display_data
    def finish():
        if not getattr(get_ipython(), "_is_ending", False):
            return
        if "multiprocessing.util" in sys.modules:
            sys.modules["multiprocessing.util"]._exit_function()
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        publish_display_data({{{_ENDED!r}: ""}}, {{}})
        threading.Event().wait()
    atexit.register(finish)
_begin()
del _begin
"""
_END = """
def _end():
    import atexit, threading
    get_ipython()._is_ending = True
    threading._shutdown()
    atexit._run_exitfuncs()
_end()
"""
_INLINE = "module://matplotlib_inline.backend_inline"

Message = Mapping[str, Any]
Hear = Callable[[Message], None]


class Died(Exception):
    """The kernel's process has ended. `code` is negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the kernel ended with {code}")
        self.code = code


class Kernel:
    """A running kernel. `hear` gets each message that it publishes, and `idle` is called while none comes."""

    def __init__(
        self, process: subprocess.Popen[bytes], client: Any, hear: Hear, idle: Callable[[], None]
    ) -> None:
        self._process, self._client, self._hear, self._idle = process, client, hear, idle

    def execute(self, code: str, *, hidden: bool = False) -> Mapping[str, Any]:
        """Executes code and returns the content of its reply. `hidden`: without a number and in no history.
        Raises Died."""
        sent = self._client.execute(
            code, silent=hidden, store_history=not hidden, allow_stdin=False,
            user_expressions={} if hidden else {"exit": "_exit_code"},
        )  # fmt: skip
        reply: Message | None = None
        quiet = 0
        while quiet <= _QUIET_TICKS:
            message = self._next()
            if message is None:
                self._idle()
                reply = reply or self._reply(sent)
                quiet += reply is not None
                continue
            self._hear(message)
            if message["parent_header"].get("msg_id") == sent and _is_idle(message):
                break
        while reply is None:
            reply = self._reply(sent, _TICK)
            if reply is None and self._process.poll() is not None:
                raise Died(self._process.returncode)
        content: Mapping[str, Any] = reply["content"]
        return content

    def wait_until_ready(self) -> None:
        """Returns once the kernel can execute cells and its messages arrive. Raises Died."""
        answered = heard = False
        while not (answered and heard):
            self._client.kernel_info()
            heard = self._next() is not None or heard
            answered = self._reply(None) is not None or answered
        self.execute(_BEGIN, hidden=True)

    def terminate(self) -> None:
        """Sends SIGTERM to the training: the kernel if a cell handles it, else a program that a cell runs and
        that handles it."""
        family.terminate(self._process.pid)

    def end(self) -> None:
        """Ends the kernel as Python ends: waits for its threads and calls its exit handlers."""
        self._client.execute(_END, silent=True, store_history=False, allow_stdin=False)
        with suppress(Died):
            while (message := self._next()) is None or not _is_end(message):
                if message is not None:
                    self._hear(message)
        self._process.kill()

    def _next(self) -> Message | None:
        """The next message that it publishes; None if nothing came for a while."""
        for timeout in (_TICK, 0.0):
            with suppress(queue.Empty):
                message: Message = self._client.get_iopub_msg(timeout=timeout)
                return message
            if self._process.poll() is None:
                return None
        raise Died(self._process.returncode)

    def _reply(self, sent: str | None, timeout: float = 0.0) -> Message | None:
        """The reply to what was sent, or any (None), if it has come."""
        with suppress(queue.Empty):
            while True:
                message: Message = self._client.get_shell_msg(timeout=timeout)
                if sent in (None, message["parent_header"].get("msg_id")):
                    return message
        return None


@contextmanager
def started(hear: Hear, idle: Callable[[], None]) -> Iterator[Kernel]:
    """A kernel that is starting. At the end it is killed, if it did not end before."""
    long_path = len(tempfile.gettempdir()) > _SOCKET_PATH_MAX
    with tempfile.TemporaryDirectory(prefix="kernel-", dir="/tmp" if long_path else None) as folder:
        file = str(Path(folder, "kernel.json"))
        write_connection_file(
            file, transport="ipc", ip=str(Path(folder, "k")), key=secrets.token_hex().encode()
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "ipykernel_launcher", "-f", file, "--HistoryManager.enabled=False"],
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
        )
        client = BlockingKernelClient()
        try:
            client.load_connection_file(file)
            client.start_channels(hb=False, stdin=False)
            yield Kernel(process, client, hear, idle)
        finally:
            client.stop_channels()
            process.kill()
            process.wait()


def _environment(folder: str) -> dict[str, str]:
    """Settings of an IPython that somebody uses on this machine do not count in a session."""
    found = {"IPYTHONDIR": str(Path(folder, "ipython")), "PYDEVD_DISABLE_FILE_VALIDATION": "1", **os.environ}
    if found.get("MPLBACKEND", "agg").lower() == "agg":  # as Kaggle sets it: figures would not be shown
        found["MPLBACKEND"] = _INLINE
    return found | {"JPY_PARENT_PID": str(os.getpid())}  # it ends when we do


def _is_end(message: Message) -> bool:
    return message["msg_type"] == "display_data" and _ENDED in message["content"]["data"]


def _is_idle(message: Message) -> bool:
    return bool(message["msg_type"] == "status" and message["content"]["execution_state"] == "idle")
