"""Watches the running command: on each tick it looks, then acts as `plan` says.

Looks at progress, at saves and at the committer's news. Requests saves, asks the command to exit, and kills a
command that does not. Decides no times and no outcome: `plan` and `classify` do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from orchestrator.agent import plan
from orchestrator.agent.backlog import Backlog
from orchestrator.agent.causes import Cause, cause
from orchestrator.agent.classify import Ending, Stop, classify
from orchestrator.agent.committer import Committed, Committer, NotCommitted
from orchestrator.agent.companion import Companion
from orchestrator.agent.folder import Folder, write_whole
from orchestrator.agent.gathering import CHECKPOINTS, Stamp, make_room, matching
from orchestrator.agent.gpu_meter import GpuMeter, ours
from orchestrator.agent.leader import Leader
from orchestrator.agent.log import Log
from orchestrator.agent.overlooked import overlooked
from orchestrator.agent.plan import Costs
from orchestrator.agent.probe import GIVEN
from orchestrator.agent.progress import Progress
from orchestrator.agent.relay import Relay
from orchestrator.agent.remedies import explained
from orchestrator.agent.report import Clocks, Report
from orchestrator.agent.settings import Settings
from orchestrator.agent.usage import Usage
from orchestrator.agent.watching import Watcher
from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.job import OnNan
from orchestrator.core.order import EndAt, Order, Outcome, Result
from orchestrator.core.save_pattern import SavePattern
from orchestrator.files import crowd, is_full, lacks_inodes, shortage, takes_most
from orchestrator.nvidia import Asker
from orchestrator.processes import SESSION
from orchestrator.session.committing import Outbox, saved_in

_PUMP_SECONDS = 5.0
_BUSY_SHARE = 0.01  # of one processor: less is waiting


class Monitor:
    """`committed` is the step of the newest committed checkpoint; None before the first one. `environment` is
    what a bitwise resume depends on. `before`: the files of the working directory when the command started.
    """

    def __init__(
        self,
        folder: Folder,
        order: Order,
        incarnation: str,
        environment: Mapping[str, str],
        clocks: Clocks,
        leader: Leader,
        log: Log,
        report: Report,
        settings: Settings,
        before: Mapping[str, Stamp],
        uplink: Companion | None = None,
    ) -> None:
        self.folder, self.order, self.incarnation = folder, order, incarnation
        self.clocks, self.leader, self.log, self.report = clocks, leader, log, report
        self.settings, self.clock, self.before = settings, clocks.clock, before
        self.progress = Progress(folder.progress, settings.rate_window)
        self.relay = Relay(folder.progress, folder.outbox / folder.progress.name, log.mask)
        self.costs = Costs()
        self._uplink = uplink
        self._backlog = Backlog()
        self.committed: int | None = None
        self._saved: set[str] = set()  # the folders that were committed, or never come home, by name
        self.unpublished, self._unpublished_step = "", -1
        self._refused = False  # that checkpoint was not fit, so another try would not help
        self.outbox = Outbox(
            folder, order, incarnation, environment, self.clock, settings.part_bytes, log.mask
        )
        self.committer = Committer(self.outbox, self.clock, settings.commit_retry)
        self.committer.start()
        self._pattern = None if order.watch is None else SavePattern.parse(order.watch)
        self._watcher = self._watch()
        self.pump = threading.Thread(target=log.pump, args=(leader.output,), name="log", daemon=True)
        self.pump.start()
        now = self.clock.monotonic()
        self._offered: set[tuple[int, int]] = set()  # (step, inode), because a step may be saved again
        self._alive_at = now
        self._heard = 0
        self._scanned_at, self._overlooked = now, ""
        self._used, self._measured_at, self._busy_at = 0.0, now, now
        self._requests = self._commits = 0
        self._requested_at: float | None = None
        self._saved_at = now  # when it last saved or was asked to; the interval counts from here
        self._usage = Usage((folder.work, folder.outbox, folder.shipping), self.clock, settings.disk_period)
        if settings.disk_bytes is not None:
            self._usage.start()
        self._meter = self._measure_gpus()
        self._stop: Stop | None = None
        self._before_stop, self._asked_at = 0, 0.0
        self._grace_ends = float("inf")
        self._killed = False

    def _watch(self) -> Watcher | None:
        """Starts to watch for what the command saves by itself, if the job says where."""
        if self._pattern is None:
            return None
        watcher = Watcher(
            self.folder,
            self._pattern,
            self.order.resume_step if self.order.resume else None,
            self.clock,
            self.settings.settle,
            self.committer.offer,
            lambda: self.progress.step,
            self._interval,
        )
        watcher.start()
        return watcher

    def _measure_gpus(self) -> GpuMeter | None:
        """Starts to sample the session's own GPUs, if it has any."""
        gpus = ours(self.order, os.environ.get(GIVEN), self.leader.visible)
        if gpus is None:
            return None

        def tell(use: GpuUse) -> None:
            self.report.gpu_use = use

        asker = Asker(seconds=self.settings.gpu_answer)
        meter = GpuMeter(gpus, asker, self.clock, self.settings.gpu_period, tell)
        meter.start()
        return meter

    def is_saved(self, path: str) -> bool:
        """Whether a file with this path among the outputs is part of a checkpoint: of what is watched for, or
        of a step that is committed and was saved once more. What is almost all holes is no output, either."""
        name = path.removeprefix(f"{CHECKPOINTS}/")
        in_checkpoints = name != path
        if in_checkpoints and name.split("/")[0] in self._saved:
            return True
        return self._watcher is not None and self._watcher.covers(name, in_checkpoints=in_checkpoints)

    def tick(self) -> None:
        """Looks once, and acts on what it sees."""
        self._look()
        self._scan()
        if self._stop is None:
            self._consider_stop()
        if self._stop is None:
            self._consider_save()
        elif not self._killed and self._out_of_grace():
            self._killed = True
            self.log.say("the grace period is over: killing the training")
            self.leader.kill()
        self.report.beat(self._state())

    def ask_to_leave(self, why: Stop) -> None:
        """Sends SIGTERM to the training, once. It then has until its grace period or the budget is over."""
        if self._stop is not None:
            return
        self._stop = why
        saved = (step for step, _ in saved_in(self.folder.checkpoints))
        self._before_stop, self._asked_at = max([self.committed or 0, *saved]), self.clock.now()
        now = self.clock.monotonic()
        self._requested_at = self._requested_at or now
        self._grace_ends = now + (self.settings.stall_grace if why is Stop.STALL else self.settings.grace)
        if why is Stop.DEADLINE:
            self._grace_ends = float("inf")
        self.log.say(f"asking the training to save and leave: {why}")
        self.leader.terminate()

    def conclude(self, exit_code: int, oom_kills: int) -> Result:
        """Commits what was saved, and returns how the session ended. Call it once the command's group is
        gone."""
        self.pump.join(_PUMP_SECONDS)
        self._usage.finish()
        if self._meter is not None:
            self._meter.finish()
        full, is_own = self._shortage()
        if self._watcher is not None:
            self._watcher.finish(killed=exit_code < 0 or self._killed)
            self._await(self._watcher)
        self._look()
        self.relay.finish()
        self.committer.finish()
        self._await(self.committer)
        self._look()
        self._scan(last=True)
        if self.committer.is_alive() and self._awaits_newer():
            self.unpublished, self._refused = "the last checkpoint could not be committed in time", False
        ending = Ending(
            exit_code=exit_code,
            stop=self._stop,
            killed=self._killed,
            committed=self.committed,
            reached=self.progress.step,
            resume_step=self.order.resume_step if self.order.resume else None,
            steps_total=self.order.steps_total,
            tail=self.log.end(),
            oom_kills=oom_kills,
            unpublished=self.unpublished,
            refused=self._refused,
            diverged=self._diverged(),
            saved_since=self._saved_since(),
            full=full if exit_code else "",
            counted=self._pattern is not None and not self._pattern.numbered and self.progress.step is None,
        )
        outcome, message = classify(ending)
        if self._stop is Stop.DISK:
            message = f"{message}; {self._disk_text()}"
        step = ending.newest if exit_code == 0 else ending.committed
        why = cause(exit_code, ending.tail) if outcome is Outcome.CRASHED and self._stop is None else Cause()
        result = Result(
            self.incarnation, outcome, exit_code, step, message, self.log.tail(), self.progress.step,
            self.log.mask.text(why.error), why.hopeless or is_own,
        )  # fmt: skip
        if self._stop is not None:
            return result
        session = os.environ.get(SESSION, str(self.folder.root))
        return explained(result, ending.tail, self.folder.source, self.order, session)

    def _shortage(self) -> tuple[str, bool]:
        """What the disk lacks, in words, and whether this session took all its inodes: then it makes room for
        its last save, its outputs and its log."""
        root, source = self.folder.root, self.folder.source
        if not is_full(root):
            return "", False
        is_own = lacks_inodes(root) and takes_most(root)
        text, _ = shortage(root, crowd(source) if is_own else root)
        if not is_own:
            return text, False
        is_asked = matching(self.order.outputs or ())
        if told := make_room(source, self.before, lambda name: self.is_saved(name) or is_asked(name)):
            self.warn(told)
        return f"{text}, which this session wrote: write fewer and larger files", True

    def _awaits_newer(self) -> bool:
        """Whether something newer was saved than what was committed last."""
        watched = None if self._watcher is None else self._watcher.taken[0]
        steps = [step for step, _ in self._offered] if watched is None else [watched]
        return max(steps, default=-1) > (-1 if self.committed is None else self.committed)

    def _saved_since(self) -> bool:
        """Whether what was committed last was saved after the training was asked to leave."""
        step, at = (None, 0.0) if self._watcher is None else self._watcher.taken
        if step is not None and step == self.committed:
            return at > self._asked_at
        return (self.committed or 0) > self._before_stop

    def _await(self, thread: threading.Thread) -> None:
        """Waits for the end of a thread, as long as there is time."""
        while thread.is_alive() and not self.out_of_budget():
            self._look()
            self.report.beat("committing")
            thread.join(self.settings.tick)

    def _look(self) -> None:
        now = self.clock.monotonic()
        if self.progress.read(now):
            self._alive_at = now
        elif self.progress.step is None and self.log.written > self._heard:
            self._alive_at = now  # before the first step, output counts as a sign of life
        self._heard = self.log.written
        self.relay.copy()
        self._find_saves(now)
        self._hear_watcher()
        while self.committer.news:
            self._hear(self.committer.news.popleft())
        for thread in (self.committer, self._watcher):
            if thread is not None and thread.bug is not None:
                raise thread.bug
        self.hear_uplink()
        reached = self.progress.step if self.progress.step is not None else self.committed
        self.report.step, self.report.loss = reached, self.progress.loss
        self.report.rate = self.progress.rate()
        self._warn_of_progress()

    def _scan(self, *, last: bool = False) -> None:
        """Tells of saves that are not taken as checkpoints, once, while that still helps."""
        now = self.clock.monotonic()
        if self.committed is not None or (self._watcher is not None and self._watcher.found):
            return
        if not last and now - self._scanned_at < self.settings.scan:
            return
        self._scanned_at = now
        if not self._overlooked:
            self._overlooked = overlooked(self.folder, self.before, self.order.watch)
        if self._overlooked:
            self.warn(self._overlooked)

    def _find_saves(self, now: float) -> None:
        found = saved_in(self.folder.checkpoints)
        for key in sorted(found.keys() - self._offered):
            self._alive_at = self._saved_at = now
            if self._requested_at is not None:
                seconds, self._requested_at = now - self._requested_at, None
                self.costs = self.costs.saved(seconds)
                self.report.save_seconds = seconds
            self.committer.offer(found[key])
        self._offered = set(found)

    def _hear_watcher(self) -> None:
        watcher = self._watcher
        if watcher is None:
            return
        while watcher.warnings:
            self.warn(watcher.warnings.popleft())
        if watcher.behind is not None:
            self.warn(
                f"it saved step {watcher.behind} although it was to resume at step "
                f"{self.order.resume_step}: does the command load {{resume}}?"
            )

    def _hear(self, news: Committed | NotCommitted) -> None:
        if isinstance(news, NotCommitted):
            after = "it is tried again until newer ones replace it" if news.again else "it was given up"
            told = f"the checkpoint of step {news.step} was not committed: {news.reason}"
            self.warn(f"{told}; {after}")
            if news.hollow:
                self._saved.add(f"step-{news.step}")
            if news.step > max(-1 if self.committed is None else self.committed, self._unpublished_step - 1):
                self.unpublished, self._unpublished_step, self._refused = told, news.step, news.unfit
            return
        manifest = news.manifest
        self._alive_at = self.clock.monotonic()
        if manifest.ref.step >= self._unpublished_step:
            self.unpublished, self._unpublished_step = "", -1
        self.costs = self.costs.published(news.seconds)
        self._commits += 1
        self._saved.add(f"step-{manifest.ref.step}")
        self._backlog.committed(manifest.ref.step, self.clock.monotonic())
        if self.committed is None or manifest.ref.step > self.committed:
            self.committed = manifest.ref.step
            self.report.checkpoint, self.report.checkpoint_step = manifest.name, manifest.ref.step
        if self._watcher is not None and manifest.ref.step > self.order.steps_total:
            self.warn(
                f"its checkpoints go beyond work.total ({self.order.steps_total:,}): count both in the same "
                "unit, such as optimizer steps or epochs"
            )
        self.log.say(f"committed {manifest.name}, {manifest.size / 1e6:.1f} MB in {news.seconds:.2f} s")

    def hear_uplink(self) -> None:
        """Takes in what the uplink told since the last call."""
        if self._uplink is None:
            return
        for step, seconds in self._uplink.uploads():
            if seconds is not None:
                self.costs = self.costs.uploaded(seconds)
            self._backlog.shipped(step)
        self.report.unshipped_seconds = self._backlog.seconds(self.clock.monotonic(), self._uplink.reached_at)
        for text in self._uplink.warnings():
            self.warn(text)

    def _warn_of_progress(self) -> None:
        if self.progress.not_finite is not None:
            self.warn(self._diverged())
        if self.progress.unreadable:
            self.warn("ignored malformed lines in progress.jsonl")
        if self.progress.odd:
            self.warn(f"progress cannot be read: {self.progress.odd}")
        if self.log.lost:
            self.warn("part of the log was lost: it could not be written to disk")

    def warn(self, text: str) -> None:
        if self.report.warn(text):
            self.log.say(f"warning: {text}")

    def _rehearse(self, end_at: EndAt) -> None:
        """Ends the session as a session limit or the loss of the machine would."""
        if end_at.killed:
            self.log.say("killing the training, as a lost machine would")
            self.leader.kill()
        else:
            self.ask_to_leave(Stop.REQUEST)

    def _diverged(self) -> str:
        """The first loss that was not finite, in words; empty if there was none."""
        if self.progress.not_finite is None:
            return ""
        loss, step = self.progress.not_finite
        return f"loss is {loss} at step {step}"

    def _consider_stop(self) -> None:
        if self._uplink is not None and self._uplink.superseded:
            self.ask_to_leave(Stop.SUPERSEDED)
            return
        end_at = self.order.end_at
        if end_at is not None and self._commits >= end_at.saves:
            self._rehearse(end_at)
            return
        if self.order.on_nan is OnNan.FAIL and self.progress.not_finite is not None:
            self._stop, self._killed = Stop.DIVERGED, True  # what it would save now is worth nothing
            self.log.say(f"{self._diverged()}: killing the training, as the job says")
            self.leader.kill()
            return
        at = plan.stop_at(self.clocks.budget, self.costs, self._step_seconds(), self.settings)
        if at is not None and self.clocks.elapsed() >= at:
            self.ask_to_leave(Stop.DEADLINE)
            return
        if self._takes(1.0):
            self.warn(self._disk_text())
            self.ask_to_leave(Stop.DISK)
            return
        allowed = plan.patience(self._stepped(), self._step_seconds(), self.settings)
        silent = self.clock.monotonic() - self._alive_at
        if silent > allowed and not self._computes(silent):
            self.ask_to_leave(Stop.STALL)

    def _computes(self, silent: float) -> bool:
        """Whether a command that reports no steps, and that has been silent for so long, still works."""
        now = self.clock.monotonic()
        if self._stepped() or silent > self.settings.silent:
            return False
        if now - self._measured_at >= self.settings.usage:
            used = self.leader.seconds()
            if used - self._used >= _BUSY_SHARE * (now - self._measured_at):
                self._busy_at = now
            self._used, self._measured_at = used, now
        return now - self._busy_at < self.settings.first_step

    def _takes(self, share: float) -> bool:
        """Whether the session uses more than this share of its disk limit."""
        allowed = self.settings.disk_bytes
        return allowed is not None and self._usage.bytes > share * allowed

    def _disk_text(self) -> str:
        taken, allowed = self._usage.bytes / 1e9, (self.settings.disk_bytes or 0) / 1e9
        return (
            f"it used {taken:.3g} GB of disk, and its limit is {allowed:.3g} GB: raise the job's "
            "needs.disk_gb or the platform's disk_gb"
        )

    def _consider_save(self) -> None:
        """Requests a save when it is due. Repeats an unanswered request after an interval, because a command
        may start to listen late."""
        order = self.order
        now = self.clock.monotonic()
        if (
            order.watch is not None
            or now - self._saved_at < self._interval()
            or (self.progress.step or 0) <= self._newest_step()
        ):
            return
        self._saved_at = now
        self._requests += 1
        try:
            write_whole(self.folder.save_request, b"%d\n" % self._requests, durable=False)
        except OSError as error:
            self.warn(f"a save could not be requested: {error.strerror}")
            return
        self._requested_at = now

    def _interval(self) -> float:
        """Seconds between two checkpoints."""
        return plan.interval(
            self.order.interval_seconds, self.clocks.budget, self.costs, self.settings,
            self.order.mean_time_to_failure,
        )  # fmt: skip

    def _newest_step(self) -> int:
        """The step that progress must pass before a save is worth requesting. A command that reports no steps
        is always asked."""
        if self.progress.step is None:
            return -1
        return max(self.committed or 0, self.order.resume_step)

    def _stepped(self) -> bool:
        return self.progress.step is not None

    def _step_seconds(self) -> float:
        """The measured seconds per step, or else the expected ones; 0 when neither is known."""
        rate = self.progress.rate() or self.order.expected_steps_per_second
        return 1.0 / rate if rate else 0.0

    def _out_of_grace(self) -> bool:
        at = plan.kill_at(self.clocks.budget, self.costs, self.settings)
        late = at is not None and self.clocks.elapsed() >= at
        return late or self._takes(2.0) or self.clock.monotonic() >= self._grace_ends

    def out_of_budget(self) -> bool:
        return self.clocks.budget is not None and self.clocks.elapsed() >= self.clocks.budget

    def _state(self) -> str:
        if self._stop is not None:
            return "stopping"
        if self._requested_at is not None:
            return "saving"
        return "training" if self._stepped() else "starting"
