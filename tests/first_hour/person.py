"""What happens to a script in its first hour: it is submitted, its machine is lost, its session ends.

Knows the run by its commands, its ledger and the session's folder, and the training by its process group.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from orchestrator.clock import SystemClock
from orchestrator.core.event import Assigned, CheckpointAccepted, Ended
from orchestrator.core.order import Order, Outcome
from tests.end_to_end.user import PATIENCE, QUICK, Role, User, wait_until
from tests.first_hour.stories import CODE, DATA, JOB, ORIGINAL, Story

# A session's limit as a multiple of what one needs to its first checkpoint, measured on this machine. The
# session is asked to leave at 0.8 of it.
LIMIT = 2.2
RAISED = 2.0  # times the limit, after a session that it ended before its first checkpoint
SOON = 10.0  # seconds until a save that is whole has become a checkpoint
_BINARIES = Path(sys.executable).parent
_HEADLINE = re.compile(r"^── s(\d+) · .* ──$", re.MULTILINE)


class Person:
    """A user with a script in a folder of their own."""

    def __init__(self, user: User, story: Story) -> None:
        self.user, self.story = user, story
        self.folder = user.folder / story.folder
        shutil.copytree(DATA / story.folder, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        self.run = ""
        self._clock = SystemClock()
        self._limit, self._fruitless = 0.0, 0

    def submit(self) -> None:
        self._since = self._clock.monotonic()
        self.run = str(self.user.answer("submit", str(self.folder / JOB))["run"])

    def retries(self, code: str) -> None:
        """With the code in this folder, until its first session is on its way."""
        before = len(self.orders())
        self.user.run("retry", self.run, "--source", str(self.folder / code))
        wait_until(lambda: len(self.orders()) > before, lambda: f"a session\n{self.user.story(self.run)}")

    def loses_the_machine(self) -> None:
        """Once the first checkpoint is safe, everything of the session is killed. Until then nobody had set a
        limit for sessions; now there is one."""
        user = self.user
        training = self._suspend()
        first = self._clock.monotonic() - self._since
        user.wait_for(self.run, lambda record: record.accepted, "a checkpoint")
        user.run("down")
        self._kill(training)
        self._sets_limit(LIMIT * first)

    def loses_the_machine_after(self, text: str) -> None:
        """Everything of the session is killed once it has printed this. On a busy machine the run may be over
        before that: `has_lost_one` tells."""

        def printed() -> bool:
            return text.encode() in self._session_log() or self.user.record(self.run).phase.final

        wait_until(printed, lambda: f"{text!r} in the log\n{self.user.story(self.run)}")
        for leader in self.user.by_role()[Role.LEADER]:
            self._kill(leader.pid)

    @property
    def has_lost_one(self) -> bool:
        return any(ending.outcome is Outcome.LOST for ending in self.endings())

    def _sets_limit(self, seconds: float) -> None:
        """Of every session from now on. The controller is down."""
        self._limit = seconds
        self.user.configure({"platforms": {"here": {**QUICK, "session_seconds": seconds}}})
        self.user.run("up", "--detach")

    def _raises_limit_if_too_short(self) -> None:
        """A machine that has become busier since the limit was measured ends a session before it could save.
        After a few of those a run is given up, so a person gives it more time."""
        fruitless = self._sessions_without_checkpoint() if self._limit else 0
        if fruitless > self._fruitless:
            self._fruitless = fruitless
            self.user.run("down")
            self._sets_limit(self._limit * RAISED)

    def _sessions_without_checkpoint(self) -> int:
        """That have ended, though their machine was not lost."""
        found, saved = 0, False
        for stored in self.user.history(self.run):
            match stored.event:
                case CheckpointAccepted():
                    saved = True
                case Ended(outcome=outcome):
                    found += not saved and outcome is not Outcome.LOST
                    saved = False
        return found

    def _kill(self, training: int) -> None:
        found = self.user.by_role()
        for process in (*found[Role.AGENT], *found[Role.GUARDIAN]):
            process.send(signal.SIGKILL)
        _signal(training, signal.SIGKILL)

    def meets_the_limit(self) -> None:
        """The next session that has made progress reaches its limit. Its training sleeps until then, which
        costs no processor, and so has more work than the limit allows on any machine."""
        training = self._suspend()
        wait_until(
            lambda: b"the session's deadline" in self._session_log(),
            lambda: f"the session's limit\n{self.user.story(self.run)}",
        )
        _signal(training, signal.SIGCONT)

    def comes_to_its_end(self) -> None:
        def ended() -> bool:
            self._raises_limit_if_too_short()
            return self.user.record(self.run).phase.final

        wait_until(ended, lambda: f"the end of {self.run}\n{self.user.story(self.run)}")
        self.user.wait_for_end(self.run)

    def _suspend(self) -> int:
        """Suspends the training once it has saved, and its session has made a checkpoint of that; returns its
        process group. A busy machine may need more than one session, or more than one save."""
        while True:
            group = self._after_a_save()
            _signal(group, signal.SIGSTOP)
            if not self._is_saving() and self._has_checkpoint_soon():
                return group
            _signal(group, signal.SIGCONT)

    def _after_a_save(self) -> int:
        """Waits until a training saves; returns its process group. A look at its files is cheap, so that a
        quick training does not go on for long."""
        while True:
            group = wait_until(self._training, lambda: f"a training\n{self.user.story(self.run)}")
            before, place = self._saves(), Path("/proc", str(group))
            wait_until(lambda: self._saves() != before or not place.exists(), "a save")  # noqa: B023
            if place.exists():
                return group

    def _training(self) -> int | None:
        """The process group of the training; None while there is none."""
        self._raises_limit_if_too_short()
        over = self.user.record(self.run).phase.final
        assert not over, f"it ended too early\n{self.user.story(self.run)}"
        return next((process.pid for process in self.user.by_role()[Role.LEADER]), None)

    def _saves(self) -> set[tuple[Path, int]]:
        found = set()
        for path in self._session().glob(f"work/source/{self.story.saves}"):
            with suppress(FileNotFoundError):
                found.add((path, path.stat().st_mtime_ns))
        return found

    def _is_saving(self) -> bool:
        """Whether the training is in the middle of a save: of a folder without the file that comes last."""
        last = Path(self.story.saves)
        folders = self._session().glob(f"work/source/{last.parent}") if self.story.is_folder else ()
        return any(not (folder / last.name).exists() for folder in folders)

    def _has_checkpoint_soon(self) -> bool:
        until = self._clock.monotonic() + SOON

        def looked() -> str | None:
            if list(self._session().glob("outbox/checkpoints/*/manifest.json")):
                return "a checkpoint"
            return "late" if self._clock.monotonic() > until else None

        return wait_until(looked, "a checkpoint, or none") == "a checkpoint"

    def _session(self) -> Path:
        """The folder of the newest session."""
        folders = sorted((self.user.home / "platforms" / "here").glob(f"{self.run}-s*"))
        return folders[-1] if folders else Path("/nonexistent")

    def _session_log(self) -> bytes:
        return b"".join(path.read_bytes() for path in sorted(self._session().glob("outbox/log/*.log")))

    # --- What became of it --------------------------------------------------------------------------------

    def orders(self) -> list[Order]:
        events = (stored.event for stored in self.user.history(self.run))
        return [event.order for event in events if isinstance(event, Assigned)]

    def endings(self) -> list[Ended]:
        events = (stored.event for stored in self.user.history(self.run))
        return [event for event in events if isinstance(event, Ended)]

    def had_nothing_left(self) -> bool:
        """The last session trained nothing: the limit came between the last checkpoint and the end."""
        last = self.orders()[-1]
        return last.resume_step == last.steps_total

    def logs(self) -> list[str]:
        """What each session has printed, as `logs` shows it."""
        return _HEADLINE.split(self.user.run("logs", self.run))[2::2]

    def told(self, text: str) -> list[int]:
        """The epochs or steps that this text tells of, each once."""
        found = re.findall(self.story.told, text, re.MULTILINE)
        return list(dict.fromkeys(round(float(number) * self.story.scale) for number in found))

    def pull(self, name: str, *words: str) -> Path:
        folder = self.user.folder / name
        self.user.run("pull", self.run, "-o", str(folder), *words)
        return folder

    def by_hand(self, code: str = CODE) -> Path:
        """The script as its author runs it, without the orchestrator and without interruption."""
        folder = self.user.folder / "by-hand"
        place = DATA / self.story.folder
        shutil.copytree(place / ORIGINAL if (place / ORIGINAL).is_dir() else place / code, folder)
        with suppress(FileNotFoundError):
            shutil.copytree(place / "data", folder / "data")
        given = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
        given |= {
            "PATH": f"{_BINARIES}{os.pathsep}{os.environ['PATH']}",
            "OMP_NUM_THREADS": str(QUICK["threads"]),
        }
        subprocess.run(
            self.story.by_hand, shell=True, cwd=folder, env=given, check=True, timeout=PATIENCE,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return folder


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def differing(names: tuple[str, ...], first: Path, *others: Path) -> list[str]:
    """Which of these files are not the same in the first folder and in one of the others."""
    return [name for name in names if not any(_same(first / name, other / name) for other in others)]


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and one.read_bytes() == other.read_bytes()
