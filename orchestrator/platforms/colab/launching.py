"""Starts sessions, each at most once, however often it is asked and whoever dies on the way.

The machine is found by the session's name, so one that was allocated before a crash is used and never
replaced. What may have started is never started again: a machine that is gone took it along, and the engine
finds out by looking.
"""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from orchestrator.clock import Clock
from orchestrator.core.order import Order
from orchestrator.errors import BackendError, NameTaken, NoCapacity, NotFound, Refused, Rejected, Transient
from orchestrator.files import flock, make_folder, written
from orchestrator.platforms.colab import staging, surveying
from orchestrator.platforms.colab.machine import ROOT, Machine, archive_name, look
from orchestrator.platforms.colab.memory import Known, Memory
from orchestrator.platforms.colab.options import HOUR, WORDS, ColabOptions
from orchestrator.platforms.colab.runner import Cli
from orchestrator.platforms.colab.values import Assignment

LOCK_SECONDS_MAX, _LOCK_PAUSE_SECONDS = 300.0, 0.1  # for the launch of another process
REFUSED_SECONDS = (
    HOUR  # what the account may not have, or what was substituted, is not asked for again before
)


class Launcher:
    """Launches sessions of one account. `folder` is the platform's own; `name` is for messages."""

    def __init__(
        self, name: str, cli: Cli, memory: Memory, options: ColabOptions, folder: Path, clock: Clock
    ) -> None:
        self._name = name
        self._cli = cli
        self._memory = memory
        self._options = options
        self._folder = folder
        self._clock = clock

    def launch(self, order: Order) -> None:
        """As the platform's verb. One launch at a time on this machine; the ledger keeps controllers on other
        machines apart."""
        with self.alone(LOCK_SECONDS_MAX) as is_alone:
            if not is_alone:
                text = "another launch here has not finished: is one of our processes stopped?"
                sent = self._memory.of(order.session).sent
                raise self._unknown(text) if sent else self._no_room(text)
            self._launch(order)

    @contextmanager
    def alone(self, seconds: float) -> Iterator[bool]:
        """Whether no other process launches anything, for as long as this lasts. Waits for the others for at
        most so many seconds."""
        make_folder(self._folder, 0o700)
        ends = self._clock.monotonic() + seconds
        with written(self._folder / "launch-lock") as lock:
            while not (is_taken := _is_taken(lock)) and self._clock.monotonic() < ends:
                self._clock.wait(threading.Event(), _LOCK_PAUSE_SECONDS)
            yield is_taken

    def _launch(self, order: Order) -> None:
        session = order.session
        known = self._memory.of(session)
        self._check_wanted(session)
        machine = self._look(session, known)
        if machine is None and known.sent:
            return  # it may have started, and its machine is gone: observe shows that
        if machine is not None and self._is_started(machine, order):
            return
        if not staging.is_staged(self._folder, order, known.order):
            raise NotFound(
                f"{session} is not prepared for this order", backend=self._name, operation="launch"
            )
        assignment = self._allocate(order, machine)
        try:
            self._equip(order, assignment)
            self._start(order)
        except Refused:  # nothing has started, and an idle machine uses units
            if self._is_given_back(session):
                self._memory.note(session, asked_at=None, sent=False)
            raise

    def _check_wanted(self, session: str) -> None:
        if self._memory.of(session).stopped:
            raise Rejected(f"{session} was stopped before it was launched", operation="launch")

    def _look(self, session: str, known: Known) -> Machine | None:
        """What cannot be seen may have started, but only if its cell was sent."""
        try:
            return look(self._cli, session)
        except BackendError as error:
            if known.sent:
                raise self._unknown(str(error)) from error
            if isinstance(error, Transient):
                raise self._no_room(str(error)) from error
            raise

    def _is_started(self, machine: Machine, order: Order) -> bool:
        if machine.is_started:
            if machine.order != staging.fingerprint(order):
                raise NameTaken(f"{order.session} was started with another order", operation="launch")
            self._has_started(order.session)
            return True
        if machine.found.problem:
            raise self._unknown(f"the machine of {order.session} cannot be read: {machine.found.problem}")
        return False

    def _has_started(self, session: str) -> None:
        self._memory.note(session, sent=True)
        staging.forget(self._folder, session)

    def _allocate(self, order: Order, machine: Machine | None) -> Assignment:
        """The session's machine; a second call gives the same one. Raises Refused if there is none for now.
        After no answer one may come later, so it stays noted that it was asked for."""
        if machine is not None and machine.assignment is not None:
            return machine.assignment
        session, before = order.session, self._memory.of(order.session).asked_at
        if machine is None or before is None:
            self._memory.note(session, asked_at=self._clock.now())
        try:
            return self._cli.new(session, WORDS[order.accelerator], high_mem=self._options.high_mem)
        except Transient as error:
            self._is_given_back(session)
            raise self._no_room(str(error)) from error
        except BackendError as error:  # this time there is none, but there may be one of an earlier try
            self._memory.note(session, asked_at=before)
            if isinstance(error, Rejected):  # the account may not have it now, although the survey said so
                raise self._lastingly_refused(error) from error
            raise

    def _is_given_back(self, session: str) -> bool:
        with suppress(BackendError):
            return self._cli.stop(session)
        return False

    def _equip(self, order: Order, assignment: Assignment) -> None:
        """Gives the session's machine what it needs. Raises Refused if that fails in a way that may pass."""
        session = order.session
        if surveying.is_substituted(assignment, order.accelerator):
            text = f"Colab gave {assignment.accelerator} instead of {WORDS[order.accelerator]}"
            raise self._no_room(text, until=self._clock.now() + REFUSED_SECONDS)
        target = f"{ROOT}/{archive_name(session)}"
        try:
            self._cli.upload(session, staging.archive(self._folder, session), target)
        except (Transient, NotFound) as error:  # no answer, or the machine has vanished meanwhile
            raise self._no_room(str(error)) from error
        except Rejected as error:
            raise self._lastingly_refused(error) from error

    def _start(self, order: Order) -> None:
        """Raises Refused if it has certainly not started, and Transient if it may have."""
        session = order.session
        self._check_wanted(session)
        before = self._memory.of(session)
        age = max(0.0, self._clock.now() - (before.asked_at or self._clock.now()))
        cell = staging.write_cell(self._folder, self._options, order, age_seconds=age)
        self._memory.note(session, sent=True)
        try:
            self._cli.start(session, cell, seconds_max=self._options.start_seconds)
        except Rejected as error:  # it ended without a start, or there was no machine to send it to
            raise self._refused(str(error)) from error
        except Transient:
            machine = look(self._cli, session)
            if machine is None or not machine.is_started:
                raise
        self._has_started(session)

    def _refused(self, text: str, until: float | None = None) -> Refused:
        return Refused(text, backend=self._name, operation="launch", until=until)

    def _lastingly_refused(self, error: Rejected) -> Refused:
        return self._refused(str(error), until=self._clock.now() + REFUSED_SECONDS)

    def _no_room(self, text: str, until: float | None = None) -> NoCapacity:
        return NoCapacity(text, backend=self._name, operation="launch", until=until)

    def _unknown(self, text: str) -> Transient:
        return Transient(text, backend=self._name, operation="launch", retried=True)


def _is_taken(lock: IO[bytes]) -> bool:
    """Whether the lock is ours now."""
    return flock(lock.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, Path(lock.name))
