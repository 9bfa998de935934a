"""The controller of a home: runs it here, starts it in the background, or stops it.

One process controls a home at a time; the ledger makes sure of that. The caller handles what concerns the
whole process: signals, output, and the new process after the config has changed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.client import health, live, lost, metrics
from orchestrator.client.controller_log import Entry, entry_of
from orchestrator.client.home import VARIABLE, Home
from orchestrator.client.owning import POLL_SECONDS, is_ours, running
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import controller, depositing, sweeping, tidying
from orchestrator.engine.depositing import Depositor
from orchestrator.engine.engine import Watchers
from orchestrator.engine.perform import Backends
from orchestrator.errors import BackendError, InputError, OrchestratorError
from orchestrator.files import open_log
from orchestrator.ledger import Ledger, Owner
from orchestrator.unforeseen import Reporter

START_SECONDS = 60.0
TIDIED_RUNS_MAX = 200  # so that a start does not take longer with every run there ever was
STOP_SECONDS = 30.0
SETTLED_SECONDS = 1.0  # a file that has not changed for this long is complete


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
        """Stops the controller and waits until it has left. Returns it, or None if none runs. Sessions
        continue.

        Raises InputError if it runs on another machine, and BackendError if it does not leave.
        """
        ledger = self.home.existing_ledger()
        if ledger is None:
            return None
        with ledger:
            owner = running(ledger, self.clock)
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
        warn: Callable[[str], None] | None = None,
    ) -> bool:
        """Controls this home from this process until `stopped` returns True or, with `until_idle`, until
        nothing is left to do. Returns True if it left because the config changed. To continue then, start a
        new process, because threads of this one may still be at work.

        `told` is called with each event and its run once the event is journalled. `say` is called with
        sentences about the controller itself, and `warn` (default: `say`) with those about something that
        went wrong. All are called in this thread; `say` and `warn` also in threads of the controller. Raises
        ControllerRunning if another process controls this home, Fenced if another process has taken over, and
        SpecError or InputError for a wrong config.

        Sessions of the platform `process` run as this user and can read this process's environment
        (docs/what-leaves.md). `orchestrator up` protects its own.
        """
        return _control(self.home, self.clock, until_idle, stopped, told, say, warn or say)

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


def _control(
    home: Home,
    clock: Clock,
    until_idle: bool,
    stopped: Callable[[], bool],
    told: Callable[[RunRecord, Event], None],
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> bool:
    """Returns whether it left because the config changed."""
    home.tighten()
    wired = Wired.from_home(home.path, clock)
    wake = threading.Event()

    def unreadable(run: str, reason: str) -> None:
        warn(f"{run} is left alone: {reason}")

    outdated = False
    changes = ConfigChanges(home, clock, say, warn)
    unforeseen = Reporter(warn)
    with home.ledger() as ledger:
        while not stopped():
            since = clock.now()
            name = "submit" if until_idle else "up"
            with ledger.take_over(name, now=since, home_store=wired.config.home_store) as takeover:
                say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
                for what, runs in lost.lost(ledger, wired.config).items():
                    warn(lost.sentence(what, runs))
                writer = live.Writer(wired.folders)
                backends = wired.backends(unforeseen)
                depositor = Depositor(backends, clock, warn)
                measured = metrics.of(wired.config, ledger, clock, warn, lambda: unforeseen.total)
                watchers = Watchers(
                    _all(told, depositor.told, measured.told), writer.reading, writer.silence, unreadable
                )
                engine = wired.engine(ledger, takeover.fence, backends, wake, watchers)
                note = health.notes(home, clock, since)
                _tidy(backends, ledger, clock, say)
                with (
                    depositor.at_work(depositing.untold(ledger, wired.folders)),
                    sweeping.at_work(backends, clock, say),
                    measured.at_work(),
                ):
                    outdated = controller.run(
                        engine,
                        clock,
                        wake,
                        stopped,
                        leave_when_idle=until_idle,
                        outdated=partial(_after_tick, note, changes),
                        say=say,
                        warn=warn,
                        ticked=partial(measured.ticked, engine),
                        unforeseen=unforeseen,
                    )
            # A submit or wish in the meantime saw this controller alive and started none. After a change of
            # the config, a run that was held may be able to go on.
            left = changes.unread or ledger.anything_left(besides=engine.faulted)
            if outdated or not until_idle or not left:
                break
        say(f"controller {os.getpid()} {'restarts' if outdated else 'leaves'}")
    return outdated


Told = Callable[[RunRecord, Event], None]


def _all(told: Told, *others: Told) -> Told:
    """Tells the others first: they may not raise."""

    def tell(record: RunRecord, event: Event) -> None:
        for other in others:
            other(record, event)
        told(record, event)

    return tell


def _tidy(backends: Backends, ledger: Ledger, clock: Clock, say: Callable[[str], None]) -> None:
    """Ends and removes what a crash left of the runs on platforms, and of the runs that ended last."""
    runs = ledger.summaries()
    live = ledger.live()
    there = {record.run for record in live}
    over = [each.run for each in runs if each.phase.final and each.run not in there][:TIDIED_RUNS_MAX]
    records = (*live, *ledger.records(over))
    known = (each.run for each in runs if each.run not in ledger.unreadable)  # others are left alone
    tidying.begin(backends, records, known, clock, say)


def _after_tick(note: Callable[[], None], outdated: Callable[[], bool]) -> bool:
    note()
    return outdated()


class ConfigChanges:
    """Returns, when called, whether the config has changed and can be used.

    A wrong config is reported once, and the controller continues with the old one. A file that is still being
    written does not count yet, because half of a file may be a valid config, too.
    """

    def __init__(
        self,
        home: Home,
        clock: Clock,
        say: Callable[[str], None],
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._home = home
        self._clock = clock
        self._say = say
        self._warn = warn or say
        self._seen = self._newest = self._stamp()
        self._newest_at = clock.monotonic()

    def _stamp(self) -> tuple[int, int] | None:
        try:
            found = self._home.folders.config.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size

    @property
    def unread(self) -> bool:
        """Whether the file has changed and the change has not been looked at yet."""
        return self._stamp() != self._seen

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
            self._warn(f"the config has changed and cannot be used; continuing with the old one:\n{error}")
            return False
        self._say("the config has changed")
        return True


def ensure(home: Home, clock: Clock, ledger: Ledger) -> Owner | None:
    """Starts a detached controller unless one runs. Returns the running one, or None if it started one.

    Raises BackendError with the end of its log if it does not start.
    """
    owner = running(ledger, clock)
    if owner is not None:
        return owner
    log = home.folders.controller_log
    with os.fdopen(open_log(log), "ab") as output:
        start = output.tell()
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator", "up", "--until-idle"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home.path,
            env={**os.environ, VARIABLE: str(home.path)},
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
    if owner.host != socket.gethostname():
        raise InputError(
            f"the controller runs on {owner.host} (process {owner.pid}): run `orchestrator down` there"
        )
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


def _wait(clock: Clock, condition: Callable[[], bool], seconds: float) -> bool:
    never = threading.Event()
    end = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > end:
            return False
        clock.wait(never, POLL_SECONDS)
    return True
