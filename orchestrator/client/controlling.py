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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ParamSpec

from orchestrator.client import foreseen, health, likeness, live, lost, notifying, standing_by
from orchestrator.client.home import VARIABLE, Home
from orchestrator.client.owning import POLL_SECONDS, is_ours, running
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import controller, depositing, sweeping, tidying
from orchestrator.engine.depositing import Depositor
from orchestrator.engine.engine import Watchers
from orchestrator.engine.foreseeing import Foreseer
from orchestrator.engine.keeping import Keeper
from orchestrator.engine.perform import Backends
from orchestrator.errors import BackendError, Fenced, InputError, OrchestratorError
from orchestrator.files import open_log
from orchestrator.home import OLDER_CONTROLLER_LOG
from orchestrator.ledger import Ledger, Owner, Standby, Takeover
from orchestrator.platforms import catalog
from orchestrator.unforeseen import Reporter, Unforeseen

START_SECONDS = 60.0
TIDIED_RUNS_MAX = 200  # so that a start does not take longer with every run there ever was
STOP_SECONDS = 30.0
LOG_BYTES_MAX = 8 * 1024 * 1024
SETTLED_SECONDS = 1.0  # a file that has not changed for this long is complete


Told = ParamSpec("Told")


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
    ) -> bool:
        """Controls this home from this process until `stopped` returns True or, with `until_idle`, until
        nothing is left to do. Returns True if it left because the config changed or, with `standby`, because
        another process has taken over. To continue then, start a new process, because threads of this one may
        still be at work.

        `standby`: if another process controls the ledger, waits until it is gone.

        `told` is called with each event and its run once the event is journalled. `say` is called with
        sentences about the controller itself. Both are called in this thread; `say` also in threads of the
        controller. Without `standby`, raises ControllerRunning if another process controls this home, and
        Fenced if another process has taken over. Raises SpecError or InputError for a wrong config.

        Sessions of the platform `process` run as this user and can read this process's environment
        (docs/what-leaves.md). `orchestrator up` protects its own.
        """
        assert not (until_idle and standby)
        self.home.tighten()
        wired = Wired.from_home(self.home.path, self.clock)
        changes = ConfigChanges(self.home, self.clock, say)
        with self.home.ledger() as ledger:
            return _Controlling(self.home, self.clock, wired, ledger, changes, stopped, told, say).run(
                until_idle=until_idle, standby=standby
            )


@dataclass(frozen=True)
class _Controlling:
    """One process's control of one ledger, with one reading of the config."""

    home: Home
    clock: Clock
    wired: Wired
    ledger: Ledger
    changes: ConfigChanges
    stopped: Callable[[], bool]
    told: Callable[[RunRecord, Event], None]
    say: Callable[[str], None]

    def run(self, *, until_idle: bool, standby: bool) -> bool:
        """Returns whether a new process should continue."""
        unforeseen = Reporter(self.say)
        if standby:  # in a thread, because the home store may not answer
            threading.Thread(target=self._tell_doubts, args=(unforeseen,), name="doubts", daemon=True).start()
        if not self.ledger.is_shared:
            return self._run(until_idle, standby)
        likeness.settle(self.ledger, self.wired, self.say)
        bound = {each.name: self.wired.platform(each) for each in self.wired.config.platforms
                 if each.type in catalog.BOUND}  # fmt: skip
        with tidying.ending_closed(bound, self.ledger, self.clock, self.say, unforeseen):
            return self._run(until_idle, standby)

    def _tell_doubts(self, unforeseen: Unforeseen) -> None:
        try:
            for doubt in likeness.doubts(self.ledger, self.wired):
                self.say(f"before this machine can take over: {doubt}")
        except (OrchestratorError, OSError) as error:
            self.say(f"whether this machine can take over is unknown: {error}")
        except Exception as error:  # noqa: BLE001 the barrier: told, and it stands by all the same
            unforeseen("looking at what this machine lacks", error)

    def _run(self, until_idle: bool, standby: bool) -> bool:
        outdated = False
        while not self.stopped():
            takeover = self._turn("submit" if until_idle else "up", standby)
            if takeover is None:
                outdated = not self.stopped()
                break
            try:
                with takeover:
                    outdated, faulted = self._controlled(takeover, until_idle)
            except Fenced as error:
                if not standby:
                    raise Fenced(f"{error}; `orchestrator up --standby` waits for its turn") from error
                self.say(f"{error}; this process starts again as a standby")
                return not self.stopped()
            # A submit or wish in the meantime saw this controller alive and started none. After a change of
            # the config, a run that was held may be able to go on.
            left = self.changes.unread or self.ledger.anything_left(besides=faulted)
            if outdated or not until_idle or not left:
                break
        self.say(f"controller {os.getpid()} {'restarts' if outdated else 'leaves'}")
        return outdated

    def _turn(self, name: str, standby: bool) -> Takeover | None:
        """Control of the ledger. None, for a standby only: it was stopped, or the config changed."""
        store = self.wired.config.home_store
        if not standby:
            return self.ledger.take_over(name, now=self.clock.now(), home_store=store)
        return standing_by.turn(
            self.ledger, self.clock, store, lambda: self.stopped() or self.changes(), self.say
        )

    def _controlled(self, takeover: Takeover, until_idle: bool) -> tuple[bool, frozenset[str]]:
        """Decides until it is stopped. Returns whether a new process should continue, and the runs that are
        held with something on a platform."""
        clock, wired, ledger, say = self.clock, self.wired, self.ledger, self.say
        wake, unforeseen = threading.Event(), Reporter(say)

        def unreadable(run: str, reason: str) -> None:
            say(f"{run} is left alone: {reason}")

        say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
        keeper = Keeper(takeover, clock, say, wake)
        with keeper.at_work():
            if ledger.is_shared:
                likeness.tell(takeover, likeness.settle(ledger, wired, say))
            for what, runs in lost.lost(ledger, wired.config).items():
                say(lost.sentence(what, runs))
            for schedule, what in lost.schedules(ledger, wired.config).items():
                say(lost.schedule_sentence(schedule, what))
            writer = live.Writer(wired.folders)
            backends = replace(wired.backends(unforeseen), confirm=takeover.confirm, shared=ledger.is_shared)
            depositor = Depositor(backends, clock, say)
            notifier = notifying.notifier(wired, ledger, say, unforeseen)
            foreseer = Foreseer(clock, ledger.measurements, foreseen.Writer(wired.folders), unforeseen)
            watchers = Watchers(
                _all(depositor.told, foreseer.told, self.told), _all(writer.reading, foreseer.reading),
                writer.silence, unreadable, notifier.surveyed, schedule=say,
            )  # fmt: skip
            engine = wired.engine(ledger, takeover.fence, backends, wake, watchers)
            note = health.notes(self.home, clock, takeover.owner.since)
            _tidy(backends, ledger, clock, say)
            with (
                depositor.at_work(depositing.untold(ledger, wired.folders)),
                sweeping.at_work(backends, clock, say),
                notifier.at_work(),
                foreseer.at_work(),
            ):
                outdated = controller.run(
                    engine,
                    clock,
                    wake,
                    self.stopped,
                    leave_when_idle=until_idle,
                    outdated=partial(
                        _after_tick,
                        (keeper.ticked, note, partial(foreseer.after_tick, engine.scene)),
                        self.changes,
                    ),
                    awaits=notifier.pending,
                    say=say,
                    unforeseen=unforeseen,
                )
        return outdated, engine.faulted


def _all(*told: Callable[Told, None]) -> Callable[Told, None]:
    def tell(*args: Told.args, **kwargs: Told.kwargs) -> None:
        for each in told:
            each(*args, **kwargs)

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


def _after_tick(doing: Iterable[Callable[[], None]], outdated: Callable[[], bool]) -> bool:
    for each in doing:
        each()
    return outdated()


class ConfigChanges:
    """Returns, when called, whether the config has changed and can be used.

    A wrong config is reported once, and the controller continues with the old one. A file that is still being
    written does not count yet, because half of a file may be a valid config, too.
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
            self._say(f"the config has changed and cannot be used; continuing with the old one:\n{error}")
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
    _wait(clock, lambda: _has_taken_over(ledger, child.pid) or child.poll() is not None, START_SECONDS)
    owner, code = ledger.owner(), child.poll()
    child.returncode = code or 0  # it outlives this process, so nobody waits for it
    if owner is not None or code == 0:
        faster = owner is not None and owner.pid not in (0, child.pid)  # another submit's controller
        return owner if faster else None
    with log.open("rb") as said:
        said.seek(start)
        tail = "\n".join(said.read().decode(errors="replace").splitlines()[-10:])
    raise BackendError(f"the controller did not start; {log} says:\n{tail}", backend="controller")


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


def _trimmed_size(log: Path, older: Path) -> int:
    """Where new lines will begin. One older log is kept."""
    if log.is_symlink() or not log.exists():
        return 0
    if log.stat().st_size > LOG_BYTES_MAX:
        log.replace(older)
        return 0
    return log.stat().st_size
