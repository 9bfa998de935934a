"""A trial of one account: what it will make, how long it takes, and what it found in the end.

It spends no quota, because every session is on a cpu. It removes what it made, also when it is interrupted.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.bounds import MIB
from orchestrator.core.wording import span
from orchestrator.errors import OrchestratorError, Remedy, Transient, remedy
from orchestrator.platforms.kaggle.account import Account
from orchestrator.platforms.kaggle.options import HOUR, KaggleOptions
from orchestrator.platforms.kaggle.trial.course import Course
from orchestrator.platforms.kaggle.trial.ground import Ground, Scale
from orchestrator.platforms.kaggle.trial.record import Record, plain
from orchestrator.platforms.kaggle.trial.running import JOB, running, under_way
from orchestrator.platforms.kaggle.trial.stay import Waiting
from orchestrator.platforms.kaggle.trial.witness import Witness
from orchestrator.platforms.platform import Tried

POLL_SECONDS, REPORT_SECONDS = 15.0, 10.0
_LETTERS = string.ascii_lowercase + string.digits
Trouble = OrchestratorError | OSError  # such as a full disk


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
        self._run = f"{JOB}-{''.join(secrets.choice(_LETTERS) for _ in range(8))}"

    def intent(self) -> tuple[tuple[str, str], ...]:
        for other in sorted(under_way(self._folder)):
            text = f"{other} is under way: wait for its end, or end it with Ctrl-C where it runs"
            raise Transient(text, backend=self._name, operation="trial")
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

    def run(self, agent: Path, say: Callable[[str], None]) -> Tried:
        record = Record()

        def tell(text: str) -> None:
            with suppress(OSError):  # nobody reads it any more
                say(plain(text))

        waiting = Waiting(self._clock, self._options.poll_seconds, tell)
        with running(self._folder, self._run) as folder:
            ground = Ground(self._name, self._run, self._options, self._folder, folder, agent, self._clock,
                            self._scale, self._account, self._witness, waiting)  # fmt: skip
            course = Course(ground, record)
            trouble, interrupted = _followed(course, waiting, long=self._long)
        text = "" if trouble is None else plain(_text(trouble))
        why = "it was interrupted before" if interrupted else f"it ended early: {text}" if text else ""
        checks = record.checks(long=self._long, why=why)
        what_next = Remedy.NONE if trouble is None else remedy(trouble)
        account = self._account.client.username()
        return Tried(self._run, account, checks, record.facts(), course.left(), text, what_next, interrupted)


def _followed(course: Course, waiting: Waiting, *, long: bool) -> tuple[Trouble | None, bool]:
    """Why the course ended early, and whether it was interrupted."""

    def sessions() -> None:
        first = course.first()
        course.hand_over(first)
        course.time_out(first)
        if long:
            course.walls()

    def again() -> None:
        course.begin_again()
        course.delete_running()

    trouble, interrupted = cleared(sessions, course, waiting)
    if trouble is None and not interrupted:
        trouble, interrupted = cleared(again, course, waiting)
    course.conclude()
    return trouble, interrupted


def cleared(part: Callable[[], None], course: Course, waiting: Waiting) -> tuple[Trouble | None, bool]:
    """Follows a part of the course: why it ended early, and whether it was interrupted. What it made is
    removed in any case; only a second interruption ends that, too."""
    trouble: Trouble | None = None
    interrupted = False
    try:
        part()
    except KeyboardInterrupt:
        interrupted = True
    except (OrchestratorError, OSError) as error:
        trouble = error
        waiting.say(f"it cannot go on: {_text(error)}")
    finally:  # also after a bug
        interrupted = _clear(course, waiting, interrupted)
    return trouble, interrupted


def _text(trouble: Trouble) -> str:
    """Without the path of a file of this machine."""
    if isinstance(trouble, OSError):
        return trouble.strerror or type(trouble).__name__
    return str(trouble)


def _clear(course: Course, waiting: Waiting, interrupted: bool) -> bool:
    if interrupted:
        waiting.say("interrupted: deleting what was made; Ctrl-C again leaves it")
    try:
        course.clear()
    except KeyboardInterrupt:
        return interrupted or _clear(course, waiting, True)
    return interrupted
