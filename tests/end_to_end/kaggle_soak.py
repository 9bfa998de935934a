"""A Kaggle in bad weather: `python -m tests.end_to_end.kaggle_soak --minutes 30 --seed N`.

Each round submits a few small runs to a real controller and a local Kaggle, on which any request may fail and
every wart comes and goes at random; sessions are cancelled and die, and the controller is killed or stopped
and started again. After a while the weather calms. Then every run must have finished, with the same bytes as
an uninterrupted training and without the losses that kaggle_checks.py lists.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import mkdtemp

from orchestrator.clock import SystemClock
from orchestrator.core.event import Assigned, Ended, Faulted
from tests.end_to_end import kaggle_checks, kaggle_weather
from tests.end_to_end.user import ROOT, User, fingerprints, train_in_one_piece, wait_until
from tests.stand_ins.kaggle import LocalKaggle, Warts, local_kaggle

SCRIPT, STEPS, STEP_SECONDS = "train.py", 120, 0.15  # three sessions or more
RUNS = 8
STORM_SECONDS, CALM_SECONDS = 60.0, 240.0  # the latter for a machine that others use as well
PAUSE_SECONDS = 2.5  # at most, between two changes
RESTARTS = 0.1  # the share of changes at which the controller ends; it counts anew how long it has waited
_PROFILE = {"micro_batch": 8, "precision": "fp32"}


@dataclass
class Figures:
    """What a soak met. `counts`: requests, faults, sessions and so on; `ends`: how sessions ended."""

    counts: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    weather: Counter[str] = field(default_factory=Counter)

    def counted(self) -> str:
        return ", ".join(f"{count:,} {name}" for name, count in self.counts.items())

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {name}" for name, count in self.ends.most_common())
        weather = ", ".join(f"{count} {name}" for name, count in self.weather.most_common())
        return f"{self.counted()}\n  sessions ended: {ends}\n  changes of the weather: {weather}"


@dataclass
class Plan:
    """The size of each round. `expected`: fingerprints of an uninterrupted training of so many `steps`."""

    runs: int = RUNS
    steps: int = STEPS
    storm_seconds: float = STORM_SECONDS
    expected: dict[str, str] = field(default_factory=dict)


class Hurried:
    """The controller of a user's home, as a process that can be killed at any moment."""

    def __init__(self, user: User) -> None:
        self._user = user
        self._log = (user.folder / "controller.log").open("ab")
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.end_to_end.quick_controller", str(self._user.home)]
        return subprocess.Popen(command, cwd=ROOT, stdout=self._log, stderr=self._log)

    def end(self, number: signal.Signals) -> None:
        self.process.send_signal(number)
        self.process.wait()

    def again(self, number: signal.Signals) -> None:
        self.end(number)
        self.process = self._start()

    def close(self) -> None:
        self.end(signal.SIGKILL)
        self._log.close()


class Round:
    """One local Kaggle, one user, one controller, some runs."""

    def __init__(self, folder: Path, random: Random, plan: Plan, figures: Figures) -> None:
        self._folder = folder
        self._plan = plan
        self._random = random
        self._figures = figures
        self._clock = SystemClock()

    def play(self) -> list[str]:
        """What went wrong, in sentences; empty if nothing did."""
        with ExitStack() as stack:
            settings = kaggle_weather.settings(self._random)
            kaggle = stack.enter_context(local_kaggle(self._folder / "kaggle", settings, Warts()))
            user = User(self._folder / "user")
            stack.callback(user.close)
            (user.folder / "key").write_text(settings.key)
            options = {"endpoint": kaggle.url, "key_file": str(user.folder / "key")}
            user.configure({"platforms": {"kaggle": {**kaggle_weather.OPTIONS, **options}}})
            controller = Hurried(user)
            stack.callback(controller.close)
            wait_until(lambda: _is_up(user, controller), "the controller")
            names = [self._submit(user) for _ in range(self._plan.runs)]
            weather = kaggle_weather.Weather(kaggle, self._random, self._clock)
            self._storm(user, controller, weather, names)
            weather.calm()
            found = self._finish(user, controller, names)
            found += self._judge(user, kaggle, names, hid=weather.hid)
            self._figures.weather += weather.seen
            return found

    def _submit(self, user: User) -> str:
        return user.submit(
            name="soak",
            command=f"python {SCRIPT} {{steps}} --pause {STEP_SECONDS}",
            work={"total": self._plan.steps, "global_batch": 8},
            profiles={each: dict(_PROFILE) for each in ("cpu", "T4")},
            checkpoint={"interval": "1s", "keep": {"last": 2}},
            retry={"without_progress": 1000},
        )

    def _storm(
        self, user: User, controller: Hurried, weather: kaggle_weather.Weather,
        names: list[str],
    ) -> None:  # fmt: skip
        ends, never = self._clock.monotonic() + self._plan.storm_seconds, threading.Event()
        while self._clock.monotonic() < ends and not all(_is_over(user, name) for name in names):
            weather.change()
            if self._random.random() < RESTARTS:
                weather.seen["controller"] += 1
                controller.again(self._random.choice([signal.SIGTERM, signal.SIGKILL]))
            self._clock.wait(never, self._random.uniform(0.3, PAUSE_SECONDS))

    def _finish(self, user: User, controller: Hurried, names: list[str]) -> list[str]:
        """Waits for the end of every run; returns which of them do not end."""

        def over() -> bool:
            assert controller.process.poll() is None, "the controller has left"
            return all(_is_over(user, name) for name in names)

        try:
            wait_until(over, "the end of all runs", CALM_SECONDS)
        except AssertionError as error:
            late = [name for name in names if not _is_over(user, name)]
            return [f"{error}: {name} is {user.record(name).standing}: {user.record(name).standing_reason}"
                    for name in late]  # fmt: skip
        return []

    def _judge(self, user: User, kaggle: LocalKaggle, names: list[str], *, hid: bool) -> list[str]:
        found = list(kaggle.bugs)
        for name in names:
            history = [stored.event for stored in user.history(name)]
            pushed = [each for each in kaggle.sessions if kaggle_checks.session_of(each)[0] == name]
            found += kaggle_checks.violations(name, history, pushed, hid=hid)
            if user.record(name).phase.final:
                user.run("pull", name, "-o", str(self._folder / name))
                differs = fingerprints(self._folder / name) != self._plan.expected
                found += [f"{name} differs from an uninterrupted training"] * differs
            self._figures.counts["runs"] += 1
            self._figures.counts["assignments"] += sum(isinstance(event, Assigned) for event in history)
            self._figures.counts["holds that ended by themselves"] += sum(
                isinstance(event, Faulted) and bool(event.awaits) for event in history
            )
            self._figures.ends.update(event.outcome.value for event in history if isinstance(event, Ended))
        published = [kaggle_checks.committed(each.published) for each in kaggle.sessions]
        self._figures.counts.update(
            {
                "sessions": sum(each.has_started for each in kaggle.sessions),
                "checkpoints published": sum(map(len, published)),
                "requests": len(kaggle.calls),
                "faults": kaggle.faults_shown,
                "kernels left over": sum(each.deleted_in is None for each in kaggle.sessions),
            }
        )
        return found


def _is_up(user: User, controller: Hurried) -> bool:
    assert controller.process.poll() is None, (user.folder / "controller.log").read_text()
    return (user.home / "ledger.sqlite").exists() and "has taken over" in (
        user.folder / "controller.log"
    ).read_text()


def _is_over(user: User, run: str) -> bool:
    record = user.record(run)
    return record.phase.final and not record.strays


def soak(
    folder: Path, seed: str, plan: Plan, figures: Figures, *, rounds: int = 1, minutes: float = 0.0
) -> list[str]:
    """Plays at least so many rounds, and for so long. Returns what the first bad round did wrong, and keeps
    its folder."""
    plan.expected = train_in_one_piece(folder / "uninterrupted", SCRIPT, plan.steps)
    clock = SystemClock()
    ends, number = clock.monotonic() + 60.0 * minutes, 0
    while number < rounds or clock.monotonic() < ends:
        place = folder / f"round-{number}"
        found = Round(place, Random(f"{seed} {number}"), plan, figures).play()
        figures.counts["rounds"] += 1
        if found:
            return [f"seed {seed}, round {number}: {text}" for text in found]
        shutil.rmtree(place)
        number += 1
        sys.stdout.write(f"{figures.counted()}\n")
        sys.stdout.flush()
    return []


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.kaggle_soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rounds", type=int, default=1, help="at least so many")
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through the calls that end the processes
    os.environ["ORCHESTRATOR_NO_PRODUCTION"] = "1"
    folder, figures = Path(mkdtemp(prefix="kaggle-soak-")), Figures()
    found = soak(folder, options.seed, Plan(), figures, rounds=options.rounds, minutes=options.minutes)
    sys.stdout.write(f"{figures}\n")
    if found:
        told = "\n  ".join(found)
        sys.stdout.write(f"FAILED:\n  {told}\nEverything of the failed round is in {folder}\n")
        return 1
    shutil.rmtree(folder)
    sys.stdout.write(f"seed {options.seed}: nothing lost, nothing twice, nothing held without need\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
