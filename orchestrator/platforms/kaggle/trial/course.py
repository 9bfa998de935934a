"""The course of a trial: which sessions it starts, in which order, and what each of them shows.

`ground` makes the sessions, `evidence` judges them, `clearing` removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from orchestrator.core.bounds import MIB
from orchestrator.core.checkpoint import Manifest
from orchestrator.core.order import Outcome, Result
from orchestrator.core.session import Sighting, StopReply
from orchestrator.core.wording import count_text, size_text, span
from orchestrator.errors import OrchestratorError, Transient
from orchestrator.platforms.kaggle import kernel
from orchestrator.platforms.kaggle.endings import COMPLETE, OVER, SAVING
from orchestrator.platforms.kaggle.logs import events
from orchestrator.platforms.kaggle.outbox import KernelOutbox
from orchestrator.platforms.kaggle.runner import SAYS
from orchestrator.platforms.kaggle.trial import assumptions as assumed
from orchestrator.platforms.kaggle.trial import evidence
from orchestrator.platforms.kaggle.trial.clearing import Clearing
from orchestrator.platforms.kaggle.trial.evidence import RUNNING
from orchestrator.platforms.kaggle.trial.ground import ENDLESS, FIRST_STEPS, LAST_STEPS, Ground
from orchestrator.platforms.kaggle.trial.stay import LAUNCHES_MAX, Stay
from orchestrator.platforms.kaggle.trial.witness import Heard
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.trials import training
from orchestrator.platforms.trials.assumption import FAILS, HOLDS, NOT_SEEN, Judgement, at_scale, of
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.waiting import Late

_QUIET_SECONDS_MAX, _LOG_SECONDS_MAX = 2.0, 20.0
LOOKS_MIN = 4  # at running sessions, before a log that says nothing counts as one that cannot be read
_WHOLE = 1 << 60  # a checkpoint of any size is uploaded
_LARGE_BYTES, _LONG_SECONDS = 64 * MIB, 600.0  # as the assumptions say
_ENDED_BEFORE: Judgement = NOT_SEEN, "the session ended before it could be cancelled"
_GOOD = frozenset({200, 201, 206})


class Course:
    """The steps of one trial. Each judges what it shows; what a failure makes impossible is not seen."""

    def __init__(self, ground: Ground, record: Record) -> None:
        self._ground = ground
        self._record = record
        self._clearing = Clearing(ground, record)
        self._judge = record.judge
        self._say = ground.waiting.say
        self._stays: list[Stay] = []
        self._again: Stay | None = None

    def clear(self) -> None:
        """Removes all that was made."""
        self._clearing.clear()

    def left(self) -> tuple[str, ...]:
        """What may still be on Kaggle."""
        return self._clearing.left()

    def begin_again(self) -> None:
        """Whether a deleted name can be used again."""
        self._say("starting the first session once more under its old name, to delete it as it runs")
        self._ground.again()
        stay = self._ground.stay(ENDLESS)
        try:
            self._clearing.add(stay)
            stay.start(self._ground.materials(stay), pause=0.0, tries=1)
            self._record.fact("the name of a deleted kernel", "can be used again")
        except OrchestratorError as error:
            self._record.fact("the name of a deleted kernel", f"cannot be used again: {error}")
            return
        self._again = stay

    def delete_running(self) -> None:
        """Deletes the kernel that began again, as soon as it runs."""
        if self._again is not None:
            with suppress(Late):
                self._until_running(self._again)
                self._ground.delete(self._again)

    def conclude(self) -> None:
        """What all of it showed together."""
        heard = self._ground.heard
        self._judge(assumed.QUOTA, evidence.quota(heard))
        self._judge(assumed.CLOCK, evidence.clock(heard))
        looks = sum(stay.looks for stay in self._stays)
        if looks >= LOOKS_MIN and all(stay.told is None for stay in self._stays):
            self._judge(assumed.LOG, (FAILS, f"nothing was heard in {count_text(looks, 'look')}"))
        odd = Counter(f"{each.call} {each.status}" for each in heard if each.status not in _GOOD)
        self._record.fact("requests", _counted(Counter(each.call for each in heard)))
        self._record.fact("other answers than 200", _counted(odd) or "none")
        versions = {each.version for each in heard if each.version}
        self._record.fact("version of Kaggle's API", ", ".join(sorted(versions)) or "not said")

    # --- The sessions -----------------------------------------------------------------------------------

    def first(self) -> Stay:
        """Runs to its end: upload, push, log, output. This and the others raise OrchestratorError if they
        cannot go on."""
        self._say("the first session: upload, start, live log, end, output")
        stay = self._ground.stay(FIRST_STEPS)
        self._start(stay)
        self._begin(stay)
        self._end(stay)
        self._collect(stay)
        self._kept_log(stay)
        return stay

    def hand_over(self, before: Stay) -> None:
        """Continues from the output of the session before, and is cancelled."""
        self._say("the second session: continues from the output of the first, and is cancelled")
        stay = self._ground.stay(ENDLESS, before=before)
        try:
            self._start(stay)
        except OrchestratorError as error:
            if evidence.handed(self._pushes(stay))[0] is not FAILS:
                raise
            self._say(str(error))  # the others can still be seen
            return
        finally:
            handed = evidence.handed(self._pushes(stay))
            if handed[0] is not HOLDS:  # that it mounts it, only the session can show
                self._judge(assumed.HANDED, handed)
        self._begin(stay)

        def saved(sight: Sight) -> bool:
            return stay.own is not None or sight.sighting in (Sighting.SAVING, Sighting.ENDED)

        sight = stay.until("to save something", stay.timeout + self._ground.scale.late, saved)
        if handed[0] is HOLDS:
            self._judge(assumed.HANDED, self._resumed(stay, sight))
        if sight.sighting is Sighting.RUNNING:
            self._cancel(stay)
        else:
            self._judge(assumed.CANCELLED, _ENDED_BEFORE)

    def time_out(self, before: Stay | None) -> None:
        """Continues from an upload, never leaves by itself, and is ended by its time-out."""
        self._say("the third session: continues from an upload, and runs into its time-out")
        late = self._ground.scale.late
        stay = self._ground.stay(
            ENDLESS, before=before, bounded=False, hand_over_bytes=_WHOLE,
            session_seconds=self._ground.scale.timeout, wall_margin_seconds=0.0,
        )  # fmt: skip
        self._start(stay)
        self._begin(stay)
        seconds = None
        began = evidence.since(self._ground.heard, stay.kernel, (RUNNING,))
        try:
            stay.until("to be ended", stay.timeout + late, lambda _: self._is_over(stay))
        except Late as error:
            self._say(str(error))
        ended = evidence.since(self._ground.heard, stay.kernel, OVER)
        if began is not None and ended is not None:
            seconds = ended - began
        poll = self._ground.waiting.poll
        if began is not None:
            self._judge(assumed.TIMEOUT, evidence.timeout(seconds, stay.timeout, poll=poll, late=late))
        if ended is not None:
            self._judge(assumed.KEPT_AT_TIMEOUT, self._keeps(stay))
        self._judge_status(stay)

    def walls(self) -> None:
        """Three sessions: two leave at their own wall, the last one completes the training."""
        before: Stay | None = None
        for number in (1, 2, 3):
            self._say(f"the long trial, session {number} of 3")
            steps = ENDLESS
            if number == 3 and before is not None and before.newest is not None:
                steps = before.newest.ref.step + LAST_STEPS
            stay = self._ground.stay(steps, before=before, payload=self._ground.scale.payload)
            self._start(stay)
            self._begin(stay)
            result = self._end(stay)
            manifest = self._collect(stay)
            wanted = Outcome.STOPPED if number < 3 else Outcome.COMPLETED
            self._judge(assumed.WALLS, self._continued(stay, result, manifest, wanted, before))
            self._judge(assumed.LONG_LOG, self._heard_to_the_end(stay))
            if before is not None:
                handed = evidence.handed(self._pushes(stay))
                size = self._ground.scale.payload
                tried, enough = f"a checkpoint of {size_text(size)}", size > _LARGE_BYTES
                self._judge(assumed.LARGE, at_scale(handed, tried, enough=enough))
            before = stay

    # --- What a session shows ---------------------------------------------------------------------------

    def _start(self, stay: Stay) -> None:
        self._clearing.add(stay)
        self._stays.append(stay)
        try:
            stay.start(self._ground.materials(stay), pause=self._ground.scale.late / LAUNCHES_MAX)
        finally:
            self._judge_start(stay)

    def _judge_start(self, stay: Stay) -> None:
        heard, known = self._ground.heard, stay.known
        for dataset in known.datasets[:1]:
            self._judge(assumed.READY, evidence.ready(heard, dataset, self._ground.options.ready_seconds))
            self._judge(assumed.LISTED, evidence.listed(heard, dataset, known.files))
            self._judge(assumed.SIZES, evidence.sizes(heard, dataset, known.files))
            changed = evidence.unchanged(heard, dataset, known.files, began=False, log="")
            self._judge(assumed.UNCHANGED, changed)
        pushes = self._pushes(stay)
        self._judge(assumed.ATTACHED, evidence.attached(pushes))
        self._judge(assumed.SLUG, evidence.slug(pushes))
        self._judge(assumed.VERSION, evidence.version(pushes))

    def _begin(self, stay: Stay) -> None:
        """Waits until its agent speaks in the live log, or until it does not run any more."""

        def speaks(sight: Sight) -> bool:
            return stay.told is not None or sight.sighting is not Sighting.RUNNING

        try:
            self._until_running(stay)
        finally:
            heard = self._ground.heard
            push = next(reversed(self._pushes(stay)), None)
            seconds = self._ground.options.visibility_seconds
            self._judge(assumed.VISIBLE, evidence.visible(heard, push, stay.kernel, seconds))
            self._judge_status(stay)
        try:
            stay.until("to say something in its live log", self._ground.scale.late, speaks)
        except Late as late:
            self._say(str(late))
        self._judge_log(stay)

    def _until_running(self, stay: Stay) -> None:
        def running(sight: Sight) -> bool:
            return sight.sighting not in (Sighting.PENDING, Sighting.ABSENT)

        seconds = max(self._ground.scale.start, self._ground.options.visibility_seconds)
        stay.until("to run", seconds, running)

    def _judge_log(self, stay: Stay) -> None:
        if stay.told is not None:
            self._judge(assumed.LOG, (HOLDS, f"the agent was heard in its state {stay.told.state}"))
            pieces = self._events(stay)
            self._judge(assumed.LINES, evidence.lines(pieces))

    def _events(self, stay: Stay) -> list[str]:
        try:
            quiet = min(_QUIET_SECONDS_MAX, self._ground.options.report_seconds)
            return events(
                self._ground.client, stay.kernel, quiet_seconds=quiet, at_most_seconds=_LOG_SECONDS_MAX
            )
        except OrchestratorError:
            return []

    def _end(self, stay: Stay) -> Result:
        """Waits until it has ended and all of its output is listed. Raises Late, or Transient if it did not
        end well."""
        options = self._ground.options
        try:
            stay.until(
                "to end",
                stay.timeout + self._ground.scale.late,
                lambda sight: sight.sighting is not Sighting.RUNNING,
            )
        except Late:
            late = evidence.timeout(
                None, stay.timeout, poll=self._ground.waiting.poll, late=self._ground.scale.late
            )
            self._judge(assumed.TIMEOUT, late)
            raise
        finally:
            self._judge_status(stay)
        try:
            seconds = options.publish_seconds + 2 * self._ground.waiting.poll
            sight = stay.until("to show its output", seconds, lambda sight: sight.sighting is Sighting.ENDED)
        except Late as late:
            self._judge_lateness(stay, str(late))
            raise
        finally:
            self._judge_status(stay)
        ended = evidence.since(self._ground.heard, stay.kernel, OVER)
        now = self._ground.clock.monotonic()
        after = 0.0 if ended is None else now - ended
        self._judge(assumed.ENDS, (HOLDS, evidence.ending(self._ground.heard, stay.kernel)))
        count = len(sight.outbox.names) if isinstance(sight.outbox, KernelOutbox) else 0
        text = f"{count_text(count, 'file')}, {span(after)} after its end"
        in_time = after < options.publish_seconds
        self._judge(assumed.PUBLISHED, evidence.in_time(in_time, text, self._ground.heard, now - after))
        result = stay.result(sight)
        if result is None or result.outcome not in (Outcome.COMPLETED, Outcome.STOPPED):
            text = sight.detail if result is None else f"{result.outcome}: {result.message}"
            self._judge_inputs(stay, began=False, log=text)
            raise Transient(f"{stay.session} did not end well: {text}", operation="trial")
        return result

    def _judge_lateness(self, stay: Stay, text: str) -> None:
        """What is to blame if a session that has left does not show its output."""
        heard = self._ground.heard
        state = next((state for _, state in reversed(evidence.states(heard, stay.kernel))), "")
        ended = f"{text}; its states: {evidence.ending(heard, stay.kernel)}"
        refused = evidence.downloads(heard, "")
        if state in OVER and refused[0] is FAILS:
            self._judge(assumed.DOWNLOADS, refused)
        elif state in OVER:
            self._judge(assumed.PUBLISHED, (FAILS, ended))
        elif state in (RUNNING, SAVING):
            self._judge(assumed.ENDS, (FAILS, ended))

    def _judge_status(self, stay: Stay) -> None:
        heard = self._ground.heard
        self._judge(assumed.WORDS, evidence.words(heard, stay.kernel))
        self._judge(assumed.READABLE, evidence.readable(heard, stay.kernel))
        self._record.fact(f"states of {stay.short}", evidence.ending(heard, stay.kernel))

    def _collect(self, stay: Stay) -> Manifest:
        """Brings its output here. Raises Late, or Transient for a checkpoint that is not whole."""
        began = self._ground.clock.monotonic()
        try:
            found = stay.collect(self._ground.output(stay), self._ground.options.publish_seconds)
        except Late as late:
            self._judge(assumed.DOWNLOADS, (FAILS, str(late)))
            raise
        if found.corrupt:
            self._judge(
                assumed.DOWNLOADS, (FAILS, "; ".join(f"{name}: {why}" for name, why in found.corrupt))
            )
        if found.corrupt or not found.manifests:
            raise Transient(f"{stay.short} has left no checkpoint that is intact", operation="trial")
        seconds = self._ground.clock.monotonic() - began
        size = sum(manifest.size for manifest in found.manifests)
        count = count_text(len(found.manifests), "checkpoint")
        text = f"{count}, {size_text(size)} in {span(seconds)}, all intact"
        self._judge(assumed.DOWNLOADS, evidence.downloads(self._ground.heard, text))
        newest = found.manifests[-1]
        seen = self._ground.content(stay, newest, training.SEEN)
        self._judge(assumed.NO_SHAPE, evidence.no_accelerator(seen))
        self._record.fact("the machine", ", ".join(f"{key} {value}" for key, value in seen.items() if value))
        return newest

    def _kept_log(self, stay: Stay) -> None:
        """The log that is kept with the output, and what it says."""

        def kept() -> str | None:
            outbox = stay.outbox()
            return outbox.log if outbox is not None and SAYS in outbox.log else None

        log = ""
        seconds = min(self._ground.options.publish_seconds, self._ground.scale.late)
        try:
            log = self._ground.waiting.until("the log of the first session", seconds, kept)
            self._judge(assumed.KEPT_LOG, (HOLDS, f"{len(log):,} characters"))
        except Late as late:
            self._judge(assumed.KEPT_LOG, (FAILS, str(late)))
        self._judge_inputs(stay, began=True, log=log)
        number = stay.known.session_id
        if log or stay.told is not None:
            said = "the kernel printed it" if number else "the kernel found none"
            self._judge(assumed.SESSION_ID, of(number is not None, said))

    def _judge_inputs(self, stay: Stay, *, began: bool, log: str) -> None:
        self._judge(assumed.MOUNTED, evidence.mounted(log, began))
        for dataset in stay.known.datasets[-1:]:
            changed = evidence.unchanged(self._ground.heard, dataset, stay.known.files, began=began, log=log)
            self._judge(assumed.UNCHANGED, changed)

    def _resumed(self, stay: Stay, sight: Sight) -> Judgement:
        result = stay.result(sight)
        if result is not None and result.outcome is Outcome.LOST:
            return FAILS, result.message
        step = max(stay.told.step or 0 if stay.told else 0, result.step or 0 if result else 0)
        if step > stay.order.resume_step:
            return HOLDS, f"continued after step {stay.order.resume_step}"
        return NOT_SEEN, "nothing was heard of its steps"

    def _cancel(self, stay: Stay) -> None:
        if stay.known.session_id is None:
            self._judge(assumed.CANCELLED, (NOT_SEEN, "the session's id is not known"))
            return
        newest = None if stay.told is None else stay.told.checkpoint
        self._say(f"{stay.short}: asking Kaggle to cancel it")
        asked = self._ground.clock.monotonic()
        if stay.platform.stop(stay.session) is not StopReply.REQUESTED:
            why = evidence.refused(self._ground.heard, "CancelKernelSession") or "it did not end"
            self._record.fact("cancel by session id", f"refused: {why}; its kernel was deleted instead")
            self._judge(assumed.CANCELLED, (NOT_SEEN, f"Kaggle does not allow to cancel: {why}"))
            return
        if not evidence.is_cancelled(self._ground.heard):  # it was already being saved
            self._judge(assumed.CANCELLED, _ENDED_BEFORE)
            return
        try:
            stay.until("to be cancelled", self._ground.scale.late, lambda _: self._is_over(stay))
        except Late as late:
            self._record.fact("cancel by session id", f"accepted, without effect: {late}")
            self._judge(assumed.CANCELLED, (FAILS, str(late)))
            return
        seconds = span(self._ground.clock.monotonic() - asked)
        self._record.fact("cancel by session id", f"accepted, over {seconds} later")
        self._judge(assumed.CANCELLED, self._keeps(stay, newest))
        self._judge_status(stay)

    def _keeps(self, stay: Stay, checkpoint: str | None = None) -> Judgement:
        """Whether an ended session's output appears."""
        wanted = checkpoint or (None if stay.told is None else stay.told.checkpoint)
        seconds = min(self._ground.options.publish_seconds, self._ground.scale.late)
        what = f"checkpoint {wanted}" if wanted else "any output"
        try:
            self._ground.waiting.until(what, seconds, lambda: stay.keeps(wanted) or None)
        except Late as late:
            return FAILS, str(late)
        return HOLDS, f"its output has {what}"

    def _continued(
        self, stay: Stay, result: Result, manifest: Manifest, wanted: Outcome, before: Stay | None
    ) -> Judgement:
        state = self._ground.content(stay, manifest, training.STATE)
        ended = [state for _, state in evidence.states(self._ground.heard, stay.kernel)][-1:]
        text = f"{stay.short} ended as {result.outcome} at step {result.step} ({', '.join(ended)})"
        if result.outcome is not wanted or ended != [COMPLETE] or result.step != state["step"]:
            return FAILS, text
        if state["value"] != training.uninterrupted(state["step"]):
            return FAILS, f"{text}, with another state than an uninterrupted training has"
        resumed = "" if before is None else f", continued exactly after step {stay.order.resume_step}"
        return HOLDS, f"{text}{resumed}"

    def _heard_to_the_end(self, stay: Stay) -> Judgement:
        ended = evidence.since(self._ground.heard, stay.kernel, OVER)
        if stay.told is None or ended is None:
            return FAILS, "nothing was heard"
        silent = max(0.0, ended - stay.told_at)
        options = self._ground.options
        enough = silent <= 5 * (options.poll_seconds + options.report_seconds) + self._ground.scale.step
        text = f"last heard {span(silent)} before its end, at step {stay.told.step}"
        wall = self._ground.scale.wall
        heard = evidence.in_time(enough, text, self._ground.heard, stay.told_at)
        return at_scale(heard, f"a session of at most {span(wall)}", enough=wall >= _LONG_SECONDS)

    def _pushes(self, stay: Stay) -> list[Heard]:
        return evidence.pushed(self._ground.heard, kernel.slug(stay.session))

    def _is_over(self, stay: Stay) -> bool:
        return evidence.since(self._ground.heard, stay.kernel, OVER) is not None


def _counted(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(found.items()))
