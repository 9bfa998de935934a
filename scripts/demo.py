"""`make demo`: trains a small model over several sessions, and kills its own controller once on the way.

Does what a user could do: `submit --unless-running`, the live view, `kill -9`, `up --detach`, `hold` and
`release`. Says before it kills, and counts at the end. When it returns, nothing of it runs, or it says what
does. It must never signal another process than the controller of its own home.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from types import FrameType

from orchestrator.cli import arguments, streams, submitting
from orchestrator.cli.call import Call, Exit, exit_code
from orchestrator.cli.output import Output
from orchestrator.cli.watching import View
from orchestrator.client import Client, Owner
from orchestrator.client.home import Home
from orchestrator.client.looking import Look
from orchestrator.core.event import Ended
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.wording import count_text
from orchestrator.errors import OrchestratorError

ROOT = Path(__file__).resolve().parent.parent
COMMAND = Path(sys.executable).with_name("orchestrator")
STEPS_BEFORE = 3  # of the session in which the controller is killed
ALONE_SECONDS = 1.5  # between the kill and the start of another controller
SECONDS_LEFT = 5.0  # of that session, so that everybody sees that it goes on
INTRODUCTION = """\
This demo trains a small model in short sessions. Each ends at its time limit,
like a free GPU session: the run saves, leaves, and goes on in the next one.
On the way the demo kills its own controller: a crash loses nothing.
Ctrl-C ends the demo: the run saves and is held; the next time, it goes on.
"""
LEAVE_SECONDS = 120.0  # for a session to save and leave, and for the controller to end
TOLD_SECONDS = 5.0  # of this wait without a word


def main() -> int:
    given = _parse()
    given.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(shutil.SameFileError):
        shutil.copy(given.config, given.home / "config.yaml")
    streams.prepare()
    sys.argv[0] = str(COMMAND)  # so that the commands to try next are shown as one can type them
    out = Output(as_json=False)
    words = ["submit", "--home", str(given.home), str(given.job), "--unless-running", "--follow"]
    words += ["--platform", given.platform] if given.platform else []
    try:
        out.say(INTRODUCTION)
        out.flush()
        with _alone(given.home) as alone, Client(home := Home.of(str(given.home))) as client:
            home.tighten()
            return _shown(Call(arguments.parse(words), client, out), alone)
    except KeyboardInterrupt:
        out.remark("\ninterrupted: what was submitted goes on by itself, and the next demo shows it")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.PIPE
    except OrchestratorError as error:
        out.remark(f"demo: {error}")
        return exit_code(error)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Trains a small model on this machine, over several sessions."
    )
    parser.add_argument("--home", type=Path, default=Path(".demo"))
    parser.add_argument("--job", type=Path, default=Path("jobs", "graphmer_demo.yaml"))
    parser.add_argument("--config", type=Path, default=ROOT / "scripts" / "demo_config.yaml")
    parser.add_argument("--platform", default="")
    return parser.parse_args()


@contextlib.contextmanager
def _alone(home: Path) -> Iterator[bool]:
    """Whether no other demo is at work in this home. Only one kills the controller."""
    with (home / "demo.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
        else:
            yield True


def _shown(call: Call, alone: bool) -> int:
    """Submits the job, shows the run until it is over, with the crash in between, and sums up. Returns when
    the controller has ended."""
    crash = Crash(call.client, allowed=alone)
    if alone:
        _release(call.client)
    try:
        code = submitting.submit(call, crash.beside)
    finally:
        crash.leave_a_controller()
    out = call.out
    if code == Exit.INTERRUPTED and alone:
        out.say("\nA demo leaves nothing running, so the run is held now: it saves, leaves and waits.")
        out.flush()
        _hold(call.client, out)
    elif code != Exit.INTERRUPTED:
        out.say()
        out.facts([("walls", crash.walls_text()), ("crash", crash.text())])
    if alone or code != Exit.INTERRUPTED:
        out.flush()
        _await_end(call.client, out)
    if code == Exit.INTERRUPTED:
        out.facts([("to go on", "make demo-docker" if call.options.platform else "make demo")])
    return code


def _release(client: Client) -> None:
    """Lets what an earlier demo held go on, because `submit` only finds it."""
    for status in client.runs():
        if status.phase is Phase.HELD:
            client.run(status.run).release()


def _hold(client: Client, out: Output) -> None:
    """Holds what is under way in the demo's home, so that its sessions and then its controller end."""
    for status in client.runs():
        try:
            client.run(status.run).hold()
        except OrchestratorError as error:  # it is over by now, or the platform gives nothing back so early
            out.remark(f"{status.run} is not held: {error}")


def _await_end(client: Client, out: Output) -> None:
    """Waits until the process of the home's last controller has ended: it is busy for some seconds after the
    end of the last run, and writes. Says so if that takes long, and leaves if it takes too long."""
    began, told = time.monotonic(), False
    while (owner := _last_owner(client)) is not None:
        with _held(owner) as held:
            if held is None:
                return
            waits = LEAVE_SECONDS if told else TOLD_SECONDS
            left = began + waits - time.monotonic()
            if select.select([held], [], [], max(0.0, left))[0]:
                continue  # look again: a controller whose config changed starts another one
        if told:
            out.remark(
                f"process {owner.pid}, the demo's controller, still runs. "
                f"`{COMMAND} --home {client.home.path} down` ends it"
            )
            return
        out.remark(f"waiting for the demo's controller (process {owner.pid}) to end; Ctrl-C leaves it")
        told = True


def _last_owner(client: Client) -> Owner | None:
    with client.ledgers.existing() as ledger:
        return ledger.owner(last=True) if ledger is not None else None


class Stage(StrEnum):
    BEFORE = "before"
    KILLED = "killed"  # no controller runs, or a new one is starting
    AFTER = "after"  # a new controller has taken over
    NONE = "none"  # another demo sees to the crash, or the kill was not possible


class Crash:
    """Kills the controller once per run, in the middle of its second session or a later one. Then it starts
    another one. The looks of the live view are its clock, so that the view never stands still."""

    def __init__(self, client: Client, *, allowed: bool) -> None:
        self._client = client
        self._mark = client.home.path / "demo.killed"  # names the run: a demo that goes on kills no more
        self._stage = Stage.BEFORE if allowed else Stage.NONE
        self._killed: Owner | None = None
        self._killed_at = 0.0  # on the looks' monotonic clock
        self._successor: subprocess.Popen[bytes] | None = None
        self._why_not = "" if allowed else "left to another `make demo`, which ran already"
        self._walls = 0

    def beside(self, look: Look, view: View) -> None:
        """Called by the live view with each look."""
        events = [stored.event for stored in look.events]
        self._walls += sum(isinstance(each, Ended) and each.outcome is Outcome.STOPPED for each in events)
        if self._stage is Stage.BEFORE and self._was_killed(look.record.run):
            self._stage = Stage.AFTER
        elif self._stage is Stage.BEFORE and self._is_moment(look):
            self._kill(look, view)
        elif self._stage is Stage.KILLED:
            self._follow_up(look, view)

    def _was_killed(self, run: str) -> bool:
        """By an earlier demo, which Ctrl-C ended."""
        return self._mark.exists() and self._mark.read_text(encoding="utf-8") == run

    def _is_moment(self, look: Look) -> bool:
        session = look.record.session
        if look.record.phase is not Phase.RUNNING or session is None or session.order.generation < 2:
            return False
        left = session.wall_at - look.now if session.wall_at is not None else SECONDS_LEFT
        return look.progress.step >= session.order.resume_step + STEPS_BEFORE and left >= SECONDS_LEFT

    def _kill(self, look: Look, view: View) -> None:
        owner = self._client.health().owner
        if owner is None or not owner.pid:
            return  # it is just starting: at one of the next looks
        view.remark(f"Now the demo kills its own controller (process {owner.pid}) with kill -9, as a crash")
        view.remark("would. The training goes on without it.")
        with _undisturbed():
            if not kill(owner, lambda: self._client.health().owner):
                self._stage, self._why_not = Stage.NONE, f"none: {owner} is not a process of this machine"
                view.remark(f"Not killed: {owner} is not a process of this machine.")
                return
            self._killed, self._killed_at, self._stage = owner, look.monotonic, Stage.KILLED
            self._mark.write_text(look.record.run, encoding="utf-8")

    def _follow_up(self, look: Look, view: View) -> None:
        owner = look.controller
        if owner is not None and owner.pid and owner != self._killed:
            self._stage = Stage.AFTER
            view.remark(f"A new controller (process {owner.pid}) has taken over where the first one stopped.")
        elif self._successor is None and look.monotonic - self._killed_at >= ALONE_SECONDS:
            view.remark("It is dead. Nobody decides anything now, so the demo starts another one.")
            self._start()

    def _start(self) -> None:
        """`orchestrator up --detach`, which Ctrl-C does not reach."""
        words = [str(COMMAND), "up", "--home", str(self._client.home.path), "--detach"]
        self._successor = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)

    def leave_a_controller(self) -> None:
        """Whatever ended the view: what was killed gets a successor before the demo leaves."""
        if self._stage is not Stage.KILLED:
            return
        if self._successor is None:
            with _undisturbed():
                self._start()
        assert self._successor is not None
        self._successor.wait()

    def walls_text(self) -> str:
        return f"crossed {count_text(self._walls, 'time')}: saved, left, and went on in the next session"

    def text(self) -> str:
        if self._stage is Stage.BEFORE:
            return "none: the run was over before its controller could be killed"
        if self._stage is Stage.NONE:
            return self._why_not
        return "the controller was killed once, by this demo; another one took over"


def kill(owner: Owner, now: Callable[[], Owner | None]) -> bool:
    """Kills this controller, and never another process: False if it is not one of this machine, or does not
    hold the ledger's lock (`now` asks for the holder)."""
    with _held(owner) as held:
        if held is None or now() != owner:
            return False
        try:
            signal.pidfd_send_signal(held, signal.SIGKILL)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _held(owner: Owner) -> Iterator[int | None]:
    """A descriptor of this controller's process; None if it is not one of this machine that runs our `up`.

    The process is held before it is looked at, so that its number cannot go to another one.
    """
    held = None
    if owner.host == socket.gethostname() and owner.pid > 1:
        with contextlib.suppress(OSError):
            held = os.pidfd_open(owner.pid)
    try:
        yield held if held is not None and _is_controller(owner.pid) else None
    finally:
        if held is not None:
            os.close(held)


def _is_controller(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"up" in words and any(word.endswith(b"orchestrator") for word in words)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Keeps Ctrl-C for later, so that it never falls between a kill and its note."""
    pressed = False

    def note(_signal: int, _frame: FrameType | None) -> None:
        nonlocal pressed
        pressed = True

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    sys.exit(main())
