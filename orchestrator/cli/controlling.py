"""`up` and `down`, and the detached controller that is started when none runs."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from orchestrator import config as configuration
from orchestrator.cli import health, shield, story
from orchestrator.cli.call import Call, Exit
from orchestrator.client import live, lost
from orchestrator.client.home import VARIABLE, Home
from orchestrator.client.wiring import Wired
from orchestrator.clock import Clock, utc_text
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import controller, tidying
from orchestrator.engine.engine import Watchers
from orchestrator.engine.perform import Backends
from orchestrator.errors import BackendError, InputError, OrchestratorError
from orchestrator.files import open_log
from orchestrator.ledger import Ledger, Owner
from orchestrator.unforeseen import Told

START_SECONDS = 60.0
TIDIED_RUNS_MAX = 200  # a start takes no longer for all that there ever was
STOP_SECONDS = 30.0
POLL_SECONDS = 0.05
LOG_BYTES_MAX = 8 * 1024 * 1024
SETTLED_SECONDS = 1.0  # a file that was last written so long ago is not being written


def up(call: Call) -> int:
    """Runs the controller here until it is told to stop, or sees that one runs in the background."""
    if not call.options.detach:
        shield.up()
    wired = call.wired()
    if call.options.detach:
        with call.home.ledger() as ledger:
            found = ensure(call.home, call.clock, ledger)
            owner = found or ledger.owner()
        call.out.document({"started": found is None, "controller": owner})
        call.out.say(
            f"a controller runs already: {owner}" if found else "a controller runs in the background"
        )
        return Exit.OK
    outdated = _control(call, wired, leave_when_idle=call.options.until_idle)
    sys.stdout.flush()
    if outdated:  # a new process, so that nothing this one has under way runs beside the next controller
        os.execv(sys.executable, [sys.executable, "-P", "-m", "orchestrator", *sys.argv[1:]])
    # What workers are doing right now is idempotent and is decided again by the next controller.
    os._exit(Exit.OK)


def _control(call: Call, wired: Wired, *, leave_when_idle: bool) -> bool:
    """Whether it left because the config is another now."""
    wake = threading.Event()
    stop_asked = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        """Sets no Event: its lock may be held by the very code that the signal interrupts."""
        nonlocal stop_asked
        stop_asked = True

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, stop)
    name = "submit" if leave_when_idle else "up"

    def write(line: dict[str, object], text: str) -> None:
        with contextlib.suppress(OSError):  # a log that cannot be written ends no controller
            call.out.record(line)
            call.out.say(text.replace("\n", "\n  "))  # so that no session's text passes for a line of ours
            sys.stdout.flush()

    def say(text: str) -> None:
        now = wired.clock.now()
        write({"at": now, "text": text}, f"{utc_text(now)} {text}")

    def told(record: RunRecord, event: Event) -> None:
        now = wired.clock.now()
        text = f"{utc_text(now)} {record.run} {story.event_text(event)}"
        write({"at": now, "run": record.run, "event": event}, text)

    def unreadable(run: str, reason: str) -> None:
        say(f"{run} is left alone: {reason}")

    outdated = False
    changes = ConfigChanges(call.home, wired.clock, say)
    unforeseen = Told(say)
    with call.home.ledger() as ledger:
        while not stop_asked:
            since = wired.clock.now()
            with ledger.take_over(name, now=since, home_store=wired.config.home_store) as takeover:
                say(f"controller {os.getpid()} has taken over (number {takeover.fence})")
                for what, runs in lost.lost(ledger, wired.config).items():
                    say(lost.sentence(what, runs))
                writer = live.Writer(wired.folders)
                watchers = Watchers(told, writer.reading, writer.silence, unreadable)
                backends = wired.backends(unforeseen)
                engine = wired.engine(ledger, takeover.fence, backends, wake, watchers)
                note = health.notes(call.home, wired.clock, since)
                _tidy(backends, ledger, wired.clock, say)
                outdated = controller.run(
                    engine,
                    wired.clock,
                    wake,
                    lambda: stop_asked,
                    leave_when_idle=leave_when_idle,
                    outdated=partial(_after_tick, note, changes),
                    say=say,
                    unforeseen=unforeseen,
                )
            # Who submitted meanwhile saw it alive.
            if outdated or not leave_when_idle or not ledger.anything_left(besides=engine.faulted):
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
            found = (self._home.path / configuration.FILE).stat()
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
    log = home.controller_log
    start = _trimmed_size(log)
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


def down(call: Call) -> int:
    """Ends the controller, not the sessions."""
    ledger = call.home.existing_ledger()
    owner = None
    if ledger is not None:
        with ledger:
            owner = ledger.owner()
            if owner is not None:
                _end(owner, ledger, call)
    call.out.document({"ended": owner})
    if owner is None:
        call.out.say("no controller runs")
    else:
        call.out.say(f"the controller (process {owner.pid}) has left; sessions go on by themselves")
    return Exit.OK


def _end(owner: Owner, ledger: Ledger, call: Call) -> None:
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
    if not _wait(call.clock, lambda: ledger.owner() != owner, STOP_SECONDS):
        raise BackendError(
            f"the controller (process {owner.pid}) does not leave; see {call.home.controller_log}; it may be "
            f"killed without harm: kill -9 {owner.pid}",
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


def _trimmed_size(log: Path) -> int:
    """Where new lines will begin; one earlier log is kept."""
    if log.is_symlink() or not log.exists():
        return 0
    if log.stat().st_size > LOG_BYTES_MAX:
        log.replace(log.with_suffix(".log.1"))
        return 0
    return log.stat().st_size
