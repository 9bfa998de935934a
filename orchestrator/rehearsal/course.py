"""The course of a rehearsal: which legs are run, and how many steps they train.

A job with `{steps}` in its command is shortened, so that all of this takes a minute. Any other runs until it
has saved a few times. Must never know what the legs mean: `judging` says that.
"""

from __future__ import annotations

from orchestrator.core.job import Job
from orchestrator.core.order import EndAt
from orchestrator.rehearsal import judging
from orchestrator.rehearsal.judging import Rehearsed
from orchestrator.rehearsal.legs import Ground, Leg

_WHOLE_SAVES = 4  # of a training that cannot be shortened: one each to stop, to kill and to compare at
_STEPS_FACTOR, _STEPS_MORE = 4, 8
_PASSES = 3  # over the data: only a resume in the second shows whether that has its own order
_PASSES_SECONDS = 10.0  # what these may take
_SAVES_AFTER = 2  # the stop: one to kill at, and one to compare at


def rehearse(ground: Ground, job: Job, steps: int | None) -> Rehearsed:
    """Runs the legs. `steps`: how many to train; None: as many as take a few seconds."""
    shortens = any("{steps}" in word for word in job.command)
    total = job.work.total if steps is None else steps
    if shortens and steps is None:
        ground.say("how fast it trains and saves…")
        numbered = judging.is_numbered(job)
        first = _paced(ground, total, numbered=numbered)
        if first.newest is None:
            return judging.without_checkpoint(ground, first)
        reached = _reached(first, numbered=numbered)
        if reached is None:
            return judging.of_unknown_length(ground)
        total = min(total, _steps(first, reached))
    end = None if shortens else EndAt(_WHOLE_SAVES)
    ground.say(f"{total:,} steps without interruption…" if shortens else "without interruption…")
    whole = ground.leg("whole", total, end)
    if whole.newest is None:
        return judging.without_checkpoint(ground, whole)
    if len(whole.steps) == 1 and whole.completed:
        return judging.saved_once(ground)
    stopped = _stopped(ground, whole, total)
    if stopped.newest is None:
        return judging.without_checkpoint(ground, stopped)
    if judging.is_over(job, stopped, whole):
        return judging.too_short(ground)
    ground.say(f"resumed at step {stopped.newest.ref.step:,}, and killed at its next checkpoint…")
    killed = ground.leg("killed", total, EndAt(1, killed=True), stopped)
    if killed.completed or judging.has_lost(whole, killed):  # more would show nothing more
        return judging.judged(ground, whole, stopped, (killed,))
    before = killed if killed.newest is not None else stopped
    assert before.newest is not None
    ground.say(f"resumed at step {before.newest.ref.step:,}, to the end…")
    resumed = ground.leg("resumed", total, end, before)
    return judging.judged(ground, whole, stopped, (killed, resumed))


def _stopped(ground: Ground, whole: Leg, total: int) -> Leg:
    """Stopped by SIGTERM. One that goes on to its end in spite of that is killed instead."""
    saves = _stops_after(whole)
    ground.say(f"the same, stopped at checkpoint number {saves}…")
    leg = ground.leg("stopped", total, EndAt(saves))
    if not judging.is_over(ground.job, leg, whole):
        return leg
    ground.say("the same, killed there, because it did not stop…")
    return ground.leg("stopped", total, EndAt(saves, killed=True))


def _paced(ground: Ground, total: int, *, numbered: bool) -> Leg:
    """Up to the first checkpoint after step 0, where some save what they begin with."""
    first = ground.leg("pace", total, EndAt(1))
    if numbered and first.newest is not None and first.newest.ref.step == 0:
        first = ground.leg("pace", total, EndAt(2))
    return first


def _reached(first: Leg, *, numbered: bool) -> int | None:
    """How many steps it did; None if nothing tells."""
    assert first.newest is not None
    if numbered:
        return max(1, first.newest.ref.step)
    reported = None if first.result is None else first.result.reached
    return len(first.trace) or reported


def _steps(first: Leg, reached: int) -> int:
    """Enough for a few checkpoints, and for several passes over the data if that costs little."""
    enough = max(_STEPS_FACTOR * reached, reached + _STEPS_MORE)
    batches = max((seen.batches for seen in first.trace), default=0)
    affordable = _PASSES_SECONDS * len(first.trace) / max(first.seconds, 0.1)
    return max(enough, _PASSES * batches) if _PASSES * batches <= affordable else enough


def _stops_after(whole: Leg) -> int:
    """After how many checkpoints to stop: in the second pass over the data, if enough of them follow. Never
    at step 0, where nothing could be lost."""
    steps = sorted(whole.steps)
    last = len(steps) - _SAVES_AFTER
    begin = 2 if steps[0] == 0 else 1
    trace = [seen for seen in whole.trace if seen.rank == 0]
    if steps[-1] <= len(trace):  # the checkpoints are numbered by the optimizer's steps
        for count in range(begin, last + 1):
            if trace[max(0, steps[count - 1] - 1)].passes > trace[0].passes:
                return count
    return begin
