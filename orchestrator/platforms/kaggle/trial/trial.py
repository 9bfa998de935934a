"""A trial of one account: what it will make, how long it takes, and what it found in the end.

It spends no quota, because every session is on a cpu. It removes what it made, also when it is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.bounds import MIB
from orchestrator.core.wording import span
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.options import HOUR, KaggleOptions
from orchestrator.platforms.kaggle.trial.assumptions import CHECKED
from orchestrator.platforms.kaggle.trial.course import Course
from orchestrator.platforms.kaggle.trial.ground import Ground, Scale
from orchestrator.platforms.kaggle.trial.witness import Witness
from orchestrator.platforms.platform import Supplies, Tried
from orchestrator.platforms.trials.conducting import Ending, cleared, new_run, teller, told
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.running import check_alone, running
from orchestrator.platforms.trials.waiting import Waiting

POLL_SECONDS, REPORT_SECONDS = 15.0, 10.0
JOB = "kaggle-trial"
PACKAGES = ("kaggle", "kagglesdk", "requests")  # installed with the platform


def scale_of(options: KaggleOptions) -> Scale:
    """In proportion to the session limit if that is below an hour, as on a local Kaggle."""
    share = min(1.0, options.session_seconds / HOUR)
    return Scale(
        step=max(0.1, 5 * share),
        save=max(0.4, 20 * share),
        timeout=max(5.0, 240 * share),
        wall=max(8.0, 600 * share),
        start=max(20.0, 1800 * share),
        late=max(10.0, 600 * share),
        payload=int(80 * MIB * share),
    )


class KaggleTrial:
    """A trial on the account of these options. `folder` is that of all trials on the platform: for Kaggle,
    they are a home of their own, so that nothing of them is taken for a run's."""

    def __init__(
        self,
        name: str,
        options: KaggleOptions,
        folder: Path,
        clock: Clock,
        *,
        long: bool,
        scale: Scale | None = None,
    ) -> None:
        self._scale = scale or scale_of(options)
        self._options = options.model_copy(update={
            "accelerators": ("cpu",),
            "hand_over_bytes": 0,
            "poll_seconds": min(options.poll_seconds, POLL_SECONDS),
            "wall_margin_seconds": min(options.wall_margin_seconds, self._scale.late),
            "report_seconds": min(options.report_seconds, REPORT_SECONDS),
        })  # fmt: skip
        self._name = name
        self._folder = folder
        self._clock = clock
        self._long = long
        self._witness = Witness(clock)
        self._account = Account(name, self._options, clock, self._witness)
        self._run = new_run(JOB)

    def intent(self) -> tuple[tuple[str, str], ...]:
        check_alone(self._folder, self._name)
        client = self._account.client
        client.quota()
        short, long = self._scale.seconds()
        count, seconds = (6, short + long) if self._long else (3, short)
        return (
            ("account", f"{client.username()} at {self._options.endpoint}"),
            ("makes", f"{count + 1} private kernels, one after the other, each with a small private dataset; "
             f"all are called {self._run}-… and are deleted at the end"),
            ("costs", f"no GPU or TPU quota: {count} CPU sessions, and one that is deleted when it runs; "
             f"about {span(seconds)} in all"),
            ("reads", "the lists of your kernels and datasets; nothing else on the account is touched"),
        )  # fmt: skip

    def run(self, supplies: Supplies, say: Callable[[str], None]) -> Tried:
        record = Record(CHECKED)
        record.fact("packages", _versions())
        waiting = Waiting(self._clock, self._options.poll_seconds, teller(say))
        with running(self._folder, self._run) as folder:
            ground = Ground(self._name, self._run, self._options, self._folder, folder, supplies.agent,
                            self._clock, self._scale, self._account, self._witness, waiting)  # fmt: skip
            course = Course(ground, record)
            ending = _followed(course, waiting, long=self._long)
        account = self._account.client.username()
        return told(self._run, account, record, ending, course.left(), long=self._long)


def _followed(course: Course, waiting: Waiting, *, long: bool) -> Ending:
    def sessions() -> None:
        first = course.first()
        course.hand_over(first)
        course.time_out(first)
        if long:
            course.walls()

    def again() -> None:
        course.begin_again()
        course.delete_running()

    ending = cleared(sessions, course, waiting)
    if ending == Ending():
        ending = cleared(again, course, waiting)
    course.conclude()
    return ending


def _versions() -> str:
    return ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES)
