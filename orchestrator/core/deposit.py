"""What a store says of a run, so that another machine can list, pull and adopt it.

A deposit is a pure function of the run's record, and folds into a record again. Decides what belongs in it,
and whether one that came out of a store is believed. Must never know stores, files or platforms. It contains
no secret's value, no log and no message of a session.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from orchestrator.core import bounds, wire
from orchestrator.core.checkpoint import Accepted, CheckpointRef, newest
from orchestrator.core.event import (
    Adopted,
    Cancelled,
    Completed,
    Ended,
    Event,
    GaveUp,
    Prepared,
    Submitted,
)
from orchestrator.core.job import ELSEWHERE, Input, Job, frozen_image
from orchestrator.core.lifecycle import Phase
from orchestrator.core.order import Outcome
from orchestrator.core.run import RunRecord, apply, submit

FORMAT = 1
VERSION_MAX = 10**10 - 1
REASON_BYTES_MAX = 500
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_NAME_LENGTH_MAX = 100
_SHA256 = re.compile(r"[0-9a-f]{64}")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
_MACHINE = re.compile(rf"[A-Za-z0-9._-]{{0,{bounds.MACHINE_CHARACTERS_MAX}}}")
_ADDRESS = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]{0,199}")  # only ever a reference
_INCARNATION = re.compile(r"[0-9a-z]{0,32}")
_TEXT_BYTES_MAX = 4096  # of a text without a limit of its own


@dataclass(frozen=True)
class Deposit:
    """One run, after the event `version` of a ledger; `adoptions` ledgers had it before.

    `accepted` are its checkpoints and its outputs. `job` is frozen: its bundle, its image archive and its
    inputs are named by their sha256. `phase` is queued, running (it has a session), held, or a final one.
    `reason` is that of a final phase. `platform`, `session` and `incarnation` are those of the present
    session. `adopted_by`: the machine that adopted it last.
    """

    format: int
    run: str
    job: Job
    submitted_at: float
    adoptions: int
    version: int
    phase: Phase
    generation: int
    accepted: tuple[Accepted, ...]
    reason: str = ""
    ended_at: float | None = None
    micro_batch_caps: tuple[tuple[str, int], ...] = ()
    group: str = ""
    parameters: tuple[tuple[str, str], ...] = ()
    schedule: str = ""
    origin: str = ""
    platform: str = ""
    session: str = ""
    incarnation: str = ""
    adopted_by: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """The larger one is the newer deposit."""
        return self.adoptions, self.version


def deposit_of(record: RunRecord) -> Deposit:
    """The deposit of a run as it is now."""
    session = record.session
    phase = record.phase
    if session is not None:
        phase = Phase.RUNNING
    return Deposit(
        format=FORMAT,
        run=record.run,
        job=record.job,
        submitted_at=record.submitted_at,
        adoptions=record.adoptions,
        version=record.version,
        phase=phase,
        generation=record.generation,
        accepted=record.stored,
        reason=bounds.text(record.reason.partition("\n")[0], REASON_BYTES_MAX) if phase.final else "",
        ended_at=record.ended_at if phase.final else None,
        micro_batch_caps=record.micro_batch_caps,
        group=record.group,
        parameters=record.parameters,
        schedule=record.schedule,
        origin=record.origin,
        platform=session.order.platform if session else "",
        session=session.name if session else "",
        incarnation=(session.incarnation or "") if session else "",
        adopted_by=record.adopted_by,
    )


def says_the_same(one: Deposit, other: Deposit) -> bool:
    """Whether two deposits differ in their version only."""
    return replace(one, version=0) == replace(other, version=0)


def archives(job: Job) -> tuple[str, ...]:
    """The sha256 of each archive that the job's sessions need: its source, and what its image is built
    from."""
    image = frozen_image(job.image)
    return tuple(each for each in (job.bundle, image) if each)


# --- Reading one that a store had -----------------------------------------------------------------------


def decode(run: str, data: bytes) -> Deposit:
    """The deposit of this run in these bytes. Raises ValueError, in words, for anything else: another run's,
    a newer version's, names that could lead outside, numbers outside their limits.

    The paths of its inputs are marked as another machine's: nobody here has asked for them to be read. The
    Python that was active there is left out; one that the job's file names stays.
    """
    found = wire.decode(Deposit, data)
    if found.format != FORMAT:
        raise ValueError(f"a newer version wrote it (format {found.format}): update the orchestrator")
    if found.run != run:
        raise ValueError(f"it is about another run: {found.run[:_NAME_LENGTH_MAX]!a}")
    for holds, what in (*_facts(found), *_job_facts(found.job), *_checkpoint_facts(found)):
        if not holds:
            raise ValueError(f"{what} is not valid")
    job = found.job
    python = job.python if job.python is not None and job.python.given else None
    return replace(found, job=replace(job, inputs=tuple(map(_elsewhere, job.inputs)), python=python))


def _elsewhere(each: Input) -> Input:
    return replace(each, origin=ELSEWHERE + each.origin.removeprefix(ELSEWHERE))


def machine(name: str) -> str:
    """The name of a machine as a deposit can hold it."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", name)[: bounds.MACHINE_CHARACTERS_MAX]


def is_run(name: str) -> bool:
    """Whether a run can have this name."""
    return len(name) <= _NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def _facts(found: Deposit) -> tuple[tuple[bool, str], ...]:
    caps = [micro_batch for _, micro_batch in found.micro_batch_caps]
    texts = (found.group, found.schedule, found.origin, *(text for pair in found.parameters for text in pair))
    return (
        (is_run(found.run), "the run's name"),
        (bounds.moment(found.submitted_at) is not None, "the time of the submit"),
        (found.ended_at is None or bounds.moment(found.ended_at) is not None, "the time of the end"),
        (0 <= found.adoptions <= bounds.ADOPTIONS_MAX, "the number of adoptions"),
        (0 < found.version <= VERSION_MAX, "the version"),
        (0 <= found.generation <= bounds.GENERATION_MAX, "the generation"),
        (all(1 <= each <= bounds.MICRO_BATCH_MAX for each in caps), "a micro-batch"),
        (len(found.reason.encode("utf-8", "replace")) <= REASON_BYTES_MAX, "the reason"),
        (all(not name or is_run(name) for name in (found.platform, found.session)), "the session"),
        (_INCARNATION.fullmatch(found.incarnation) is not None, "the incarnation"),
        (_MACHINE.fullmatch(found.adopted_by) is not None, "the machine that adopted it"),
        (all(len(text) <= _TEXT_BYTES_MAX for text in texts), "a text"),
    )


def _job_facts(job: Job) -> tuple[tuple[bool, str], ...]:
    work = job.work
    image = frozen_image(job.image)
    micro_batches = [profile.micro_batch for _, profile in job.profiles]
    counts = (work.total, work.global_batch, work.group)
    inputs = job.inputs
    return (
        (is_run(job.name), "the job's name"),
        (bool(_SHA256.fullmatch(job.bundle)) or (not job.bundle and job.needs.image), "the source's sha256"),
        (image is None or bool(_SHA256.fullmatch(image)), "the image's sha256"),
        (all(1 <= count <= bounds.COUNT_MAX for count in counts), "a number in work"),
        (all(1 <= each <= bounds.MICRO_BATCH_MAX for each in micro_batches), "a micro-batch"),
        (1 <= job.checkpoint.keep.last <= bounds.COUNT_MAX, "checkpoint.keep"),
        (1 <= job.without_progress <= bounds.COUNT_MAX, "retry.without_progress"),
        (len({each.name for each in inputs}) == len(inputs) <= bounds.INPUTS_MAX, "the list of inputs"),
        (all(_FILE_NAME.fullmatch(each.name) for each in inputs), "an input's name"),
        (all(len(each.origin) <= 2 * _TEXT_BYTES_MAX for each in inputs), "an input's path"),
        (all(_SHA256.fullmatch(each.sha256 or "") for each in inputs), "an input's sha256"),
        (job.notify is None or bool(_ADDRESS.fullmatch(job.notify.url)), "notify.url"),
    )


def _checkpoint_facts(found: Deposit) -> tuple[tuple[bool, str], ...]:
    every = found.accepted
    names = {each.name for each in every}
    return (
        (len(names) == len(every) <= bounds.SESSION_CHECKPOINTS_MAX, "the list of checkpoints"),
        (all(CheckpointRef.parse(each.name) == each.ref for each in every), "a checkpoint's name"),
        (all(each.ref.generation <= found.generation for each in every), "a checkpoint's generation"),
        (all(0 <= each.size <= bounds.CHECKPOINT_BYTES_MAX for each in every), "a checkpoint's size"),
        (all(not each.sha256 or _SHA256.fullmatch(each.sha256) for each in every), "a manifest's sha256"),
        (all(len(each.metrics) <= bounds.METRICS_MAX for each in every), "a checkpoint's metrics"),
        (
            all(len(name) <= bounds.METRIC_NAME_BYTES_MAX for each in every for name in each.metrics),
            "a checkpoint's metrics",
        ),
    )


# --- Into a ledger --------------------------------------------------------------------------------------


def submission(found: Deposit, store: str) -> Submitted:
    """The run's first event in another ledger, which calls its home store `store`."""
    return Submitted(
        found.run, found.job, found.submitted_at, store, found.group, found.parameters, found.schedule,
        found.origin,
    )  # fmt: skip


@dataclass(frozen=True)
class Arrival:
    """How a run comes into a ledger. `source`: where it comes from, in words. `by`: the machine of the
    ledger. `generation`: no session of another ledger has a higher number. `adoptions`: of this arrival."""

    at: float
    source: str
    by: str
    generation: int
    adoptions: int


def adoption(found: Deposit, arrival: Arrival) -> tuple[Event, ...]:
    """The events after the submission. A run that was over is over; any other waits for a person."""
    adopted = Adopted(arrival.at, _reason(found, arrival.source), max(found.generation, arrival.generation),
                      found.accepted, arrival.adoptions, found.micro_batch_caps, arrival.by)  # fmt: skip
    ended_at = arrival.at if found.ended_at is None else found.ended_at
    match found.phase:
        case Phase.DONE:
            return adopted, Completed(ended_at, found.reason)
        case Phase.FAILED:
            return adopted, GaveUp(ended_at, found.reason)
        case Phase.CANCELLED:
            return adopted, Cancelled(ended_at, found.reason)
        case _:
            return (adopted,)


def is_over(record: RunRecord, found: Deposit) -> bool:
    """Whether the store knows that the run ended after this record of it was made."""
    return found.phase.final and found.order > (record.adoptions, record.version)


def conclusion(record: RunRecord, found: Deposit, arrival: Arrival) -> tuple[Event, ...]:
    """The events of a run of a backup that is over since. A session that it had in the backup counts as lost:
    it is looked for until its platform confirms that it has ended."""
    events = adoption(found, arrival)
    if record.session is None or record.phase is Phase.COLLECTING:
        return events
    launched = (Prepared(arrival.at),) if record.phase is Phase.PREPARING else ()  # it may have been
    lost = Ended(arrival.at, Outcome.LOST, "the run ended after the backup was made", confirmed=False)
    return *launched, lost, *events


def _reason(found: Deposit, source: str) -> str:
    told = f"adopted from {source}"
    if found.phase.final:
        return told
    if found.session:
        told += f"; its last session {found.session} on {found.platform} may still run"
    at = newest(found.accepted)
    where = f"from step {at.ref.step:,}" if at is not None else "from the beginning"
    return f"{told}; once its old controller is stopped, `release` continues {where}"


def record_of(found: Deposit, store: str) -> RunRecord:
    """The run as an adoption would record it, to look at."""
    record = submit(submission(found, store))
    for event in adoption(found, Arrival(found.submitted_at, store, "", 0, found.adoptions + 1)):
        record = apply(record, event)
    return record
