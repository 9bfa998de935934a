"""The controller of a home: runs it here, starts it in the background, or stops it.

One process controls a home at a time; the ledger makes sure of that. The caller handles what concerns the
whole process: signals, output, and the new process after the config has changed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.client import standing_by
from orchestrator.client.config_changes import ConfigChanges
from orchestrator.client.controller_log import Entry, entry_of
from orchestrator.client.home import VARIABLE, Home
from orchestrator.client.in_control import InControl
from orchestrator.client.owning import POLL_SECONDS, is_ours, running
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.errors import BackendError, InputError
from orchestrator.files import open_log, own_trouble
from orchestrator.ledger import Ledger, Owner, Standby
from orchestrator.processes import SESSION

START_SECONDS = 60.0
STOP_SECONDS = 30.0


def _never() -> bool:
    return False


def _untold(_record: RunRecord, _event: Event) -> None:
    return None


def _unsaid(_text: str) -> None:
    return None


@dataclass(frozen=True)
class Started:
    """A controller runs in the background. `by_us` is False if one was already running. `owner` is None if
    it found nothing to do and has already left."""

    owner: Owner | None
    by_us: bool


@dataclass(frozen=True)
class Stopped:
    """What a stop did: the controller and the `standbys` of this machine that it ended. `goes_on`: the
    controller of another machine. `waiting`: standbys of other machines, one of which takes over now."""

    owner: Owner | None = None
    standbys: tuple[Standby, ...] = ()
    goes_on: Owner | None = None
    waiting: tuple[Standby, ...] = ()


@dataclass(frozen=True)
class Controller:
    """The controller of one home."""

    home: Home
    clock: Clock

    def start(self) -> Started:
        """Starts a controller in the background unless one runs. It leaves when nothing is left to do.

        Raises SpecError or InputError for a wrong config, and BackendError with the end of the controller's
        log if it does not start.
        """
        Wired.from_home(self.home.path, self.clock)
        with self.home.ledger() as ledger:
            found = ensure(self.home, self.clock, ledger)
            return Started(found or ledger.owner(), by_us=found is None)

    def stop(self) -> Owner | None:
        """Stops the controller and waits until it has left, and first every standby of this machine. Returns
        the controller, or None if none runs. Sessions continue.

        Raises InputError if it runs on another machine, and BackendError if it does not leave.
        """
        stopped = self.end()
        if stopped.goes_on is not None and not stopped.standbys:
            raise InputError(elsewhere(stopped.goes_on))
        return stopped.owner

    def end(self) -> Stopped:
        """The same, and tells all of it. A controller on another machine goes on."""
        ledger = self.home.existing_ledger()
        if ledger is None:
            return Stopped()
        with ledger:
            here = socket.gethostname()
            there = [each for each in ledger.standbys() if each.is_on(here)]
            mine = tuple(each for each in there if _end_standby(each, ledger, self.home, self.clock))
            owner = running(ledger, self.clock)
            if owner is not None and owner.pid and owner.host != here:
                return Stopped(standbys=mine, goes_on=owner)
            if owner is not None:
                _end(owner, ledger, self.home, self.clock)
            return Stopped(owner, mine, waiting=ledger.standbys())

    def run(
        self,
        *,
        until_idle: bool = False,
        standby: bool = False,
        stopped: Callable[[], bool] = _never,
        told: Callable[[RunRecord, Event], None] = _untold,
        say: Callable[[str], None] = _unsaid,
        warn: Callable[[str], None] | None = None,
    ) -> bool:
        """Controls this home from this process until `stopped` returns True or, with `until_idle`, until
        nothing is left to do. Returns True if it left because the config changed or, with `standby`, because
        another process has taken over. To continue then, start a new process, because threads of this one may
        still be at work.

        `standby`: if another process controls the ledger, waits until it is gone, and for a server that does
        not answer yet.

        `told` is called with each event and its run once the event is journalled. `say` is called with
        sentences about the controller itself, and `warn` (default: `say`) with those about something that
        went wrong. All are called in this thread; `say` and `warn` also in threads of the controller. Without
        `standby`, raises ControllerRunning if another process controls this home, and Fenced if another
        process has taken over. Raises SpecError or InputError for a wrong config.

        Sessions of the platform `process` run as this user and can read this process's environment
        (docs/what-leaves.md). `orchestrator up` protects its own.
        """
        assert not (until_idle and standby)
        self.home.tighten()
        wired = Wired.from_home(self.home.path, self.clock)
        caution = warn or say
        changes = ConfigChanges(self.home, wired.config, self.clock, say, caution)
        opened = self.home.ledger() if not standby else standing_by.opened(
            self.home.ledger, self.clock, lambda: stopped() or changes(), say
        )  # fmt: skip
        if opened is None:
            return not stopped()
        with opened as ledger:
            return InControl(self.home, self.clock, wired, ledger, changes, stopped, told, say, caution).run(
                until_idle=until_idle, standby=standby
            )

    def log(
        self, *, tail: int | None = None, follow: bool = False, stop: Callable[[], bool] = _never
    ) -> Iterator[Entry]:
        """The newest `tail` entries of the controller's log (None: all that are kept), oldest first. With
        `follow` it waits for more, until `stop` returns True between two looks."""
        from orchestrator.client import reading_log

        return reading_log.entries(self.home.path, self.clock, tail=tail, follow=follow, stop=stop)

    def mask(self) -> Callable[[str], str]:
        """Removes the secrets that a controller of this home can read from a text, for its log.

        Raises SpecError or InputError for a wrong config.
        """
        from orchestrator.client import unsaid

        return unsaid.mask(configuration.load(self.home.path)).text


def ensure(home: Home, clock: Clock, ledger: Ledger) -> Owner | None:
    """Starts a detached controller unless one runs. Returns the running one, or None if it started one.

    Raises BackendError with the end of its log if it does not start.
    """
    owner = running(ledger, clock)
    if owner is not None:
        return owner
    log = home.folders.controller_log
    if wrong := own_trouble(log):
        raise InputError(f"{log} {wrong}: move it away, and the controller begins a new one")
    # A training may submit. Its controller is no part of that session, to be killed or to hold its GPU.
    variables = {name: value for name, value in os.environ.items() if name != SESSION}
    with os.fdopen(open_log(log), "ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator", "up", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home.path,
            env={**variables, VARIABLE: str(home.path)},
        )
    _wait(clock, lambda: _has_taken_over(ledger, child.pid) or child.poll() is not None, START_SECONDS)
    owner, code = ledger.owner(), child.poll()
    child.returncode = code or 0  # it outlives this process, so nobody waits for it
    if owner is not None or code == 0:
        faster = owner is not None and owner.pid not in (0, child.pid)  # another submit's controller
        return owner if faster else None
    raise BackendError(
        f"the controller did not start; {log} says:\n{_tail(log, start)}", backend="controller"
    )


def _tail(log: Path, start: int) -> str:
    """What the log says from there on, or from its beginning if it was rotated meanwhile."""
    with log.open("rb") as said:
        said.seek(start if start <= os.fstat(said.fileno()).st_size else 0)
        lines = said.read().decode(errors="replace").splitlines()
    return "\n".join(entry_of(line).text for line in lines[-10:])


def _has_taken_over(ledger: Ledger, pid: int) -> bool:
    """Whether the ledger names this process: until then it names whoever controlled before."""
    owner = ledger.owner()
    return owner is not None and owner.pid == pid


def _end(owner: Owner, ledger: Ledger, home: Home, clock: Clock) -> None:
    if not owner.pid:
        raise BackendError("a controller is just starting: try again in a moment", backend="controller")
    if not is_ours(owner.pid, unknown=True):
        return  # it has just died, and another process may have its number by now
    try:
        os.kill(owner.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    if not _wait(clock, lambda: ledger.owner() != owner, STOP_SECONDS):
        raise BackendError(
            f"the controller (process {owner.pid}) does not stop; see {home.folders.controller_log}. You can "
            f"kill it without harm: kill -9 {owner.pid}",
            backend="controller",
        )


def _end_standby(standby: Standby, ledger: Ledger, home: Home, clock: Clock) -> bool:
    """False if it is another machine's after all, such as a container with this one's name."""
    if not is_ours(standby.pid, unknown=True):
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(standby.pid, signal.SIGTERM)

    def gone() -> bool:
        return all(each.pid != standby.pid for each in ledger.standbys() if each.is_on(socket.gethostname()))

    if not _wait(clock, gone, STOP_SECONDS):
        raise BackendError(
            f"the standby (process {standby.pid}) does not stop; see {home.folders.controller_log}. You can "
            f"kill it without harm: kill -9 {standby.pid}",
            backend="controller",
        )
    return True


def elsewhere(owner: Owner) -> str:
    """What to say if the controller to stop is another machine's."""
    return f"the controller runs on {owner.host} (process {owner.pid}): run `orchestrator down` there"


def _wait(clock: Clock, condition: Callable[[], bool], seconds: float) -> bool:
    never = threading.Event()
    end = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > end:
            return False
        clock.wait(never, POLL_SECONDS)
    return True
