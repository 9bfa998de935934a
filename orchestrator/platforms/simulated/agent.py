"""A modelled agent with its training: steps at a rate, checkpoints, heartbeats, a deadline, a result.

Moves only when it is given the time. Its training state is a chain: each step computes the next value from
the last one. So the final state equals that of an uninterrupted run only if every session resumed exactly
where its checkpoint says. Knows no verbs and no callers.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cache
from random import Random

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest, Part
from orchestrator.core.offer import Uplink
from orchestrator.core.order import AgentStatus, Order, Outcome, Result
from orchestrator.platforms.simulated.history import Lifetime, Written
from orchestrator.platforms.simulated.scenario import Fate, Scenario, SimulatedOffer

_PRIME = 2**127 - 1
_FACTOR = 0x1F123BB5159A55E5D3A2B1C4F0E1D2C3
_UNDO = pow(_FACTOR - 1, -1, _PRIME)
STATE_FILE = "state.json"


@dataclass(frozen=True)
class State:
    """The training state, which is the content of a checkpoint. `trained` applies one link per step."""

    step: int
    value: int

    def trained(self, salt: int, steps: int) -> State:
        """The state `steps` later. Each step is value → value · factor + salt."""
        power = pow(_FACTOR, steps, _PRIME)
        return State(self.step + steps, (self.value * power + salt * (power - 1) * _UNDO) % _PRIME)

    def encode(self) -> bytes:
        return json.dumps({"step": self.step, "value": f"{self.value:032x}"}).encode()

    @classmethod
    def decode(cls, data: bytes) -> State:
        document = json.loads(data)
        return cls(int(document["step"]), int(document["value"], 16))


@cache
def _salt(run: str, seed: int, global_batch: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{run} {seed} {global_batch}".encode()).digest()) % _PRIME


@cache
def _frozen(run: str) -> bytes:
    return f"the frozen tensors of {run}".encode() * 4


def expected_state(order: Order, step: int) -> bytes:
    """The content of `state.json` at `step` in an uninterrupted run of this order's job."""
    return State(0, 0).trained(_salt(order.run, order.seed, order.global_batch), step).encode()


@dataclass
class _Save:
    """A save under way. Its blobs are written half-way; the manifest at the end makes it a checkpoint."""

    state: State
    at: float
    end: float
    manifest: Manifest | None = None
    blobs: dict[str, bytes] = field(default_factory=dict)


class SimulatedAgent:
    """One incarnation. Times are clock.elapsed(); add `wall` for unix seconds. When it begins, it adds itself
    to `lifetimes`."""

    def __init__(self, order: Order, offer: SimulatedOffer, scenario: Scenario, *,
                 incarnation: str, start: float, wall: float, base: State, random: Random,
                 lifetimes: list[Lifetime]) -> None:  # fmt: skip
        self.order = order
        self.fate = Fate()
        self.checkpoints: dict[str, Manifest] = {}
        self.blobs: dict[str, bytes] = {}
        self.result: Result | None = None
        self.began = False
        self.ended_at: float | None = None
        self.ending: Outcome | None = None
        self.detail = ""
        self.life = Lifetime(order.run, order.session, order.generation, order.accelerator, incarnation,
                             start, base.step)  # fmt: skip
        self._scenario = scenario
        self._lifetimes = lifetimes
        self._random = random
        self._wall = wall
        self._start = start
        self._base = base
        self._rate = offer.steps_per_second * random.uniform(0.8, 1.2)
        self._trains_from = start + scenario.setup_seconds
        self._kills: list[tuple[float, Outcome | None, str]] = []
        self._limit_at = math.inf if offer.session_seconds is None else start + offer.session_seconds
        self._budget = self._budget_seconds()
        self._milestones = self._plan_milestones()
        self._limits = self._plan_limits(offer)
        if scenario.uplink is Uplink.STORE and self._budget is not None:
            ending = None if scenario.shows_at_the_end else Outcome.LOST  # None: what is left can be read
            self.kill(start + self._budget, ending, "not all of it was shipped in time")
        self._snapshot_at = self._trains_from + self._interval
        self._saving: _Save | None = None
        self._leaving: tuple[Outcome, str] | None = None
        self._ships = scenario.uplink is Uplink.STORE
        self._committed: State | None = None
        self.shipped_step = -1  # the newest one that its uplink has shipped
        self._parent = order.resume

    @property
    def incarnation(self) -> str:
        return self.life.incarnation

    @property
    def running(self) -> bool:
        return self.began and self.ended_at is None

    @property
    def _interval(self) -> float:
        asked = self.order.interval_seconds
        return self._scenario.checkpoint_seconds if asked is None else asked

    @property
    def horizon(self) -> float:
        """When it will end if nothing goes wrong."""
        return min(self._limit_at, *(at for at, *_ in (*self._milestones, *self._limits, *self._kills)))

    def _plan_milestones(self) -> list[tuple[float, Outcome, str]]:
        """Exits at a step. They never come if the training has stalled."""
        plan = [(self._reaches(self.order.steps_total), Outcome.COMPLETED, "all steps done")]
        bad = self._scenario.crash_at_step
        if bad is not None and bad < self.order.steps_total:
            plan.append((self._reaches(bad), Outcome.CRASHED, f"it always fails at step {bad}"))
        return plan

    def _budget_seconds(self) -> float | None:
        """Seconds from its start until it must be over: its budget, or the end of its window."""
        budget, leave_by = self.order.budget_seconds, self.order.leave_by
        if leave_by is None:
            return budget
        left = max(0.0, leave_by - self._start - self._wall)
        return left if budget is None else min(budget, left)

    def _plan_limits(self, offer: SimulatedOffer) -> list[tuple[float, Outcome, str]]:
        """Exits at a time."""
        order, plan = self.order, []
        if self._budget is not None:
            needed = 2 * self._scenario.save_seconds
            if self._scenario.uplink is Uplink.STORE:
                needed += 3 * self._scenario.uplink_seconds
            leave_at = self._start + max(0.0, self._budget - needed)
            plan.append((leave_at, Outcome.STOPPED, "its deadline came"))
        if offer.micro_batch_max is not None and order.micro_batch > offer.micro_batch_max:
            plan.append((self._trains_from, Outcome.OUT_OF_MEMORY, "out of memory"))
        return plan

    def _exit(self) -> tuple[float, Outcome, str]:
        """The first reason to exit, and when."""
        fate, patience = self.fate, self._scenario.stall_patience_seconds
        return min(
            *(exit for exit in self._milestones if exit[0] <= fate.stall_at),
            *self._limits,
            (fate.crash_at, Outcome.CRASHED, "the command failed with exit code 1"),
            (fate.stall_at + patience, Outcome.STALLED, f"no step in {patience:.0f} s"),
        )

    def _death(self) -> tuple[float, Outcome | None, str]:
        limit_at = self._limit_at + self.fate.wedged_seconds
        return min(
            *self._kills,
            (self.fate.killed_at, Outcome.LOST, "the machine is gone"),
            (limit_at, Outcome.LOST, "killed at the session's limit"),
            key=lambda death: death[0],
        )

    def _reaches(self, step: int) -> float:
        return self._trains_from + max(0, step - self._base.step) / self._rate

    def stop(self, at: float) -> None:
        """The platform asks it to stop at `at`, if it can reach it, and kills it after the grace time."""
        if self._scenario.readable_mid_run:
            self.leave(at)
        grace = self._scenario.grace_seconds + self._scenario.save_seconds
        self.kill(at + grace, Outcome.LOST, "killed: it did not end when asked")

    def leave(self, at: float) -> None:
        """The request to save and leave reaches the agent at `at`."""
        self._limits.append((at, Outcome.STOPPED, "it was asked to stop"))

    def kill(self, at: float, ending: Outcome | None, detail: str) -> None:
        """The platform kills it at `at`. Without an ending, what it wrote can still be read."""
        self._kills.append((at, ending, detail))

    def shipped(self, at: float) -> None:
        """Its uplink has shipped everything: its machine is released."""
        assert self.result is not None
        self._end(at, None, self.result.message)

    def next_event(self) -> float:
        """When it next changes by itself; infinity once it is over."""
        if self.ended_at is not None:
            return math.inf
        death = self._death()[0]
        if self.result is not None:
            return death  # only shipping is left
        if not self.began:
            return min(self._start, death)
        at = self._snapshot_at if self._saving is None else self._saving.at
        if self._leaving is None:
            at = min(at, self._exit()[0])
        return death if at >= self.fate.freeze_at else min(at, death)

    def advance(self, to: float) -> None:
        """Runs on until `to`."""
        while (at := self.next_event()) <= to:
            self._happen(at)

    def _happen(self, at: float) -> None:
        killed_at, ending, detail = self._death()
        if at >= killed_at:
            self._end(killed_at, ending, detail)
        elif not self.began:
            self.began = True
            self._lifetimes.append(self.life)
        elif self._saving is not None and at >= self._saving.at:
            self._save_on(self._saving, at)
        elif self._leaving is None and at >= self._exit()[0]:
            self._leave(at)
        else:
            self._snapshot(at)

    def _end(self, at: float, ending: Outcome | None, detail: str) -> None:
        self.ended_at, self.ending, self.detail = at, ending, detail
        self.life.ended_at, self.life.end = at, detail
        if self.result is not None:
            self.life.outcome = self.result.outcome

    # --- training and saving ----------------------------------------------------------------------------

    def step_at(self, at: float) -> int:
        """Steps done at a time, including those it was resumed with."""
        moving = min(at, self.fate.stall_at, self.fate.freeze_at) - self._trains_from
        steps = math.floor(max(0.0, moving) * self._rate + 1e-6)
        return min(self._base.step + steps, max(self.order.steps_total, self._base.step))

    def _state(self, step: int) -> State:
        salt = _salt(self.order.run, self.order.seed, self.order.global_batch)
        return self._base.trained(salt, step - self._base.step)

    def _snapshot(self, at: float) -> None:
        """Begins a save; a checkpoint exists only once it is committed, `save_seconds` later."""
        self._snapshot_at = at + max(self._interval, self._scenario.save_seconds)
        step = self.step_at(at)
        newest = self._base.step if self._committed is None else self._committed.step
        if step > newest:
            self._begin_save(at, self._state(step))

    def _begin_save(self, at: float, state: State) -> None:
        seconds = self._scenario.save_seconds
        self._saving = _Save(state, at + 0.5 * seconds, at + seconds)

    def _leave(self, at: float) -> None:
        _, outcome, message = self._exit()
        self._leaving = (outcome, message)
        if outcome not in (Outcome.COMPLETED, Outcome.STOPPED):
            self._saving = None
            self._finish(at)
            return
        step = self.order.steps_total if outcome is Outcome.COMPLETED else self.step_at(at)
        newest = self._base.step if self._committed is None else self._committed.step
        if step > newest or (outcome is Outcome.COMPLETED and self._committed is None):
            self._begin_save(at, self._state(max(step, self._base.step)))
        elif self._saving is None:
            self._finish(at)

    def _finish(self, at: float) -> None:
        assert self._leaving is not None
        outcome, message = self._leaving
        step = None if self._committed is None else self._committed.step
        code = {Outcome.COMPLETED: 0, Outcome.STOPPED: 75}.get(outcome, 1)
        self.result = Result(self.incarnation, outcome, code, step, message, tail=message)
        if not self._ships:
            self._end(at, None, message)

    def _save_on(self, save: _Save, at: float) -> None:
        if save.manifest is None:
            save.manifest = self._manifest(save, at)
            self._write_first(save)
            save.at = save.end
            return
        self._write_last(save)
        self._saving, self._committed = None, save.state
        self._parent = save.manifest.name
        corrupt = self._random.random() < self.fate.corrupt
        if corrupt:
            altered = save.manifest.files[0].parts[0].sha256
            self.blobs[altered] = b"\0" + self.blobs[altered][1:]
        self.life.written.append(Written(at, save.manifest.name, save.state.step, corrupt))
        self._retain()
        if self._leaving is not None:
            self._finish(at)

    def _write_first(self, save: _Save) -> None:
        """Writes the blobs. An agent killed after this leaves no incomplete checkpoint."""
        self.blobs.update(save.blobs)

    def _write_last(self, save: _Save) -> None:
        assert save.manifest is not None
        self.checkpoints[save.manifest.name] = save.manifest

    def _manifest(self, save: _Save, at: float) -> Manifest:
        order = self.order
        files = []
        for path, data in ((STATE_FILE, save.state.encode()), ("frozen.bin", _frozen(order.run))):
            sha256 = hashlib.sha256(data).hexdigest()
            save.blobs[sha256] = data
            files.append(FileEntry(path, len(data), (Part(sha256, len(data)),)))
        return Manifest(
            run=order.run,
            ref=CheckpointRef(save.state.step, order.generation, self.incarnation),
            global_batch=order.global_batch,
            files=tuple(files),
            parent=self._parent,
            code=order.bundle,
            environment={"accelerator": order.accelerator, "micro_batch": str(order.micro_batch)},
            metrics={"loss": _loss(save.state.step)},
            created_at=at + self._wall,
        )

    def _retain(self) -> None:
        for name in sorted(self.checkpoints)[: -max(1, self.order.keep.last)]:
            del self.checkpoints[name]
        kept = {sha256 for manifest in self.checkpoints.values() for sha256 in manifest.blobs()}
        for sha256 in self.blobs.keys() - kept:
            del self.blobs[sha256]

    def status(self, at: float) -> AgentStatus:
        """The content of its status file at a time."""
        last = min(at, self.fate.freeze_at, math.inf if self.ended_at is None else self.ended_at)
        step = self.step_at(last)
        newest = max(self.checkpoints, default=None)
        budget = self._budget
        training = last >= self._trains_from
        return AgentStatus(
            incarnation=self.incarnation,
            heartbeat=1 + int((last - self._start) / self._scenario.heartbeat_seconds),
            written_at=last + self._wall,
            state="ended"
            if self.result
            else "saving"
            if self._leaving
            else "training"
            if training
            else "setup",
            step=step if training else None,
            steps_per_second=self._rate if training else None,
            loss=_loss(step) if training else None,
            checkpoint=newest,
            checkpoint_step=None if self._committed is None else self._committed.step,
            save_seconds=self._scenario.save_seconds if newest else None,
            deadline=None if budget is None else self._start + self._wall + budget,
            unshipped_seconds=self._unshipped_seconds(last) if self._ships else None,
        )

    def _unshipped_seconds(self, at: float) -> float:
        """The age of the oldest checkpoint that neither was shipped nor is older than one that was."""
        waiting = (each.at for each in self.life.written if each.step > self.shipped_step)
        return max(0.0, at - min(waiting, default=at))


def _loss(step: int) -> float:
    return 10.0 / math.sqrt(1.0 + step)
