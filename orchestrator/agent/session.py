"""One session as a list of steps: claim, restore, train until the end or the wall, commit, report the result.

`plan` decides when to save and to stop, and `classify` what the end means. Must never know a platform or a
store.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from orchestrator import interpreters
from orchestrator.agent import environments, gathering, keeping, machine, plan, probe, restore
from orchestrator.agent.classify import Stop
from orchestrator.agent.commanding import executed
from orchestrator.agent.companion import Companion, key_in, secrets_in
from orchestrator.agent.folder import AlreadyClaimed, Folder, alone, claim
from orchestrator.agent.guardian import MARK, Guardian
from orchestrator.agent.leader import Leader, environment
from orchestrator.agent.log import Log
from orchestrator.agent.monitor import Monitor
from orchestrator.agent.report import Clocks, Report
from orchestrator.agent.requirements import Failed, Installation, Site
from orchestrator.agent.settings import Settings
from orchestrator.clock import Clock, SystemClock
from orchestrator.core.job import Kind
from orchestrator.core.mask import Mask
from orchestrator.core.order import Order, Outcome, Result
from orchestrator.core.own_accelerators import row_of
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import NO_ROOM, Lack, lacks_inodes, remove_tree, shortage
from orchestrator.interpreters import Interpreter
from orchestrator.session.layout import LOG

ALREADY_CLAIMED = 4
_STARTED = "ORCHESTRATOR_STARTED_ELAPSED"
_LOCK = "ORCHESTRATOR_LOCK_FD"
_NEVER = threading.Event()
T = TypeVar("T")


class Over(Exception):
    """The session ends before the command starts. Carries the outcome, the reason, and the end of the output
    that led to it. `hopeless`: another session here would end in the same way."""

    def __init__(self, outcome: Outcome, message: str, tail: str = "", *, hopeless: bool = False) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.tail = tail
        self.hopeless = hopeless


def live(folder: Folder, settings: Settings) -> int:
    """Runs the session of this folder until its result. Returns the agent's exit code."""
    incarnation = secrets.token_hex(8)
    session = Session(folder, incarnation, SystemClock(), settings)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, session.ask_to_stop)
    try:
        with alone(folder, os.environ.get(_LOCK)):
            claim(folder, incarnation)
            return session.live()
    except AlreadyClaimed as error:
        sys.stderr.write(f"{error}\n")
        return ALREADY_CLAIMED


class Session:
    """One incarnation of the session, in the main thread. The log pump and the committer have their own
    threads."""

    def __init__(self, folder: Folder, incarnation: str, clock: Clock, settings: Settings) -> None:
        self.folder = folder
        self.incarnation = incarnation
        self.clock = clock
        self.settings = settings
        self.started = _started(clock)
        self.stop_signal = False
        self._installing = environments.given(os.environ)
        self.monitor: Monitor | None = None
        self.uplink: Companion | None = None
        self.log = Log(folder.outbox / LOG, clock, settings.log_segment_bytes, settings.log_total_bytes)
        self.report = Report(folder, incarnation, clock, settings.heartbeat)

    def ask_to_stop(self, *_: object) -> None:
        """The signal handler. It only records the signal for the next tick."""
        self.stop_signal = True

    def live(self) -> int:
        guardian: Guardian | None = None
        try:
            self.folder.lay_out()
            guardian = Guardian.start(self.incarnation)  # a fork, so before any thread
            result = self._steps(guardian)
        except Over as over:
            tail = over.tail or self.log.tail()
            result = replace(self._result(over.outcome, str(over)), tail=tail, hopeless=over.hopeless)
        except Exception:  # noqa: BLE001 - the engine must hear of every failure
            tail = self.log.mask.text(traceback.format_exc())[-8192:]
            result = replace(
                self._result(Outcome.CRASHED, "the agent failed: this is a bug in the agent"), tail=tail
            )
        if guardian is not None:
            guardian.kill()
            guardian.dismiss()
        if self.monitor is not None:
            keeping.keep(self.monitor, result)
        if lacks_inodes(self.folder.root):  # nobody else could write its log and outputs down
            with suppress(OSError):
                remove_tree(self.folder.work)
        self.log.say(f"{result.outcome}: {result.message}")
        written = self.report.end(result)
        if self.uplink is not None:
            if written:
                self._ship_the_rest(self.uplink)
            self.uplink.end()
        return 0 if written else 1

    def _steps(self, guardian: Guardian) -> Result:
        # First, so that no failure leaves them on the disk.
        given, parcel, values = self._take_store(), self._take_parcel(), self._take_secrets()
        logins = environments.logins(self._installing)
        self._hide(Mask([*values.values(), *logins, *secrets_in(given or b""), *key_in(parcel or b"")]))
        self.report.beat("starting")
        order = self._read_order()
        clocks = Clocks(self.clock, self.started, self._budget(order))
        self.report.clocks = clocks
        self.report.resume_step = order.resume_step if order.resume else None
        self.log.say(
            f"session {order.session} on {order.platform} ({order.accelerator} × {order.devices}), "
            f"incarnation {self.incarnation}"
        )
        self._start_uplink(order, given, parcel)
        missing = [name for name in order.secrets if name not in values]
        if missing:
            raise Over(Outcome.CRASHED, f"the job's secrets were not delivered: {', '.join(missing)}")
        devices = self._beside("probing", clocks, lambda: self._probe(order)) if self.settings.probe else {}
        if parcel is not None:
            self._beside("fetching", clocks, self._fetch)
        resume = self._beside("restoring", clocks, lambda: self._restore(order))
        python = self._beside("starting", clocks, self._python)
        site = self._install(order, values, clocks, python)
        oom_kills = machine.oom_kills()
        variables = (
            self._variables(order, values, clocks, resume, site) | devices | probe.assigned(os.environ)
        )
        begun = f"resuming at step {order.resume_step}" if order.resume else "from the beginning"
        self.log.say(f"training starts, {begun}")
        before = dict(gathering.files_in(self.folder.source))
        shown = None if resume is None else self._shown(resume)
        command = executed(order, shown, self.settings.python)
        environment = machine.fingerprint(order, variables["PYTHONPATH"], python)
        leader = Leader.start(self.folder, order, command, variables, guardian)
        self.monitor = Monitor(
            self.folder, order, self.incarnation, environment, clocks, leader, self.log, self.report,
            self.settings, before, self.uplink,
        )  # fmt: skip
        exit_code = self._train(self.monitor)
        return self.monitor.conclude(exit_code, machine.oom_kills() - oom_kills)

    def _read_order(self) -> Order:
        try:
            return self.folder.read_order()
        except (OSError, ValueError) as error:
            raise Over(Outcome.CRASHED, f"order.json cannot be read: {error}") from error

    def _take_secrets(self) -> dict[str, str]:
        try:
            return self.folder.take_secrets()
        except (OSError, ValueError) as error:
            raise Over(Outcome.CRASHED, f"secrets.json cannot be read: {error}") from error

    def _budget(self, order: Order) -> float | None:
        """Seconds from the start until the session must be over. A window closes however late it started."""
        if order.leave_by is None:
            return order.budget_seconds
        passed = self.clock.elapsed() - self.started
        left = max(0.0, order.leave_by - self.clock.now() + passed)
        return left if order.budget_seconds is None else min(left, order.budget_seconds)

    def _take_store(self) -> bytes | None:
        try:
            return self.folder.take_store()
        except OSError as error:
            self.report.warn(f"the uplink cannot start: store.json cannot be read: {error.strerror}")
            return None

    def _take_parcel(self) -> bytes | None:
        try:
            return self.folder.take_parcel()
        except OSError as error:
            raise Over(Outcome.CRASHED, f"parcel.json cannot be read: {error.strerror}") from error

    def _start_uplink(self, order: Order, given: bytes | None, parcel: bytes | None) -> None:
        if given is not None:
            self.uplink = Companion(
                self.folder, order, self.incarnation, given, self.settings, self.clock, self.log.say, parcel
            )
            self.uplink.start()

    def _fetch(self) -> None:
        """Waits until the uplink has fetched what the session needs. If it cannot, the session ends as LOST:
        the run continues with the next one."""
        uplink, began = self.uplink, self.clock.monotonic()
        while uplink is None or not uplink.fetched:
            why = "" if uplink is None else uplink.unfetchable
            if uplink is not None and uplink.superseded:
                why = "another session of this run has taken over"
            elif uplink is None or not uplink.is_alive():
                why = why or "the uplink cannot work, as the session's log says"
            elif self.clock.monotonic() - max(began, uplink.moved_at) >= self.settings.uplink_fetch:
                why = why or f"nothing has come for {self.settings.uplink_fetch:.0f} s"
            if why:
                raise Over(Outcome.LOST, f"what the session needs did not come from the home store: {why}")
            self.clock.wait(_NEVER, self.settings.tick)

    def _ship_the_rest(self, uplink: Companion) -> None:
        """Waits until the last checkpoint and the result are in the store, as long as that is worth the
        machine's time. What is not shipped then stays in the outbox."""
        uplink.finish()
        began = self.clock.monotonic()
        while uplink.is_alive():
            if self.monitor is not None:
                self.monitor.hear_uplink()
            for text in uplink.warnings():
                self.report.warn(text)
            self.report.beat("shipping")
            why = self._no_longer(began, max(began, uplink.moved_at))
            if why:
                self.log.say(f"not everything was shipped: {why}; the rest stays in the session's outbox")
                return
            self.clock.wait(_NEVER, self.settings.tick)

    def _no_longer(self, began: float, moved_at: float) -> str:
        """Why the session waits for its uplink no longer; else empty."""
        now, clocks = self.clock.monotonic(), self.report.clocks
        if clocks is not None and clocks.budget is not None and clocks.elapsed() >= clocks.budget:
            return "the session's time is over"
        if now - began >= self.settings.uplink_end:
            return f"it took longer than {self.settings.uplink_end:.0f} s"
        if self._is_asked_to_stop() and now - moved_at >= self.settings.uplink_stop:
            return (
                f"the session was asked to stop, and nothing was sent for {self.settings.uplink_stop:.0f} s"
            )
        return ""

    def _hide(self, mask: Mask) -> None:
        """From now on no output shows a secret. This includes the traceback of a bug on standard error, which
        a platform may keep."""
        self.log.hide(mask)
        self.report.mask = mask

        def last_words(error: BaseException | None) -> None:
            sys.stderr.write(mask.text("".join(traceback.format_exception(error))))

        sys.excepthook = lambda _kind, error, _trace: last_words(error)
        threading.excepthook = lambda thread: last_words(thread.exc_value)

    def _probe(self, order: Order) -> dict[str, str]:
        """Variables that the command needs to see its devices. A substituted accelerator counts as no
        capacity."""
        try:
            return probe.check(order, dict(os.environ) | {MARK: self.incarnation})
        except probe.Substituted as error:
            raise Over(Outcome.NO_CAPACITY, str(error)) from error

    def _python(self) -> Interpreter | None:
        """The user's own Python, if the training runs with one."""
        if self.settings.python is None:
            return None
        try:
            found = interpreters.ask(self.settings.python)
        except interpreters.Unusable as error:
            message = f"the Python of this run does not work: {error}; {interpreters.ADVICE}"
            raise Over(Outcome.CRASHED, message, hopeless=True) from error
        torch = f", torch {found.torch}" if found.torch else ", no torch"
        self.log.say(f"the training's Python: {found.path}, {found.version_text}{torch}")
        return found

    def _install(
        self, order: Order, values: dict[str, str], clocks: Clocks, python: Interpreter | None
    ) -> Site | None:
        """Requirements that cannot be fetched end the session as LOST, so that the run continues elsewhere.
        LOST is counted: a job whose index cannot be reached anywhere fails in the end, with this message."""
        if not self.settings.requirements or order.requirements is None:
            return None
        variables = self._variables(order, values, clocks, resume=None, site=None)
        own = self.settings.environments
        try:
            if python is not None and own is not None:
                return environments.installed(
                    self.folder, order, python, self._installing | variables, self.log, self.clock,
                    into=Path(own), uv=self.settings.uv,
                    beside=lambda work: self._beside("installing", clocks, work),
                )  # fmt: skip
            row = row_of(order)
            pip = Installation.begin(
                self.folder, order.requirements, variables, self.log, lock=order.requirements_lock,
                tpu=row is not None and row.kind is Kind.TPU,
            )  # fmt: skip
            return self._beside("installing", clocks, pip.finish)
        except Failed as error:
            if not error.cut_off:
                full = f"; {shortage(Path(own or self.folder.work))[0]}" if error.no_room else ""
                failed = f"the requirements failed to install: {error}{full}"
                hopeless = own is not None and not error.no_room
                raise Over(Outcome.CRASHED, failed, error.tail, hopeless=hopeless) from error
            offline = "" if order.internet else " (the job has no internet: set needs.internet)"
            message = f"the requirements could not be fetched{offline}: {error}"
            raise Over(Outcome.LOST, message, error.tail) from error
        except OSError as error:
            raise Over(Outcome.CRASHED, f"the requirements could not be set up: {error}") from error

    def _restore(self, order: Order) -> Path | None:
        """A bundle or checkpoint that was damaged on the way here ends the session as LOST. The run continues
        elsewhere from the same checkpoint."""
        try:
            restore.unpack(self.folder, order)
            laid_out = restore.lay_out_resume(self.folder, order)
            return None if laid_out is None else restore.put_back(self.folder, order, laid_out)
        except restore.CorruptBundle as error:
            raise Over(Outcome.LOST, str(error)) from error
        except CorruptCheckpoint as error:
            raise Over(Outcome.LOST, f"staged checkpoint corrupt: {error}") from error
        except OSError as error:
            full = error.errno in NO_ROOM and not isinstance(error, Lack)
            why = f"{error}; {shortage(self.folder.work)[0]}" if full else error.strerror or str(error)
            raise Over(Outcome.CRASHED, f"the session's folder could not be set up: {why}") from error

    def _beside(self, state: str, clocks: Clocks, work: Callable[[], T]) -> T:
        """Does the work in a thread while the heartbeat goes on. A stop or the budget's end interrupts it."""
        outcome: list[T] = []
        failure: list[BaseException] = []

        def do() -> None:
            try:
                outcome.append(work())
            except BaseException as error:  # noqa: BLE001 - raised again in the main thread
                failure.append(error)

        thread = threading.Thread(target=do, name=state, daemon=True)
        thread.start()
        while thread.is_alive():
            self._leave_early(clocks)
            self.report.beat(state)
            thread.join(self.settings.tick)
        if failure:
            raise failure[0]
        self._leave_early(clocks)
        return outcome[0]

    def _leave_early(self, clocks: Clocks) -> None:
        if self.uplink is not None and self.uplink.superseded:
            raise Over(Outcome.LOST, "another session of this run has taken over")
        if self._is_asked_to_stop():
            raise Over(Outcome.STOPPED, "asked to stop before the training began")
        if clocks.budget is not None and clocks.elapsed() >= clocks.budget:
            raise Over(Outcome.STOPPED, "the session's time was over before the training began")

    def _variables(
        self, order: Order, values: dict[str, str], clocks: Clocks, resume: Path | None, site: Site | None
    ) -> dict[str, str]:
        budget, left = clocks.budget, clocks.deadline()
        exit_by = plan.kill_at(budget, plan.Costs(), self.settings)
        if budget is not None and left is not None and exit_by is not None:
            left -= budget - exit_by
        return environment(
            self.folder,
            order,
            inherited=os.environ,
            secrets=values,
            incarnation=self.incarnation,
            resume=resume,
            deadline=left,
            site=site,
            python=self.settings.python,
        )

    def _shown(self, resume: Path) -> str:
        """The path for the command: as the script itself would write it, if it saved there."""
        inside = resume.is_relative_to(self.folder.source)
        return str(resume.relative_to(self.folder.source)) if inside else str(resume)

    def _train(self, monitor: Monitor) -> int:
        while (exit_code := monitor.leader.poll()) is None:
            if self._is_asked_to_stop():
                monitor.ask_to_leave(Stop.REQUEST)
            monitor.tick()
            self.clock.wait(_NEVER, self.settings.tick)
        return exit_code

    def _is_asked_to_stop(self) -> bool:
        """By its platform, or through the home store where the platform cannot reach it."""
        heard = self.uplink is not None and self.uplink.asked_to_leave
        return self.stop_signal or heard or self.folder.stop.exists()

    def _result(self, outcome: Outcome, message: str) -> Result:
        step = None if self.monitor is None else self.monitor.committed
        return Result(self.incarnation, outcome, None, step, message, self.log.tail())


def _started(clock: Clock) -> float:
    """When the session began, on `clock.elapsed`. The launcher may have set an earlier time than now."""
    try:
        given = float(os.environ.get(_STARTED, "nan"))
    except ValueError:
        given = float("nan")
    now = clock.elapsed()
    return given if 0.0 <= given <= now else now
