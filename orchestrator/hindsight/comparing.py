"""Then and now: what a recording says, the same played again as it was, and played with another config.

Pure. The play under the recorded config says how far a play may be believed: its difference from what
happened is the error that stands beside every other result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from orchestrator.core.wording import count_text, span
from orchestrator.hindsight.offering import SILENT_SECONDS, Setting
from orchestrator.hindsight.playing import AFTER_SECONDS_MIN, Played, play
from orchestrator.hindsight.reading import REFUSED_SECONDS
from orchestrator.hindsight.recording import Place, RecordedRun, Recording


@dataclass(frozen=True)
class Compared:
    """One run, from `begins_at` on: what happened, the same played again, and what would have happened."""

    run: str
    begins_at: float
    done: bool
    then: Played
    again: Played
    supposed: Played

    @property
    def error(self) -> float | None:
        """By which share of its time the play of the recorded config misses the recorded finish."""
        if self.then.reached_at is None or self.again.reached_at is None:
            return None
        taken = self.then.reached_at - self.begins_at
        return abs(self.again.reached_at - self.then.reached_at) / taken if taken > 0 else 0.0


@dataclass(frozen=True)
class Totals:
    """Of all runs together: how many did their work, their mean time until then, when the last had, the mean
    wait, and the seconds in sessions by place."""

    finished: int
    mean_seconds: float | None
    last_at: float | None
    mean_waited: float
    seconds: Mapping[Place, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """`assumed` says in sentences what the plays take for granted. `unread` and `idle` runs are left out."""

    since: float
    until: float
    runs: tuple[Compared, ...]
    then: Totals
    again: Totals
    supposed: Totals
    assumed: tuple[str, ...]
    unread: Mapping[str, str] = field(default_factory=dict)
    idle: tuple[str, ...] = ()

    @property
    def errors(self) -> tuple[float, ...]:
        """Of each run whose finish can be compared, in no order."""
        return tuple(each.error for each in self.runs if each.error is not None)

    @property
    def error_median(self) -> float | None:
        return median(self.errors) if self.errors else None

    @property
    def error_of_mean(self) -> float | None:
        """By which share the mean time of all runs is missed, with its sign."""
        then, again = self.then.mean_seconds, self.again.mean_seconds
        return None if not then or again is None else again / then - 1.0


def compare(
    recording: Recording,
    setting: Setting,
    assumed: Sequence[str] = (),
    progress: Callable[[str, int], None] | None = None,
) -> Comparison:
    """Plays the recording as it was, and with the setting. `progress` is called with what is played, and how
    many runs are over."""
    said = progress or (lambda _what, _count: None)
    again = play(recording, Setting.recorded(recording), lambda count: said("as it was", count))
    supposed = play(recording, setting, lambda count: said("with the other config", count))
    then = [happened(run) for run in recording.runs]
    runs = tuple(
        Compared(run.run, run.begins_at, run.done, *each)
        for run, *each in zip(recording.runs, then, again, supposed, strict=True)
    )
    return Comparison(
        recording.since, recording.until, runs,
        _totals(recording.runs, then), _totals(recording.runs, again), _totals(recording.runs, supposed),
        (*_assumed(recording), *_guessed(supposed), *assumed), recording.unread, recording.idle,
    )  # fmt: skip


def happened(run: RecordedRun) -> Played:
    """What the journal says came of a run."""
    seconds: dict[Place, float] = {}
    waited, free_since = 0.0, run.begins_at
    for visit in sorted(run.visits, key=lambda each: each.assigned_at):
        waited += _less_pauses(run, free_since, visit.assigned_at)
        free_since = max(free_since, visit.closed_at)
        seconds[visit.place] = seconds.get(visit.place, 0.0) + visit.ran
    return Played(run.run, run.reached_at, run.goal_step, waited, len(run.visits), seconds)


def _less_pauses(run: RecordedRun, since: float, until: float) -> float:
    paused = sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in run.pauses)
    return max(0.0, until - since - paused)


def _totals(runs: Iterable[RecordedRun], played: Iterable[Played]) -> Totals:
    pairs = list(zip(runs, played, strict=True))
    taken = [each.reached_at - run.begins_at for run, each in pairs if each.reached_at is not None]
    seconds: dict[Place, float] = {}
    for _, each in pairs:
        for place, several in each.seconds.items():
            seconds[place] = seconds.get(place, 0.0) + several
    return Totals(
        len(taken),
        sum(taken) / len(taken) if taken else None,
        max((each.reached_at for _, each in pairs if each.reached_at is not None), default=None),
        sum(each.waited for _, each in pairs) / len(pairs) if pairs else 0.0,
        seconds,
    )


def _assumed(recording: Recording) -> tuple[str, ...]:
    after = max(AFTER_SECONDS_MIN, recording.until - recording.since)
    readings = count_text(len(recording.readings), "decision")
    said = [
        "each run stops when it has done the work that it did in the recorded time, however it ended then",
        "sessions go as those of the same run on the same accelerator did, else as those of the same job or "
        "of others there; losses come as often, and in the same order",
        f"what was on offer is known from {readings}: between two of them the earlier one holds",
        f"a platform that gave no answer answers again after {span(SILENT_SECONDS)}, and one that refused a "
        f"session for want of capacity takes one again after {span(REFUSED_SECONDS)} at most",
        f"after the recorded time the last offers hold, for at most {span(after)} more",
    ]
    if recording.rules_changed:
        said.append(
            f"the config's rules changed {recording.rules_changed} times in the recorded time: where it is "
            "played again, the newest hold all the time"
        )
    return tuple(said)


def _guessed(played: Iterable[Played]) -> tuple[str, ...]:
    """Where speeds are guesses."""
    runs: dict[str, int] = {}
    for each in played:
        for accelerator in each.guessed:
            runs[accelerator] = runs.get(accelerator, 0) + 1
    return tuple(
        f"the speed of {count_text(count, 'run')} on {accelerator} was never recorded, and is estimated"
        for accelerator, count in runs.items()
    )
