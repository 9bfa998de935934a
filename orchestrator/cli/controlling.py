"""`up` and `down`, and the detached controller that `submit` starts when none runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

from orchestrator import controller
from orchestrator.cli import live
from orchestrator.cli.wiring import Say, Wired
from orchestrator.clock import utc_text
from orchestrator.core.run import Event, RunRecord
from orchestrator.engine import Watchers
from orchestrator.errors import BackendError, InputError, OrchestratorError
from orchestrator.ledger import Ledger, Owner

START_SECONDS = 20.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 8 * 1024 * 1024


def up(wired: Wired, *, detached: bool, say: Say) -> None:
    """Runs the controller in this process until it is told to stop; a detached one leaves when nothing is
    left to do. Raises ControllerRunning where one lives."""
    stopped, wake = threading.Event(), threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopped.set()
        wake.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    with wired.ledger() as ledger:
        while not stopped.is_set():
            with ledger.take_over("up" if not detached else "submit", now=wired.clock.now()) as takeover:
                say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
                watchers = Watchers(event=_teller(wired, say), reading=live.writer(wired.folders))
                engine = wired.engine(ledger, takeover.fence, wake, watchers)
                controller.run(engine, wired.clock, wake, stopped, leave_when_idle=detached, say=say)
            if not detached or not ledger.anything_left():  # who submitted meanwhile saw it alive
                break
    say(f"controller {os.getpid()} leaves")


def _teller(wired: Wired, say: Say) -> live.EventWatcher:
    def tell(record: RunRecord, event: Event) -> None:
        say(f"{utc_text(wired.clock.now())} {record.run} {live.event_text(event)}")

    return tell


def ensure(wired: Wired, ledger: Ledger) -> Owner | None:
    """Starts a detached controller unless one runs; returns the one found, None where one was started.

    Raises BackendError with the end of its log where it does not come up.
    """
    owner = ledger.owner()
    if owner is not None:
        return owner
    log = log_file(wired)
    _trim(log)
    with log.open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", "up", "--detached"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=wired.config.home,
            env={**os.environ, "ORCHESTRATOR_HOME": str(wired.config.home)},
        )
    end = wired.clock.monotonic() + START_SECONDS
    while wired.clock.monotonic() < end:
        if ledger.owner() is not None:
            return None
        if child.poll() not in (None, 0):
            break
        wired.clock.wait(threading.Event(), POLL_SECONDS)
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
    raise BackendError(f"the controller did not start; the end of {log}:\n{tail}")


def down(wired: Wired, ledger: Ledger) -> Owner | None:
    """Ends the controller, not the sessions; returns who it was, None where none ran."""
    owner = ledger.owner()
    if owner is None:
        return None
    if owner.host != socket.gethostname():
        raise InputError(
            f"the controller runs on {owner.host} (pid {owner.pid}): run `orchestrator down` there"
        )
    try:
        os.kill(owner.pid, signal.SIGTERM)
    except ProcessLookupError:
        return owner
    except PermissionError as error:
        raise InputError(f"the controller (pid {owner.pid}) belongs to another user") from error
    end = wired.clock.monotonic() + STOP_SECONDS
    while ledger.owner() == owner:
        if wired.clock.monotonic() > end:
            raise OrchestratorError(f"the controller (pid {owner.pid}) does not leave; see {log_file(wired)}")
        wired.clock.wait(threading.Event(), POLL_SECONDS)
    return owner


def log_file(wired: Wired) -> Path:
    return wired.config.home / "controller.log"


def _trim(log: Path) -> None:
    """One earlier log is kept."""
    if log.exists() and log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
