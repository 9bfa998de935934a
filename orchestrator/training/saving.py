"""One checkpoint after another: what is in it, its copy in host memory, and who writes it when.

Decides whether a save can be written in the background, and what each rank does for it. Must never know when
a save is due, or the orchestrator's environment.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, SupportsFloat, Union

from orchestrator.training import determinism, randomness
from orchestrator.training import state as saves
from orchestrator.training.buffers import COUNT, Buffers
from orchestrator.training.layout import STATE_FILE, Shard, plan, room
from orchestrator.training.ranks import Agreement, first_fault, is_distributed, plain_fault, rank
from orchestrator.training.sharded import FOLDER as SHARDED
from orchestrator.training.sharded import Parts
from orchestrator.training.unchanging import FOLDER, Unchanging
from orchestrator.training.writer import TEMPORARY, Job, Share, Writer, remove, warn, warned_after

if TYPE_CHECKING:
    from orchestrator.training.native import Staged

LATE_SECONDS = 60.0  # after which a rank that waits for the others says so
_ALL_RANKS = "every rank must call save() and leave()"
_METRICS = "metrics.json"
_ENVIRONMENT = "environment.json"
_OURS = (STATE_FILE, _METRICS, _ENVIRONMENT)
_FILE = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f]+(/(?!\.)[^/\\\x00-\x1f\x7f]+)*")


# A mapping's values are one kind for mypy. Python 3.9 has no `|` between types.
Files = Union[Mapping[str, bytes], Mapping[str, Union[bytes, Path, Shard]]]  # noqa: UP007


class Due(Enum):
    """What a rank does for a save."""

    NOTHING = "nothing"
    ALONE = "alone"
    TOGETHER = "together"


class Saver:
    """Saves into the folder `checkpoints`, which it creates. `state` is what it saves next, as far as that is
    known: its buffers are allocated before."""

    def __init__(
        self, checkpoints: Path, agreement: Agreement, *, background: bool, keep: int | None
    ) -> None:
        self.checkpoints, self.keep = checkpoints, keep
        self.state: Mapping[str, object] | None = None
        self._agreement, self._background = agreement, background
        self._process = os.getpid()
        self._buffers, self._writer = Buffers(), Writer()
        self._unchanging = Unchanging(checkpoints / FOLDER)
        self._prepared = False
        self._last: Job | None = None
        self._generators: tuple[int, list[Mapping[str, object]]] | None = None  # by step, of each rank
        checkpoints.mkdir(parents=True, exist_ok=True)
        if rank() == 0:  # left by a process that was killed in the middle of a save
            for leftover in (*checkpoints.glob(f"{TEMPORARY}*"), checkpoints / FOLDER):
                remove(leftover)

    def save(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat],
        files: Mapping[str, bytes] | Staged,
        required: bool,
    ) -> Path | None:
        """See `Training.save`."""
        due = self._begin(step, state, required)
        staged = None if isinstance(files, Mapping) else files
        given = files if isinstance(files, Mapping) else files.files
        if due is Due.NOTHING:
            if staged is not None:
                staged.release()
            return None if rank() else self.checkpoints / f"step-{step}"
        self.state = state
        try:
            if due is Due.TOGETHER:
                job = self._save_together(step, state, metrics, given, required)
            else:
                job = self._alone(step, state, metrics, given, staged)
                self._write(job, required)
        except OSError as error:
            if required:
                raise OSError(f"the checkpoint of step {step} could not be saved: {error}") from error
            if not rank():
                warn(f"the checkpoint of step {step} could not be saved, training goes on: {error}")
            return None
        self._last = job
        return None if rank() else job.target

    def stage(self, size: int) -> Staged:
        """See `Training.stage`."""
        from orchestrator.training.native import Staged  # imports torch

        if not (self._background and size and self._provided(size)):
            return Staged(None)
        self._writer.wait(self._buffers.count - 1)
        return Staged(self._buffers.take())

    def provide(self, size: int) -> None:
        """See `Training.provide`."""
        if self._background and not rank() and not self._prepared:
            self._prepared = True
            self._provided(size)

    def wait(self) -> None:
        """Blocks until every save is durable, or has failed with a warning."""
        self._writer.wait()

    def _begin(self, step: int, state: Mapping[str, object], required: bool) -> Due:
        """What this rank does for the save of a step. Every rank must call it."""
        self._after_fork()
        first = self._generators is None or self._generators[0] != step
        sharded = is_distributed() and saves.is_sharded(state)
        mine = (randomness.capture() if first else None, sharded)
        if is_distributed():
            with warned_after(LATE_SECONDS, f"rank {rank()} waits to save step {step}: {_ALL_RANKS}"):
                found = self._agreement.gathered(mine)
        else:
            found = [mine]
        if first:
            self._generators = step, [generators for generators, _ in found]
        due = Due.TOGETHER if any(each for _, each in found) else Due.ALONE
        last = self._last
        if not rank() and last is not None and last.step == step:
            if required:
                self._writer.wait()
            due = Due.NOTHING if last.error is None else due
        due = self._agreement.of_first(due)
        return Due.NOTHING if due is Due.ALONE and rank() else due

    def _alone(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat],
        files: Files,
        staged: Staged | None,
    ) -> Job:
        """The checkpoint, which takes what was staged for it. If it cannot be described, that is released."""
        try:
            job = self._job(step, state, metrics, files)
            if staged is not None and (staged.buffer is not None or job.moves):
                _check_staged(any(shard.tensors for shard in job.shards))
        except BaseException:
            if staged is not None:
                staged.release()
            raise
        job.buffer = None if staged is None else staged.buffer
        return job

    def _save_together(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat],
        files: Files,
        required: bool,
    ) -> Job:
        """The save of a state with sharded tensors, of which each rank writes its parts. Raises the first
        error of any rank in every rank."""
        group = self._agreement.background()
        job: Job | None = None
        fault: Exception | None = None
        copied = False
        try:
            job = self._job(step, state, metrics, files, group)
            copied = self._copy(job, required)
            job.begin()
        except Exception as error:  # noqa: BLE001 - the other ranks must not wait for this one
            fault = error
        parts = None if job is None or job.parts is None else job.parts.described
        found = first_fault(self._agreement.gathered((plain_fault(fault), parts)))
        if found := self._agreement.of_first(found):
            if job is not None:
                job.abandon()
            raise found from fault
        assert job is not None
        if copied:
            self._writer.submit(job)
            return job
        try:
            job.write()
            job.forget()
        except OSError as error:
            fault = error
        if required and (found := self._agreement.of_first(plain_fault(fault))):
            raise found from fault
        if fault is not None:
            raise fault
        return job

    def _job(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat],
        files: Files,
        group: Any = None,
    ) -> Job:
        """The checkpoint without the bytes of the trained tensors. Writes the frozen tensors to disk.

        With a `group`, it has this rank's parts of the sharded tensors, and nothing else in ranks other than
        0."""
        captured = saves.capture(state)
        target = self.checkpoints / f"step-{step}"
        building = target.with_name(f"{TEMPORARY}{step}")
        if rank():
            return Share(step, target, {}, parts=Parts.of(captured.sharded, building, group, 0))
        shards, names = _planned(captured)
        parts = Parts.of(captured.sharded, building, group, room(shards)) if group is not None else None
        links: dict[str, Path] = {}
        for component, tensors in captured.frozen.items():
            if tensors:
                found = self._unchanging.files(component, tensors)
                links |= found
                names.setdefault(component, []).extend(found)
        ours = {*_OURS, SHARDED, *(shard.file for shard in shards), *links}
        for name in files:
            if not _FILE.fullmatch(name) or name.split("/")[0] in ours:
                raise ValueError(f"you cannot add a file named {name!r} to a checkpoint")
        documents = {name: given for name, given in files.items() if isinstance(given, bytes)}
        moves = {name: given for name, given in files.items() if isinstance(given, Path)}
        staged = tuple(given for given in files.values() if isinstance(given, Shard))
        _check_staged(bool(staged) and group is not None)
        shards += staged
        if metrics:  # a manifest cannot hold NaN
            finite = {name: value for name, value in plain_numbers(metrics).items() if math.isfinite(value)}
            documents[_METRICS] = saves.as_json(finite)
        if determinism.is_enforced():
            documents[_ENVIRONMENT] = saves.as_json({"deterministic": True})
        assert self._generators is not None
        documents[STATE_FILE] = captured.document(step, names, self._generators[1])
        stale = self._unchanging.stale()
        return Job(step, target, documents, shards, moves, links, stale, parts, keep=self.keep)

    def _write(self, job: Job, required: bool) -> None:
        """Writes the checkpoint in the background. If it must be durable, or memory is short, writes it now
        and straight from the tensors."""
        staged = job.buffer is not None or bool(job.moves)
        behind = self._background and not required if staged else self._copy(job, required)
        if behind:
            self._writer.submit(job)
            return
        self._writer.wait()
        try:
            job.write()
        finally:
            job.forget()
            if job.buffer is not None:
                job.buffer.free = True

    def _copy(self, job: Job, required: bool) -> bool:
        """Whether it can be written in the background, once all of it is copied. If not, no earlier save is
        unwritten."""
        if required or not (self._background and self._provided(job.room)):
            self._writer.wait()
            return False
        self._writer.wait(self._buffers.count - 1 if job.room else COUNT - 1)
        if job.room:
            job.copy(self._buffers.take())
        return True

    def _provided(self, size: int) -> bool:
        if not self._buffers.holds(size):
            self._writer.wait()
            if not self._buffers.provide(size):
                warn(f"no memory for a copy of {size / 1e6:.0f} MB: the training waits while it is written")
        return size == 0 or self._buffers.count > 0

    def prepare(self) -> None:
        """Allocates the buffers before they are needed, once the first step has created all state. Every rank
        must call it, because a `state_dict` may ask the other ranks."""
        if self.state is None or self._prepared or not self._background:
            return
        self._prepared = True
        with suppress(Exception):  # save() will report it
            captured = saves.capture(self.state)
            shards = () if rank() else _planned(captured)[0]
            parts = Parts.of(captured.sharded, self.checkpoints, None, room(shards))
            self._provided(room((*shards, *parts.shards)))

    def _after_fork(self) -> None:
        """In a forked child that also saves: creates a new writer and buffers, because the parent keeps its
        own."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._inherited = self._buffers  # never freed: their addresses may be in other use by now
            self._buffers, self._writer = Buffers(), Writer()
            self._unchanging = Unchanging(self.checkpoints / FOLDER)


def _check_staged(has_more: bool) -> None:
    """Only what was staged has been copied: other tensors would be written as they are later, or from the
    staged bytes."""
    if has_more:
        raise ValueError("a state with trained tensors cannot be saved with staged files: stage them as well")


def _planned(captured: saves.Captured) -> tuple[tuple[Shard, ...], dict[str, list[str]]]:
    """The trained shards, one after the other in one buffer, and each component's shard names."""
    shards: tuple[Shard, ...] = ()
    names: dict[str, list[str]] = {}
    for component, tensors in captured.trained.items():
        if tensors:
            more = plan(component, tensors, room(shards))
            names[component] = [shard.file for shard in more]
            shards += more
    return shards, names


def plain_numbers(metrics: Mapping[str, SupportsFloat]) -> dict[str, float]:
    """Metrics as Python numbers; they may be tensors or numpy numbers."""
    plain = {name: value.item() if hasattr(value, "item") else value for name, value in metrics.items()}
    return {name: value if isinstance(value, int) else float(value) for name, value in plain.items()}
