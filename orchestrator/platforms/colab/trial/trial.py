"""A trial of one account: what it makes, what that costs, and what it found in the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.wording import count_text, span
from orchestrator.errors import AccessDenied, Transient
from orchestrator.platforms.colab import surveying
from orchestrator.platforms.colab.installing import LOCK
from orchestrator.platforms.colab.options import HOUR, ColabOptions
from orchestrator.platforms.colab.runner import Cli
from orchestrator.platforms.colab.trial.assumptions import CHECKED
from orchestrator.platforms.colab.trial.course import Course
from orchestrator.platforms.colab.trial.ground import Ground, Scale
from orchestrator.platforms.colab.values import CPU
from orchestrator.platforms.platform import Supplies, Tried
from orchestrator.platforms.trials.conducting import Ending, cleared, new_run, teller, told
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.running import check_alone, running
from orchestrator.platforms.trials.waiting import Waiting

JOB = "colab-trial"
POLL_SECONDS = 10.0


class ColabTrial:
    """A trial on the account of this command line. `folder` is that of all trials on the platform: for them
    it is a platform's folder of their own."""

    def __init__(
        self,
        name: str,
        options: ColabOptions,
        cli: Cli,
        folder: Path,
        clock: Clock,
        *,
        long: bool,
        scale: Scale | None = None,
    ) -> None:
        self._name = name
        self._options = options
        self._cli = cli
        self._folder = folder
        self._clock = clock
        self._long = long
        self._scale = scale or Scale.of(options)
        self._run = new_run(JOB)

    def intent(self) -> tuple[tuple[str, str], ...]:
        check_alone(self._folder, self._name)
        reading = self._cli.read(units=True)
        if reading.units is None:
            raise Transient("Colab did not say what the account has", backend=self._name, operation="trial")
        if not surveying.is_paid(reading.units) and not self._options.free_tier:
            text = (
                f"this account has no compute units; {surveying.FREE_TIER}. To try it, set `free_tier: true`"
            )
            raise AccessDenied(text, backend=self._name, operation="trial")
        seconds = self._scale.seconds(long=self._long)
        cost = seconds / HOUR * surveying.RATES[CPU]
        running = count_text(len(reading.assignments), "machine")
        return (
            ("account", f"{reading.units.balance:.1f} compute units; {running} of yours running"),
            ("makes", f"2 machines without an accelerator, one after the other, called {self._run}-…; both "
             "are given back"),
            ("sends", "what opens your home store to the second machine, as each session gets it; the few kB "
             "that come from there are removed"),
            ("costs", f"about {cost:.3f} compute units; about {span(seconds)} in all"),
            ("reads", "the list of your machines, and your units; no other machine is touched"),
        )  # fmt: skip

    def run(self, supplies: Supplies, say: Callable[[str], None]) -> Tried:
        record = Record(CHECKED)
        record.fact("command line", _version())
        waiting = Waiting(self._clock, min(self._options.poll_seconds, POLL_SECONDS), teller(say))
        with running(self._folder, self._run) as folder:
            ground = Ground(self._name, self._run, self._options, self._folder, folder, supplies, self._clock,
                            self._scale, self._cli, waiting)  # fmt: skip
            course = Course(ground, record)
            ending = cleared(lambda: course.cells(long=self._long), course, waiting)
            if ending == Ending():
                ending = cleared(course.session, course, waiting)
        return told(self._run, "", record, ending, course.left(), long=self._long)


def _version() -> str:
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return next((line.split()[0] for line in lines if line.startswith("google-colab-cli")), "unknown")
