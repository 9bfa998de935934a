"""`python uplink.pyz work MAILBOX ACCELERATOR PLACE FOLDER [SITE]`: attends to a mailbox.

Claims the mailbox, beats, takes one session after the other, and runs the agent for each. If it loses the
mailbox or the session, it kills the agent and its uplink at once. Takes the Secret from standard input, and
says what happens in lines for the person who opened the notebook. Must never decide what a session does, nor
repeat what the Secret holds.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from types import FrameType

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Rejected
from orchestrator.session.mailbox import Box, Post, Watched, Worker, cleared, own, reported, taken
from orchestrator.stores.opening import opened
from orchestrator.stores.store import Store
from orchestrator.uplink import machine, sitting
from orchestrator.uplink.mailbox import Mailbox, Secret, TooOld, place
from orchestrator.uplink.pace import Pace, Patience
from orchestrator.uplink.sitting import Sitting

USAGE = "usage: python uplink.pyz work MAILBOX ACCELERATOR PLACE FOLDER [SITE]  (a notebook starts it)\n"
OK, WRONG_USAGE, WRONG_SECRET, WRONG_MACHINE, TOO_OLD = 0, 2, 3, 4, 5
_TRIES_MAX = 10  # while it is asked to leave

Say = Callable[[str], None]


def main(arguments: list[str]) -> int:
    """Exit codes: 0 it was asked to leave, 2 wrong usage, 3 wrong Secret, 4 wrong machine, 5 too old."""
    if len(arguments) not in (4, 5):
        sys.stderr.write(USAGE)
        return WRONG_USAGE
    name, accelerator, where, folder, *sites = arguments
    sys.path[1:1] = sites  # with packages for this process alone
    leaving = threading.Event()
    sitting.die_with_parent(signal.SIGTERM)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _leaver(leaving))
    try:
        secret = _secret(sys.stdin.readline(), name, where)
        store = opened(secret.portable)
    except ImportError as error:
        _say(f"A package is missing ({error}). {_AGAIN.format(name)}")
        return WRONG_SECRET
    except (InputError, AccessDenied, Rejected, ValueError) as error:
        _say(_UNUSABLE.format(error, name))
        return WRONG_SECRET
    if there := machine.lacking(accelerator, os.environ):
        _say(f"This machine does not have the accelerator {accelerator}: it has {there}. {_MACHINE}")
        return WRONG_MACHINE
    me = Worker(accelerator=accelerator, keys=secret.keys.id)
    mailbox = Mailbox(lambda: store, name)
    working = Working(mailbox, store, secret, me, Path(folder), SystemClock(), leaving, _say)
    return working.run()


_UNUSABLE = (
    "This Secret cannot be used: {}. `orchestrator colab notebook {}` prints the right one: paste that, and "
    "run this cell again."
)
_TRYING = "Trying again; nothing to do, unless this machine has no internet or the store has moved."
_ANOTHER = (
    "Another notebook attends to this mailbox. This one waits until that one is closed, or silent for a "
    "minute."
)
_ANOTHER_HOME = (
    "Session {} is not for this notebook's Secret: another home has posted it, or the keys are new since. On "
    "the machine that submitted it, run `orchestrator colab notebook {}`, and paste the Secret that it shows."
)
_AGAIN = "Make a new notebook with `orchestrator colab notebook {}`."
_MACHINE = "Choose the right one with Runtime > Change runtime type, then run all cells again."


def _secret(text: str, name: str, where: str) -> Secret:
    """Raises InputError if it is not for this notebook's mailbox and store."""
    secret = Secret.parse(text)
    if secret.mailbox != name:
        raise InputError(f"it is for the mailbox {secret.mailbox!r}, and this notebook for {name!r}")
    if place(secret.portable) != where:
        raise InputError(
            "it is for another store than this notebook, or from before it was encrypted; use the two that "
            "were made together"
        )
    return secret


class Working:
    """One worker. `leaving` asks it to save, and to leave."""

    def __init__(
        self,
        mailbox: Mailbox,
        store: Store,
        secret: Secret,
        me: Worker,
        folder: Path,
        clock: Clock,
        leaving: threading.Event,
        say: Say,
        *,
        poll_seconds: float = 2.0,
    ) -> None:
        self._mailbox = mailbox
        self._store = store
        self._secret = secret
        self._me = me
        self._folder = folder
        self._clock = clock
        self._leaving = leaving
        self._say = say
        self._poll = poll_seconds
        self._told = ""
        self._ended: dict[str, str] = {}  # why each session that was run here is over

    def run(self) -> int:
        """Until it is asked to leave, is refused by the store, or finds that it is too old."""
        while not self._leaving.is_set():
            self._me = replace(self._me, id=secrets.token_hex(8))
            try:
                attendance = self._claimed()
            except (AccessDenied, Rejected) as error:
                self._say(_UNUSABLE.format(error, self._secret.mailbox))
                return WRONG_SECRET
            if attendance is None:
                break
            try:
                self._serve(attendance)
            except TooOld as error:
                self._say(f"This notebook is too old: {error}. {_AGAIN.format(self._secret.mailbox)}")
                return TOO_OLD
            finally:
                attendance.end()
            if attendance.lost.is_set():
                self._say("Another notebook has taken over this mailbox. This one waits for it to leave.")
        self._say("This notebook has left its mailbox.")
        return OK

    def _claimed(self) -> Attendance | None:
        """Waits until the mailbox is free. None if it was asked to leave. Raises AccessDenied and Rejected:
        another try would have the same keys."""
        watched, patience = Watched(), self._patience()
        while not self._leaving.is_set():
            try:
                held = self._mailbox.hold(
                    self._me, lambda there: watched.look(there, self._clock.monotonic())
                )
            except (AccessDenied, Rejected):
                raise
            except (OrchestratorError, OSError) as error:
                self._tell(f"The store does not answer: {error}. {_TRYING}")
                self._clock.wait(self._leaving, patience.after(error))
                continue
            if held is not None:
                self._tell("This notebook attends to its mailbox, and waits for a session.")
                return Attendance(self._mailbox, self._me, self._clock)
            self._tell(_ANOTHER)
            self._clock.wait(self._leaving, self._me.every)
        return None

    def _serve(self, attendance: Attendance) -> None:
        """One session after the other, until it is asked to leave or has lost the mailbox. Raises TooOld."""
        patience, failures = self._patience(), 0
        while not attendance.lost.is_set() and failures < _TRIES_MAX:
            try:
                if not self._step(attendance):
                    return
            except TooOld:
                raise
            except (OrchestratorError, OSError) as error:
                failures += self._leaving.is_set()
                self._tell(f"The store does not answer: {error}. {_TRYING}")
                self._clock.wait(attendance.lost, patience.after(error))
            else:
                patience.over()

    def _step(self, attendance: Attendance) -> bool:
        """Takes a session and sees it to its end, or waits for one. Returns whether to go on."""
        box = self._mailbox.change(self._next)
        post = own(box, self._me)
        if post is None:
            self._tell(self._why_idle(box))
            return not self._clock.wait(self._leaving, self._poll)
        if post.session not in self._ended:
            ended = self._attend(post, attendance)
            if ended is None or attendance.lost.is_set():
                return True
            self._ended[post.session] = ended
        ended = self._ended[post.session]  # told until the store takes it: it never begins a second time
        self._mailbox.change(lambda box: reported(box, post.session, self._me, ended))
        self._tell(f"Session {post.session} is over: {ended}.")
        return True

    def _next(self, box: Box) -> Box:
        if self._leaving.is_set():
            return box
        return taken(cleared(box, self._me, self._mailbox.worker), self._me)

    def _why_idle(self, box: Box) -> str:
        """Repeats nothing that anybody could have written there, but names of sessions."""
        for post in box.posts:
            if post.waits and post.keys != self._me.keys:
                return _ANOTHER_HOME.format(post.session, self._secret.mailbox)
            signed = self._secret.keys.have_signed(post, self._secret.mailbox)
            if post.waits and post.accelerator != self._me.accelerator and signed:
                return (
                    f"Session {post.session} needs {post.accelerator}, but this notebook is for "
                    f"{self._me.accelerator}. {_AGAIN.format(self._secret.mailbox)}"
                )
        return "Waiting for a session."

    def _attend(self, post: Post, attendance: Attendance) -> str | None:
        """Runs one session. Returns why it is over; None if it is not ours any more."""
        self._tell(f"Session {post.session} begins.")
        attendance.session = post.session
        seat = Sitting(self._store, self._secret, post, self._folder, self._clock, self._say)
        attendance.on_lost = seat.kill
        try:
            return self._sat(seat, post, attendance)
        finally:
            attendance.on_lost = None
            attendance.session = ""
            seat.close()

    def _sat(self, seat: Sitting, post: Post, attendance: Attendance) -> str | None:
        trouble = seat.begin(self._leaving, attendance.lost)
        if trouble:
            return trouble
        while not seat.wait(self._poll, attendance.lost):
            if attendance.lost.is_set():
                return None
            if self._leaving.is_set():
                seat.ask_to_leave("this notebook is asked to leave")
            there = self._looked()
            if there is None:
                continue
            if own(there, self._me) is None:
                self._say(f"Session {post.session} was taken away from this notebook: it is killed.")
                return None
            now = there.find(post.session)
            if now is not None and now.stop:
                seat.ask_to_leave("the controller asks it to leave")
        return seat.how()

    def _looked(self) -> Box | None:
        """The mailbox; None while the store does not answer."""
        try:
            return self._mailbox.box()
        except TooOld:  # the session is not less ours; the next one is not taken
            return None
        except (OrchestratorError, OSError):
            return None

    def _patience(self) -> Patience:
        return Patience(Pace(), Random())

    def _tell(self, text: str) -> None:
        """Says it, unless it was said last."""
        if text != self._told:
            self._told = text
            self._say(text)


class Attendance:
    """A worker's claim of its mailbox: a thread that beats until it is over. `lost`: another worker has the
    mailbox. Then `on_lost` is called first, at once. `session` is what it tells of itself."""

    def __init__(self, mailbox: Mailbox, me: Worker, clock: Clock) -> None:
        self._mailbox = mailbox
        self._me = me
        self._clock = clock
        self._over = threading.Event()
        self.lost = threading.Event()
        self.on_lost: Callable[[], None] | None = None
        self.session = ""
        self._thread = threading.Thread(target=self._beat, name="attendance", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        while not self._clock.wait(self._over, self._me.every):
            try:
                there = self._mailbox.beat(replace(self._me, session=self.session))
            except (OrchestratorError, OSError):  # the next beat tries again
                continue
            if there is None:
                self.lost.set()
                if (act := self.on_lost) is not None:
                    act()
                return

    def end(self) -> None:
        """Stops beating, and leaves the mailbox to others at once."""
        self._over.set()
        self._thread.join(self._me.patience)
        if not self.lost.is_set():
            try:
                self._mailbox.leave(self._me)
            except (OrchestratorError, OSError):
                return  # the next worker waits until this one is silent for long


def _leaver(leaving: threading.Event) -> Callable[[int, FrameType | None], None]:
    def leave(_number: int, _frame: FrameType | None) -> None:
        leaving.set()

    return leave


def _say(text: str) -> None:
    """Without anything that a terminal would act on: some of it comes from the store."""
    sys.stdout.write("".join(each if each.isprintable() else "\ufffd" for each in text) + "\n")
    sys.stdout.flush()
