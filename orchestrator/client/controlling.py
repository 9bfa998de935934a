"""The controller of a home: run here, started in the background, ended.

One process controls a home at a time; the ledger sees to that. What belongs to the whole process stays with
whoever calls: signals, what is printed, and the new process where the config has changed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator.client import health, live, lost
from orchestrator.client.home import VARIABLE, Home
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import controller, tidying
from orchestrator.engine.engine import Watchers
from orchestrator.engine.perform import Backends
from orchestrator.errors import BackendError, InputError, OrchestratorError
from orchestrator.files import open_log
from orchestrator.home import OLDER_CONTROLLER_LOG
from orchestrator.ledger import Ledger, Owner
from orchestrator.unforeseen import Told

START_SECONDS = 60.0
TIDIED_RUNS_MAX = 200  # a start takes no longer for all that there ever was
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 8 * 1024 * 1024
SETTLED_SECONDS = 1.0  # a file that was last written so long ago is not being written


def _never() -> bool:
    return False


def _untold(_record: RunRecord, _event: Event) -> None:
    return None


def _unsaid(_text: str) -> None:
    return None


@dataclass(frozen=True)
class Started:
    """A controller runs in the background: `by_us` False where one ran already. `owner` is None for one that
    found nothing to do and has left again."""

    owner: Owner | None
    by_us: bool


@dataclass(frozen=True)
class Controller:
    """The controller of one home."""

    home: Home
    clock: Clock

    def start(self) -> Started:
        """Starts a controller in the background unless one runs; it leaves when nothing is left to do.

        Raises SpecError or InputError for what is wrong in the config, and BackendError with the end of the
        controller's log where it does not come up.
        """
        Wired.from_home(self.home.path, self.clock)
        with self.home.ledger() as ledger:
            found = ensure(self.home, self.clock, ledger)
            return Started(found or ledger.owner(), by_us=found is None)

    def stop(self) -> Owner | None:
        """Ends the controller and waits until it has left; returns it, None where none runs. Sessions go on.

        Raises InputError where it runs on another machine, and BackendError where it does not leave.
        """
        ledger = self.home.existing_ledger()
        if ledger is None:
            return None
        with ledger:
            owner = ledger.owner()
            if owner is not None:
                _end(owner, ledger, self.home, self.clock)
        return owner

    def run(
        self,
        *,
        until_idle: bool = False,
        stopped: Callable[[], bool] = _never,
        told: Callable[[RunRecord, Event], None] = _untold,
        say: Callable[[str], None] = _unsaid,
    ) -> bool:
        """Controls this home from this process, until `stopped` says so or, with `until_idle`, until nothing
        is left to do. Returns True where it left because the config is another now: to go on, start a new
        process, as threads of this one may still be carrying out what was under way.

        `told` hears of each event once it is journalled, with its run; `say` hears sentences on the
        controller itself. Both are called in this thread, or in `say`'s case in one of the controller's.
        Raises ControllerRunning where another process controls this home, Fenced where one has taken over,
        SpecError or InputError for what is wrong in the config.

        Sessions of the platform `process` run as this user and can read this process's environment
        (docs/what-leaves.md); `orchestrator up` shields its own.
        """
        return _control(self.home, self.clock, until_idle, stopped, told, say)


def _control(
    home: Home,
    clock: Clock,
    until_idle: bool,
    stopped: Callable[[], bool],
    told: Callable[[RunRecord, Event], None],
    say: Callable[[str], None],
) -> bool:
    """Whether it left because the config is another now."""
    wired = Wired.from_home(home.path, clock)
    wake = threading.Event()

    def unreadable(run: str, reason: str) -> None:
        say(f"{run} is left alone: {reason}")

    outdated = False
    changes = ConfigChanges(home, clock, say)
    unforeseen = Told(say)
    with home.ledger() as ledger:
        while not stopped():
            since = clock.now()
            name = "submit" if until_idle else "up"
            with ledger.take_over(name, now=since, home_store=wired.config.home_store) as takeover:
                say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
                for what, runs in lost.lost(ledger, wired.config).items():
                    say(lost.sentence(what, runs))
                writer = live.Writer(wired.folders)
                watchers = Watchers(told, writer.reading, writer.silence, unreadable)
                backends = wired.backends(unforeseen)
                engine = wired.engine(ledger, takeover.fence, backends, wake, watchers)
                note = health.notes(home, clock, since)
                _tidy(backends, ledger, clock, say)
                outdated = controller.run(
                    engine,
                    clock,
                    wake,
                    stopped,
                    leave_when_idle=until_idle,
                    outdated=partial(_after_tick, note, changes),
                    say=say,
                    unforeseen=unforeseen,
                )
            # Who submitted meanwhile saw it alive.
            if outdated or not until_idle or not ledger.anything_left(besides=engine.faulted):
                break
        say(f"controller {os.getpid()} {'starts anew' if outdated else 'leaves'}")
    return outdated


def _tidy(backends: Backends, ledger: Ledger, clock: Clock, say: Callable[[str], None]) -> None:
    """Ends and removes what a crash left: of runs with anything on a platform, and of the last to end."""
    runs = ledger.summaries()
    live = ledger.live()
    there = {record.run for record in live}
    over = [each.run for each in runs if each.phase.final and each.run not in there][:TIDIED_RUNS_MAX]
    records = (*live, *ledger.records(over))
    known = (each.run for each in runs if each.run not in ledger.unreadable)  # of others nothing is touched
    tidying.begin(backends, records, known, clock, say)


def _after_tick(note: Callable[[], None], outdated: Callable[[], bool]) -> bool:
    note()
    return outdated()


class ConfigChanges:
    """Called now and then: whether the config is another than it was, and one that can be read.

    A change that is wrong is told once, and the controller goes on with what it has. A file that is just
    being written is none yet: its first half may be a right config, too, and the whole of it a wrong one.
    """

    def __init__(self, home: Home, clock: Clock, say: Callable[[str], None]) -> None:
        self._home = home
        self._clock = clock
        self._say = say
        self._seen = self._newest = self._stamp()
        self._newest_at = clock.monotonic()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._home.folders.config.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    def __call__(self) -> bool:
        stamp, now = self._stamp(), self._clock.monotonic()
        if stamp != self._newest:
            self._newest, self._newest_at = stamp, now
        if stamp == self._seen or now - self._newest_at < SETTLED_SECONDS:
            return False
        self._seen = stamp
        try:
            Wired.from_home(self._home.path, self._clock).backends()
        except OrchestratorError as error:
            self._say(f"the config has changed and cannot be used, going on with the one before:\n{error}")
            return False
        self._say("the config has changed")
        return True


def ensure(home: Home, clock: Clock, ledger: Ledger) -> Owner | None:
    """Starts a detached controller unless one runs; returns the one found, None where one was started.

    Raises BackendError with the end of its log where it does not come up.
    """
    owner = ledger.owner()
    if owner is not None:
        return owner
    log = home.folders.controller_log
    start = _trimmed_size(log, home.path / OLDER_CONTROLLER_LOG)
    with os.fdopen(open_log(log), "ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator", "up", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home.path,
            env={**os.environ, VARIABLE: str(home.path)},
        )
    _wait(clock, lambda: ledger.owner() is not None or child.poll() is not None, START_SECONDS)
    if ledger.owner() is not None or child.poll() == 0:  # or: another submit's controller was faster
        child.returncode = child.returncode or 0  # it outlives this process, and is not waited for
        return None
    with log.open("rb") as said:
        said.seek(start)
        tail = "\n".join(said.read().decode(errors="replace").splitlines()[-10:])
    raise BackendError(f"the controller did not start; {log} says:\n{tail}", backend="controller")


def _end(owner: Owner, ledger: Ledger, home: Home, clock: Clock) -> None:
    if owner.host != socket.gethostname():
        raise InputError(
            f"the controller runs on {owner.host} (process {owner.pid}): run `orchestrator down` there"
        )
    if not _is_ours(owner.pid):
        return  # it has just died, and its number may be somebody else's by now
    try:
        os.kill(owner.pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    if not _wait(clock, lambda: ledger.owner() != owner, STOP_SECONDS):
        raise BackendError(
            f"the controller (process {owner.pid}) does not leave; see {home.folders.controller_log}; it may "
            f"be killed without harm: kill -9 {owner.pid}",
            backend="controller",
        )


def _is_ours(pid: int) -> bool:
    try:
        return b"orchestrator" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return not Path("/proc/self").exists()  # a system without /proc cannot tell
    except OSError:
        return True


def _wait(clock: Clock, condition: Callable[[], bool], seconds: float) -> bool:
    never = threading.Event()
    end = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > end:
            return False
        clock.wait(never, POLL_SECONDS)
    return True


def _trimmed_size(log: Path, older: Path) -> int:
    """Where new lines will begin; one earlier log is kept."""
    if log.is_symlink() or not log.exists():
        return 0
    if log.stat().st_size > LOG_BYTES_MAX:
        log.replace(older)
        return 0
    return log.stat().st_size
