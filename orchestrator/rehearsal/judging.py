"""What the legs of a rehearsal say about the job: a grade, and a finding with a remedy for each fault.

Grades from the worst up, and says so where something cannot be known: "bitwise" needs the same checkpoint,
nothing lost, and a sign that the resumed training read what it was to resume. Must never run anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from orchestrator.core.job import Job
from orchestrator.core.order import Outcome
from orchestrator.core.save_pattern import SavePattern
from orchestrator.core.wording import help_page
from orchestrator.files import remove_tree
from orchestrator.rehearsal import contents
from orchestrator.rehearsal.comparing import Lost, Resumption, drifts, resumptions, same_inputs, unseeded
from orchestrator.rehearsal.contents import Difference
from orchestrator.rehearsal.legs import Ground, Leg


class Exactness(StrEnum):
    """How exactly the job resumes, from the best to the worst."""

    BITWISE = "bitwise"  # the checkpoint is the same to the last bit
    STATE_EXACT = "state-exact"  # every state came back; last bits of the results differ
    NOT_EXACT = "not exact"  # something was not restored
    UNKNOWN = "unknown"  # it cannot be told
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

    grade: Exactness
    findings: tuple[Finding, ...]
    legs: tuple[Leg, ...]
    steps: int | None = None

    @property
    def exact(self) -> bool:
        return self.grade in (Exactness.BITWISE, Exactness.STATE_EXACT)


@dataclass(frozen=True)
class Compared:
    """Two checkpoints of the same step, and what differs between them; `at` is None if there are none.
    `varying`: what differs between any two trainings from the start."""

    at: int | None
    different: tuple[Difference, ...] = ()
    varying: tuple[Difference, ...] = ()

    @property
    def counts(self) -> list[Difference]:
        return contents.without(self.different, self.varying)

    @property
    def always_differs(self) -> bool:
        """Whether all that differs does so between any two trainings."""
        return {each.kind for each in self.different} <= {each.kind for each in self.varying}


_HELPER = help_page("training")
ADVICE = {
    Lost.EVERYTHING: "load the checkpoint: pass {resume} in the command, or read ORCHESTRATOR_RESUME_FROM",
    Lost.WEIGHTS: "save and load the whole model.state_dict(), of every model",
    Lost.OPTIMIZER: "save and load optimizer.state_dict(), of every optimizer",
    Lost.STATE: "save and load their state_dict() too",
    Lost.DATA: "save the place in the epoch and its shuffle, as `training.loader(…)` does, or the random "
    f"states if the data are drawn from them ({_HELPER})",
    Lost.RANDOM: f"save and load the random states, or let `orchestrator.training` do it ({_HELPER})",
}
_TEXTS = {
    Lost.EVERYTHING: "the resumed training began from the start",
    Lost.WEIGHTS: "the resumed training began with weights that the uninterrupted one never had",
    Lost.OPTIMIZER: "the optimizer began with another state, such as its momentum or learning rate",
    Lost.STATE: "what else has a state began with another one",
    Lost.DATA: "the resumed training saw other samples",
    Lost.RANDOM: "the random numbers went another way",
}
_WORDS = {Lost.EVERYTHING: "starts over"}
_PAGE = help_page("any-script")  # the agent says the same


def is_numbered(job: Job) -> bool:
    """Whether the step of a checkpoint is the training's own count, not ours."""
    watch = job.checkpoint.watch
    return watch is None or SavePattern.parse(watch).numbered


def is_over(job: Job, leg: Leg, whole: Leg) -> bool:
    """Whether a leg that was to be interrupted did all that the uninterrupted one did, so nothing is left for
    the next. Of a quick training not every save is taken."""
    saves = leg.completed and len(leg.steps) >= len(whole.steps)
    return saves or (is_numbered(job) and max(leg.steps, default=-1) >= max(whole.steps))


def without_checkpoint(ground: Ground, leg: Leg) -> Rehearsed:
    """The judgement if a training that began from the start left no checkpoint."""
    if _has_crashed(leg):
        finding = Finding("crash", _with_tail(leg))
    elif leg.warnings:
        finding = Finding("no checkpoint", "; ".join(leg.warnings))
    elif leg.late:
        told = f"it saved none within {ground.patience:g} s, and was stopped"
        finding = Finding("no checkpoint", told, "save earlier, or give it more time with --patience")
    else:
        finding = Finding("no checkpoint", leg.how, "" if _PAGE in leg.how else f"see {_PAGE}")
    return Rehearsed(Exactness.NOT_RESUMABLE, (finding,), tuple(ground.legs))


def saved_once(ground: Ground) -> Rehearsed:
    """The judgement if a training saved only at its end, so that it could not be interrupted before."""
    finding = Finding(
        "saves once",
        "its only checkpoint is that of its end: a session that ends earlier loses all",
        "save every so many steps; or rehearse more steps, with --steps N",
    )
    return Rehearsed(Exactness.UNKNOWN, (finding, *_torn(ground)), tuple(ground.legs))


def too_short(ground: Ground) -> Rehearsed:
    """The judgement if a training was at its end before it could be interrupted."""
    finding = Finding(
        "too short", "it was at its end before it could be interrupted", "rehearse more steps, with --steps N"
    )
    return Rehearsed(Exactness.UNKNOWN, (finding, *_torn(ground)), tuple(ground.legs))


def of_unknown_length(ground: Ground) -> Rehearsed:
    """The judgement if nothing tells how many steps lie between two checkpoints."""
    finding = Finding(
        "unknown pace",
        "its checkpoints have no step in their name, and it reports none",
        "say how many steps to rehearse, with --steps N; or save as ckpt_{step}",
    )
    return Rehearsed(Exactness.UNKNOWN, (finding,), tuple(ground.legs))


def judged(ground: Ground, whole: Leg, stopped: Leg, resumed: tuple[Leg, ...]) -> Rehearsed:
    """The judgement of a course that was run to its end. `resumed`: the legs after `stopped`, in order."""
    evidence = _evidence(ground, whole, stopped, resumed)
    grade = evidence.grade
    findings = (
        *evidence.torn,
        *evidence.crashed,
        *evidence.not_reproducible,
        *(_lost(what, evidence.found) for what in evidence.lost),
        *(() if evidence.crashed else _of_comparison(evidence)),
        *(() if evidence.crashed else unseen(evidence, grade)),
    )
    return Rehearsed(grade, findings, tuple(ground.legs), evidence.compared.at)


def has_lost(whole: Leg, resumed: Leg) -> bool:
    """Whether a witness saw that a resumed leg did not get something back."""
    return any(each.lost for each in resumptions(whole.trace, resumed.trace))


@dataclass(frozen=True)
class Evidence:
    """All that the legs show. `unseeded`: what differs when two trainings begin. `drifts`: two trainings from
    the start come apart. `found`: what the resumed legs got back, if a witness saw it."""

    whole: Leg
    resumed: tuple[Leg, ...]
    compared: Compared
    unseeded: tuple[str, ...]
    drifts: bool
    found: tuple[Resumption, ...]
    starts_over: bool
    torn: tuple[Finding, ...]
    crashed: tuple[Finding, ...]

    @property
    def lost(self) -> tuple[Lost, ...]:
        seen = tuple(dict.fromkeys(what for each in self.found for what in each.lost))
        return seen or ((Lost.EVERYTHING,) if self.starts_over else ())

    @property
    def is_read(self) -> bool:
        """Whether it is known that a resumed leg read what it was to resume."""
        return bool(self.found) or any(leg.opened for leg in self.resumed)

    @property
    def not_reproducible(self) -> tuple[Finding, ...]:
        varies = [each for each in self.compared.varying if each.is_state]
        if not self.unseeded and (not varies or self.whole.trace):
            return ()
        told = ", ".join(self.unseeded) or contents.told(varies)
        text = f"two trainings from the start differ in {told}"
        return (Finding("not reproducible", text, "set every seed before anything is drawn"),)

    @property
    def grade(self) -> Exactness:
        """From the worst up."""
        compared = self.compared
        if self.torn or self.crashed or self.is_another or set(self.lost) - {Lost.RANDOM}:
            return Exactness.NOT_EXACT
        if compared.at is None:
            return Exactness.NOT_EXACT if self.lost else Exactness.UNKNOWN
        if compared.counts and self.drifts:
            same = all(same_inputs(self.whole.trace, leg.trace) for leg in self.resumed if leg.trace)
            exact = self.found and same and not self.lost and not self.unseeded
            return Exactness.STATE_EXACT if exact else Exactness.NOT_EXACT
        if compared.counts:
            known = not self.is_restored or not (compared.always_differs or self.only_notes_differ)
            return Exactness.NOT_EXACT if known else Exactness.UNKNOWN
        sure = self.is_read and not self.lost and not self.unseeded and not self.untold
        return Exactness.BITWISE if sure else Exactness.UNKNOWN

    @property
    def is_another(self) -> bool:
        """Whether no two trainings are alike."""
        varies = any(each.is_state for each in self.compared.varying)
        return bool({"weights", "data"} & {*self.unseeded}) or (varies and not self.whole.trace)

    @property
    def only_notes_differ(self) -> bool:
        """Whether all weights and other arrays are the same, and only single values differ."""
        return self.is_restored and not any(each.is_state for each in self.compared.counts)

    @property
    def untold(self) -> bool:
        """Whether values that differ in every training may be its state, because no witness saw the state."""
        return bool(self.compared.different) and not self.found

    @property
    def is_restored(self) -> bool:
        return bool(self.found) and all(not each.lost and each.drifts_at is None for each in self.found)


def _evidence(ground: Ground, whole: Leg, stopped: Leg, resumed: tuple[Leg, ...]) -> Evidence:
    random = unseeded(whole.trace, stopped.trace)
    comparable = not {"weights", "data"} & {*random}
    return Evidence(
        whole,
        resumed,
        _compared(ground, whole, stopped, resumed),
        random,
        drifts(whole.trace, stopped.trace),
        _resumptions(whole, resumed) if comparable else (),
        _saves_again(ground, stopped, resumed),
        _torn(ground),
        _crashed(resumed),
    )


def _resumptions(whole: Leg, resumed: tuple[Leg, ...]) -> tuple[Resumption, ...]:
    """What each leg got back, up to the first that lost something: after it the trainings differ anyway."""
    found: list[Resumption] = []
    for leg in resumed:
        if any(each.lost for each in found):
            break
        found += resumptions(whole.trace, leg.trace)
    return tuple(found)


def _saves_again(ground: Ground, before: Leg, resumed: tuple[Leg, ...]) -> bool:
    """Whether a training that was to resume a step came past it again, without having read it."""
    for leg in resumed:
        assert before.newest is not None
        if (
            leg.steps
            and not leg.opened
            and min(leg.steps) <= before.newest.ref.step
            and is_numbered(ground.job)
        ):
            return True
        before = leg if leg.newest is not None else before
    return False


def _compared(ground: Ground, whole: Leg, stopped: Leg, resumed: tuple[Leg, ...]) -> Compared:
    """At the last step that both have. Where we count the checkpoints, only those at the end are the same
    step."""
    varying: tuple[Difference, ...] = ()
    if not is_numbered(ground.job):
        # One that resumed at the very end has nothing more to save: its end is what it resumed.
        last = next((leg for leg in reversed(resumed) if leg.newest is not None), None)
        if not (whole.completed and resumed[-1].completed and whole.newest and last and last.newest):
            return Compared(None)
        steps = whole.newest.ref.step, last.newest.ref.step
        return Compared(steps[0], tuple(_differences(ground, whole, last, *steps)))
    common = whole.steps & stopped.steps
    if common:
        varying = tuple(_differences(ground, whole, stopped, max(common), max(common)))
    steps_left = frozenset(step for leg in resumed for step in leg.steps) & whole.steps
    if not steps_left:
        return Compared(None, (), varying)
    at = max(steps_left)
    leg = next(leg for leg in reversed(resumed) if at in leg.steps)
    return Compared(at, tuple(_differences(ground, whole, leg, at, at)), varying)


def _differences(ground: Ground, one: Leg, other: Leg, step: int, its: int) -> list[Difference]:
    first = one.laid_out(step, ground.folder / f"{other.session}-compared-whole")
    second = other.laid_out(its, ground.folder / f"{other.session}-compared")
    return contents.differences(first, second)


# --- Findings ---------------------------------------------------------------------------------------------


def _torn(ground: Ground) -> tuple[Finding, ...]:
    for leg in ground.legs:
        for manifest in leg.manifests:
            target = ground.folder / f"{leg.session}-torn-{manifest.ref.step}"
            files = contents.torn(leg.laid_out(manifest.ref.step, target))
            remove_tree(target)
            if files:
                text = (
                    f"the checkpoint of step {manifest.ref.step:,} has incomplete files: {', '.join(files)}"
                )
                advice = f"write under a temporary name and rename it ({help_page('training-contract')})"
                return (Finding("torn files", text, advice),)
    return ()


def _has_crashed(leg: Leg) -> bool:
    return leg.result is not None and leg.result.outcome is Outcome.CRASHED and not leg.late


def _with_tail(leg: Leg) -> str:
    tail = "" if leg.result is None else leg.result.tail
    return f"{leg.how}\n{tail}".rstrip()


def _crashed(resumed: tuple[Leg, ...]) -> tuple[Finding, ...]:
    """The killed leg always ends with an error, so it counts only if it left no checkpoint."""
    for leg in resumed:
        if _has_crashed(leg) and (leg.name == "resumed" or not leg.manifests):
            return (Finding("crash", f"the resumed training failed: {_with_tail(leg)}"),)
    return ()


def _lost(what: Lost, found: Sequence[Resumption]) -> Finding:
    text = _TEXTS[what]
    for each in found:
        if what not in each.lost:
            continue
        if what is Lost.DATA and each.begins_again:
            text += ": the epoch began again"
        names = {Lost.RANDOM: each.generators, Lost.STATE: each.states}.get(what)
        text += f": {', '.join(names)}" if names else ""
        if each.later is not None and each.at is not None:
            text += f", {each.later - each.at:,} steps after the resume"
        break
    return Finding(_WORDS.get(what, f"{what.value} lost"), text, ADVICE[what])


def _of_comparison(evidence: Evidence) -> Iterator[Finding]:
    compared = evidence.compared
    if compared.at is None and evidence.lost:
        return
    if compared.at is None:
        yield Finding(
            "nothing to compare",
            "the interrupted training saved at no step at which the uninterrupted one did",
            "save at the same steps each time, put {steps} into the command, or give --steps",
        )
        return
    if compared.counts:
        advice = "all weights and states are the same: if this is only a log, it resumes exactly"
        text = f"at step {compared.at:,}: {contents.told(compared.counts)}"
        yield Finding("differs", text, advice if evidence.only_notes_differ else "")
    elif compared.different:
        so = "it is unknown whether it was restored" if evidence.untold else "it does not count"
        told = contents.told(compared.different)
        yield Finding("varies", f"differs in every training, or is a log, so {so}: {told}")
    at = next((each.drifts_at for each in evidence.found if each.drifts_at is not None), None)
    if at is not None and not evidence.lost:
        yield Finding(
            "drifts",
            f"the weights differ from optimizer step {at:,} on, although all that was watched came back",
            "save what else has a state; or the computation itself is not deterministic",
        )


def unseen(evidence: Evidence, grade: Exactness) -> Iterator[Finding]:
    """What this rehearsal cannot know, where it matters."""
    if not evidence.is_read and not evidence.lost:
        yield Finding(
            "not seen",
            "nothing shows that the resumed training read its checkpoint: it may have begun from the start",
            "a rehearsal sees what Python opens; else look at what the training prints when it resumes",
        )
    trace = [seen for seen in evidence.whole.trace if seen.rank == 0]
    if grade not in (Exactness.BITWISE, Exactness.STATE_EXACT) or not trace or not trace[0].passes:
        return
    passes = [
        trace[each.at].passes for each in evidence.found if each.at is not None and each.at < len(trace)
    ]
    if max(passes, default=0) <= trace[0].passes:
        batches = f" of {trace[0].batches:,} batches" if trace[0].batches else ""
        yield Finding(
            "not seen",
            f"it resumed in its first pass{batches} over the data, so the order of the next one is untested",
            "rehearse three passes, with --steps N",
        )
