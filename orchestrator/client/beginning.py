"""`submit --from`: a new run begins with a checkpoint of another one.

Decides which checkpoint, and whether the new job may go on from it: the mathematics of its steps must be the
same. The checkpoint is copied, byte for byte, so neither run needs the other afterwards.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.client import planning, pulling
from orchestrator.client.checkpoints import gone
from orchestrator.client.wiring import Wired
from orchestrator.core.checkpoint import Accepted, CheckpointRef, newest
from orchestrator.core.edits import clash_of
from orchestrator.core.job import Job
from orchestrator.core.run import RunRecord
from orchestrator.errors import AmbiguousRun, CorruptCheckpoint, InputError, NotFound
from orchestrator.files import draft_folder, make_folder, write_whole
from orchestrator.session.layout import manifest_path
from orchestrator.stores import checkpoints

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_INCARNATION_DIGITS = 8


@dataclass(frozen=True)
class Beginning:
    """A checkpoint of another run."""

    record: RunRecord
    checkpoint: Accepted

    @property
    def origin(self) -> str:
        """Where the new run comes from, in words."""
        return f"from {self.record.run} at step {self.checkpoint.ref.step:,}"


def find(client: Client, given: str, job: Job) -> Beginning:
    """The checkpoint that `RUN` or `RUN@STEP` names. Raises InputError if there is none, or if the job cannot
    go on from it."""
    name, at, number = given.partition("@")
    if at and not (number.isascii() and number.isdecimal()):
        raise InputError(f"--from {given}: {number!r} is not a step; write RUN or RUN@STEP")
    record = _record(client, name)
    found = pulling.wanted(record, int(number)) if at else newest(record.accepted)
    if found is None:
        raise InputError(f"{record.run} has no checkpoint to begin with: submit the job without --from")
    if why := clash_of(record.job, job, found.ref.step):
        raise InputError(
            f"the job cannot go on from {record.run}: {why}. To begin a different training with its weights, "
            "pull the checkpoint and give it as an input"
        )
    return Beginning(record, found)


def planned(client: Client, given: str, job: str | os.PathLike[str]) -> Beginning:
    """The checkpoint that a submit of this file would begin with; the same errors as `find`."""
    return find(client, given, planning.parse(client.wired(), job, ()).job)


def _record(client: Client, name: str) -> RunRecord:
    try:
        return client.run(name).record()
    except AmbiguousRun:
        raise
    except InputError as error:
        raise InputError(
            f"{error}; `orchestrator adopt STORE` brings the runs of another machine's store here"
        ) from error


def _others(begins: Beginning) -> str:
    """What else a new run could begin with."""
    steps = sorted({each.ref.step for each in begins.record.accepted} - {begins.checkpoint.ref.step})
    if not steps:
        return f"{begins.record.run} has no other"
    return f"--from {begins.record.run}@STEP takes another one: {', '.join(map(str, steps))}"


@contextlib.contextmanager
def copied(wired: Wired, begins: Beginning | None, run: str) -> Iterator[Accepted | None]:
    """Copies the checkpoint to the new run in the home store; removes it if the run is not recorded."""
    if begins is None:
        yield None
        return
    source, target = wired.store(begins.record.store), wired.store(wired.config.home_store)
    found = begins.checkpoint
    make_folder(wired.folders.home, 0o700)
    with draft_folder(wired.folders.home, mode=0o700) as parts:
        try:
            manifest = checkpoints.fetch(source, begins.record.run, found.name, parts, found.sha256)
        except (CorruptCheckpoint, NotFound) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else gone(source)
            raise CorruptCheckpoint(found.name, f"{reason}; {_others(begins)}") from error
        origin = hashlib.sha256(begins.record.run.encode()).hexdigest()[:_INCARNATION_DIGITS]
        ours = replace(manifest, run=run, ref=CheckpointRef(found.ref.step, 0, origin), parent=None)
        path = parts / manifest_path(ours.name)
        make_folder(path.parent)
        write_whole(path, ours.encode(), sync=False)
        checkpoints.publish(target, run, ours, parts)
    try:
        yield Accepted(ours.ref, ours.size, found.metrics, ours.created_at, ours.sha256)
    except BaseException:
        checkpoints.retire(target, run, [ours.name], keep=())
        raise
