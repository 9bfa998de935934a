"""The course of a rehearsal: which legs are run, and what they say about the job.

A job with `{steps}` in its command is shortened, so that all of this takes a minute. Any other runs until it
has saved a few times. Judges nothing itself that `comparing` or `contents` judge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from orchestrator.core.job import Job
from orchestrator.core.order import EndAt, Outcome
from orchestrator.rehearsal import contents
from orchestrator.rehearsal.comparing import Lost, Resumption, differing, resumption, unseeded
from orchestrator.rehearsal.legs import Ground, Leg

_WHOLE_SAVES = 4  # of a training that cannot be shortened: one each to stop, to kill and to compare at
_STEPS_FACTOR, _STEPS_MORE = 4, 8


class Grade(StrEnum):
    """How exactly the job resumes, from the best to the worst."""

    BITWISE = "bitwise"  # the checkpoint is the same to the last bit
    STATE_EXACT = "state-exact"  # every state came back; last bits of the results differ
    NOT_EXACT = "not exact"  # something was not restored
    UNKNOWN = "unknown"  # there is nothing to compare
    NOT_RESUMABLE = "not resumable"  # no checkpoint


@dataclass(frozen=True)
class Finding:
    """Something that a rehearsal found: `what` in a word, the details, and what to do about it."""

    what: str
    text: str
    advice: str = ""


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal found. `steps`: the step at which the checkpoints were compared; None if none was."""

    grade: Grade
    findings: tuple[Finding, ...]
    legs: tuple[Leg, ...]
    steps: int | None = None

    @property
    def exact(self) -> bool:
        return self.grade in (Grade.BITWISE, Grade.STATE_EXACT)


ADVICE = {
    Lost.EVERYTHING: "load the checkpoint: pass {resume} in the command, or read ORCHESTRATOR_RESUME_FROM",
    Lost.WEIGHTS: "save and load the whole model.state_dict()",
    Lost.OPTIMIZER: "save and load optimizer.state_dict(), the scheduler's and the scaler's",
    Lost.DATA: "save the place in the epoch and its shuffle: `training.loader(…)` does (docs/training.md)",
    Lost.RANDOM: "save and load the random states, or let `orchestrator.training` do it (docs/training.md)",
}
_TEXTS = {
    Lost.EVERYTHING: "the resumed training began from the start",
    Lost.WEIGHTS: "the resumed training began with weights that the uninterrupted one never had",
    Lost.OPTIMIZER: "the optimizer began with another state, such as its momentum or learning rate",
    Lost.DATA: "the resumed training saw other samples",
    Lost.RANDOM: "the random numbers went another way",
}


def rehearse(ground: Ground, job: Job, steps: int | None) -> Rehearsed:
    """Runs the legs. `steps`: how many to train; None: as many as take a few seconds."""
    shortens = any("{steps}" in word for word in job.command)
    total = job.work.total if steps is None else steps
    if shortens and steps is None:
        ground.say("how fast it trains and saves…")
        first = ground.leg("pace", job.work.total, EndAt(1))
        if first.newest is None:
            return _not_resumable(ground, first)
        reached = max(1, first.newest.ref.step)
        total = min(job.work.total, max(_STEPS_FACTOR * reached, reached + _STEPS_MORE))
    ground.say(f"{total:,} steps without interruption…" if shortens else "without interruption…")
    whole = ground.leg("whole", total, None if shortens else EndAt(_WHOLE_SAVES))
    if whole.newest is None:
        return _not_resumable(ground, whole)
    ground.say("the same, stopped at its first checkpoint…")
    stopped = ground.leg("stopped", total, EndAt(1))
    if stopped.newest is None:
        return _not_resumable(ground, stopped)
    ground.say(f"resumed at step {stopped.newest.ref.step:,}, and killed at the next checkpoint…")
    killed = ground.leg("killed", total, EndAt(1, killed=True), stopped)
    before = killed if killed.newest is not None else stopped
    assert before.newest is not None
    ground.say(f"resumed at step {before.newest.ref.step:,}, to the end…")
    resumed = ground.leg("resumed", total, None if shortens else EndAt(_WHOLE_SAVES), before)
    return _judged(ground, whole, stopped, (killed, resumed))


def _not_resumable(ground: Ground, leg: Leg) -> Rehearsed:
    crashed = leg.result is not None and leg.result.outcome is Outcome.CRASHED
    told = "; ".join(leg.warnings) or leg.how
    finding = Finding("no checkpoint", told, "" if leg.warnings else "see docs/any-script.md")
    if crashed and not leg.late:
        finding = Finding("crash", _with_tail(leg))
    return Rehearsed(Grade.NOT_RESUMABLE, (finding,), tuple(ground.legs))


def _with_tail(leg: Leg) -> str:
    tail = "" if leg.result is None else leg.result.tail
    return f"{leg.how}\n{tail}".rstrip()


def _judged(ground: Ground, whole: Leg, stopped: Leg, resumed: tuple[Leg, ...]) -> Rehearsed:
    findings = [*_torn(ground), *_crashed(resumed)]
    random = unseeded(whole.trace, stopped.trace)
    if random:
        findings.append(Finding(
            "not reproducible", f"two trainings from the start differ in {', '.join(random)}",
            "set every seed before anything is drawn",
        ))  # fmt: skip
    found = _resumptions(whole, resumed)
    lost = tuple(dict.fromkeys(what for each in found for what in each.lost))
    findings += [_lost(what, whole, resumed, found) for what in lost]
    steps = frozenset(step for leg in resumed for step in leg.steps) & whole.steps
    if not steps:
        why = "the interrupted training saved at no step at which the uninterrupted one did"
        findings.append(Finding("nothing to compare", why, "put {steps} into the command, or give --steps"))
        grade = Grade.NOT_EXACT if lost or _crashed(resumed) else Grade.UNKNOWN
        return Rehearsed(grade, tuple(findings), tuple(ground.legs))
    at = max(steps)
    different = _differences(
        ground.folder, whole, next(leg for leg in reversed(resumed) if at in leg.steps), at
    )
    if different:
        findings.append(Finding("differs", f"at step {at:,}: {contents.told(different)}"))
    return Rehearsed(_grade(different, found, lost, random), tuple(findings), tuple(ground.legs), at)


def _resumptions(whole: Leg, resumed: tuple[Leg, ...]) -> list[Resumption]:
    """What each leg got back, up to the first that lost something: after it the trainings differ anyway."""
    found: list[Resumption] = []
    for leg in resumed:
        if found and found[-1].lost:
            break
        there = resumption(whole.trace, leg.trace)
        found += [] if there is None else [there]
    return found


def _grade(
    different: list[contents.Difference],
    found: list[Resumption],
    lost: tuple[Lost, ...],
    random: tuple[str, ...],
) -> Grade:
    if not different and Lost.EVERYTHING not in lost:
        return Grade.BITWISE
    restored = bool(found) and not lost
    return Grade.STATE_EXACT if restored and not random else Grade.NOT_EXACT


def _lost(what: Lost, whole: Leg, resumed: tuple[Leg, ...], found: list[Resumption]) -> Finding:
    text = _TEXTS[what]
    if what is Lost.DATA and any(each.begins_again for each in found):
        text += ": the epoch began again"
    if what is Lost.RANDOM:
        for leg in resumed:
            there = resumption(whole.trace, leg.trace)
            if there is not None and there.at is not None:
                names = differing(whole.trace, whole.trace[there.at], leg.trace[0])
                text = f"{_TEXTS[what]}: {', '.join(names)}" if names else text
                break
    return Finding(f"{what.value} lost" if what is not Lost.EVERYTHING else "starts over", text, ADVICE[what])


def _torn(ground: Ground) -> Iterator[Finding]:
    for leg in ground.legs:
        for manifest in leg.manifests:
            target = ground.folder / f"{leg.session}-torn-{manifest.ref.step}"
            files = contents.torn(leg.laid_out(manifest.ref.step, target))
            if files:
                yield Finding(
                    "torn files",
                    f"the checkpoint of step {manifest.ref.step:,} has incomplete files: {', '.join(files)}",
                    "write under a temporary name and rename it (docs/training-contract.md)",
                )
                return


def _crashed(resumed: tuple[Leg, ...]) -> list[Finding]:
    for leg in resumed:
        if leg.result is not None and leg.result.outcome is Outcome.CRASHED and leg.name == "resumed":
            return [Finding("crash", f"the resumed training failed: {_with_tail(leg)}")]
    return []


def _differences(folder: Path, whole: Leg, resumed: Leg, step: int) -> list[contents.Difference]:
    one = whole.laid_out(step, folder / "compared-whole")
    other = resumed.laid_out(step, folder / "compared-resumed")
    return contents.differences(one, other)
