"""One session in a notebook: its folder from the parcel, the agent's process, and the end of both.

The agent dies with this process, and so do its uplink and the training. Must never know the mailbox, nor
decide when a session ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random

from orchestrator.clock import Clock
from orchestrator.core import wire
from orchestrator.core.order import Outcome
from orchestrator.errors import OrchestratorError, QuotaExhausted
from orchestrator.files import guard, make_folder, open_log, remove_tree, write_whole
from orchestrator.session import saying
from orchestrator.session.layout import SESSION, Layout
from orchestrator.session.mailbox import Post
from orchestrator.session.outbox import FolderOutbox
from orchestrator.stores.store import Store
from orchestrator.uplink import fetching, parcel
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.mailbox import Secret
from orchestrator.uplink.pace import Pace, Patience
from orchestrator.uplink.parcel import Parcel

_PR_SET_PDEATHSIG = 1
_ARRIVING = "arriving"
_TICK_SECONDS = 0.2
_TELL_SECONDS = 60.0
_MARK = "ORCHESTRATOR_SESSION"
_LOOK_SECONDS = 20.0  # before the next look at what is missing
_WELL = frozenset({Outcome.COMPLETED, Outcome.STOPPED})

FORGED = (
    "it was refused, and nothing of it was run: its signature is wrong. Somebody else has written it, or "
    "changed it in the store"
)


class Sitting:
    """A session of this notebook. `folder` holds one folder per session."""

    def __init__(
        self, store: Store, secret: Secret, post: Post, folder: Path, clock: Clock, say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._secret = secret
        self._post = post
        self._clock = clock
        self._say = say
        self._parent = folder = guard(folder)
        self._layout = Layout(folder / post.session)
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()
        self._asked = False
        self._came = False  # whether a part has come in this try
        self._told_at = clock.monotonic()
        self._told = ""

    def begin(self, leaving: threading.Event, lost: threading.Event) -> str:
        """Brings the parcel and starts the agent. Returns why it could not; empty if it has."""
        if not self._secret.keys.have_signed(self._post, self._secret.mailbox):
            return FORGED
        patience, looks = Patience(Pace(person=_LOOK_SECONDS), Random()), fetching.Looks()
        while True:
            self._came = False
            try:
                self._lay_out()
                self._start()
            except (QuotaExhausted, ValueError) as error:
                return f"it could not be started: {error}"
            except (OrchestratorError, OSError) as error:
                if looks.are_enough(error, progressed=self._came):
                    return f"it could not be started: {fetching.reason(error)}"
                self._say(f"The parcel of {self._post.session} did not arrive: {error}. Trying again.")
                self._clock.wait(leaving, patience.after(error, progressed=self._came))
                if leaving.is_set() or lost.is_set():
                    return "the notebook left before it began"
            else:
                return ""

    def _lay_out(self) -> None:
        make_folder(self._parent, 0o700)
        for old in self._parent.iterdir():  # nobody reads what earlier sessions left here
            if old.is_dir() and old != self._layout.root and SESSION.fullmatch(old.name):
                remove_tree(old)
        make_folder(self._layout.root, 0o700)
        sent = replace(wire.decode(Parcel, self._post.parcel.encode()), key=self._secret.keys.identity)
        keys = SessionKeys(self._post.run, self._post.session)
        content = parcel.fetch(self._store, keys, sent, self._layout.root / _ARRIVING, self._heard)
        write_whole(self._layout.store, wire.encode(self._secret.portable))
        parcel.move(sent, content, self._layout.root)

    def _heard(self, _size: int) -> None:
        self._came = True

    def _start(self) -> None:
        """Through this program, which makes the kernel kill the agent when this process is gone."""
        root = self._layout.root
        words = [str(os.getpid()), str(self._layout.agent), str(root), "--settings", self._post.settings]
        with os.fdopen(open_log(root / "agent.out"), "ab") as out:
            self._process = subprocess.Popen(
                [sys.executable, sys.argv[0], "attend", *words],
                cwd=root,
                env=dict(os.environ) | {_MARK: str(root)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        if self._killed.is_set():
            self.kill()

    def wait(self, seconds: float, lost: threading.Event) -> bool:
        """Waits for so long, or until the agent has ended; returns whether it has."""
        assert self._process is not None
        until = self._clock.monotonic() + seconds
        while self._process.poll() is None:
            if self._clock.monotonic() >= until or self._clock.wait(lost, _TICK_SECONDS):
                self._tell_progress()
                return False
        return True

    def ask_to_leave(self, why: str) -> None:
        """The agent saves, ships and exits."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._say(f"Session {self._post.session} saves and leaves: {why}.")
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """At once: the agent's uplink dies with it, and its guardian ends the training."""
        self._killed.set()
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()

    def how(self) -> str:
        """How the agent ended."""
        assert self._process is not None
        code = self._process.returncode
        return "its agent has finished" if code == 0 else f"its agent ended with code {code}"

    def tell_outcome(self) -> None:
        """Says how the training ended, but nothing of what it printed: notebooks are saved and shared."""
        result = self._said().result
        if result is not None:
            run = self._post.run
            more = (
                "" if result.outcome in _WELL else f". On your machine, `orchestrator logs {run}` shows why"
            )
            self._say(f"{self._post.session}: {_words(result.outcome)} at step {result.step or 0:,}{more}")

    def close(self) -> None:
        """Kills what is left of it, and waits for that."""
        if self._process is not None and self._process.poll() is None:
            self.kill()
            self._process.wait()

    def _tell_progress(self) -> None:
        now = self._clock.monotonic()
        if now - self._told_at < _TELL_SECONDS:
            return
        self._told_at = now
        status = self._said().status
        if status is not None:
            text = f"{self._post.session}: {status.state}, step {status.step or 0:,}"
            if text != self._told:
                self._told = text
                self._say(text)

    def _said(self) -> saying.Said:
        try:
            return saying.said(FolderOutbox(self._layout.outbox))
        except OSError:
            return saying.Said()


def _words(outcome: Outcome) -> str:
    return outcome.value.replace("_", " ")


def die_with_parent(number: signal.Signals) -> None:
    """From now on the kernel sends this signal when the process that started this one is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


def attend(arguments: list[str]) -> int:
    """`python uplink.pyz attend PARENT AGENT FOLDER --settings JSON` becomes the agent."""
    parent, *words = arguments
    die_with_parent(signal.SIGKILL)
    if not parent.isdecimal() or os.getppid() != int(parent):
        return 1
    return os.execv(sys.executable, [sys.executable, *words])
