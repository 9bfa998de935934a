"""Turns a choice into an order: everything the next session must do, fixed before anything starts.

Pure. Knows how placeholders are filled and which checkpoint to resume; not where or how it is launched.
"""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.core import slices
from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.estimate import mean_time_to_failure
from orchestrator.core.job import Job
from orchestrator.core.offer import Choice
from orchestrator.core.order import RESUME, Order, session_name
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.profiles import profile_of
from orchestrator.core.run import RunRecord

GIB = 1024**3
_IN_SCRIPT = re.compile(r"(?<!\$)\{(steps|micro_batch|accumulate|devices|precision|seed)\}")
PARKED_BUDGET_MIN = 0.8  # of the budget that a new order would have


def assign(record: RunRecord, choice: Choice, opens_seconds: float | None = None, now: float = 0.0) -> Order:
    """The order of the run's next session (generation + 1) on the chosen offer.

    It resumes at the newest accepted checkpoint. The budget is the session limit or the quota left, whichever
    is less, minus the margin (docs/decisions/008-budgets-and-quota-windows.md). Without either it is
    `opens_seconds`: the time until another offer opens and the run may move. It ends with the window of the
    run's schedule, if there is one; a slice without a window is one session, so it does not move.
    """
    job, offer = record.job, choice.offer
    budget = budget_seconds(choice, opens_seconds if record.slice is None else None)
    profile, row = profile_of(job, offer), row_of(offer)
    assert profile is not None
    assert row is not None
    needed = job.requirements_on(row.kind)
    generation = record.generation + 1
    resume = newest(record.accepted)
    steps_per_second = choice.estimate.samples_per_second / job.work.global_batch
    return Order(
        run=record.run,
        session=session_name(record.run, generation),
        generation=generation,
        platform=offer.platform,
        accelerator=offer.accelerator,
        devices=choice.devices,
        command=fill(job, choice),
        bundle=job.bundle,
        global_batch=job.work.global_batch,
        micro_batch=choice.micro_batch,
        precision=profile.precision,
        steps_total=job.work.total,
        seed=job.seed,
        keep=job.checkpoint.keep,
        budget_seconds=slices.within(budget, record, offer, now),
        interval_seconds=job.checkpoint.interval_seconds,
        resume=resume.name if resume else None,
        resume_step=resume.ref.step if resume else 0,
        resume_sha256=(resume.sha256 or None) if resume else None,
        expected_steps_per_second=steps_per_second,
        threads=offer.threads,
        memory_bytes=None
        if offer.memory_gb is None or not offer.limit_memory
        else int(offer.memory_gb * GIB),
        disk_gb=job.needs.disk_gb,
        image=job.image,
        requirements=needed.file if needed else None,
        requirements_lock=needed.lock if needed else None,
        internet=job.needs.internet,
        inputs=job.inputs,
        env=job.env,
        secrets=job.secrets,
        mean_time_to_failure=None if offer.lifetimes is None else mean_time_to_failure(offer),
        leave_by=slices.leave_by(record, offer),
        outputs=job.outputs,
        watch=job.checkpoint.watch,
        shell=job.shell,
        on_nan=job.on_nan,
        python=job.python if offer.traits.own_python else None,
        own=offer.own,
    )


def again(parked: Order | None, order: Order) -> Order:
    """The order of a prepared session that its platform refused to start, if it still fits; else `order`.

    It fits if it means the same and its budget is not much shorter.
    """
    if parked is None:
        return order
    same = replace(
        order,
        session=parked.session,
        generation=parked.generation,
        budget_seconds=parked.budget_seconds,
        expected_steps_per_second=parked.expected_steps_per_second,
        image=parked.image,
        mean_time_to_failure=parked.mean_time_to_failure,
    )
    if same != parked:
        return order
    if parked.budget_seconds is None or order.budget_seconds is None:
        return parked if parked.budget_seconds == order.budget_seconds else order
    fits = PARKED_BUDGET_MIN * order.budget_seconds <= parked.budget_seconds <= order.budget_seconds
    return parked if fits else order


def budget_seconds(choice: Choice, opens_seconds: float | None = None) -> float | None:
    """Seconds from the agent's start until it must have left; None if nothing limits the session."""
    traits, quota = choice.offer.traits, choice.offer.quota
    walls = (traits.session_seconds, quota.left_seconds if quota is not None else None)
    limits = [wall - traits.wall_margin_seconds for wall in walls if wall is not None]
    if choice.stay_seconds is not None:
        limits.append(choice.stay_seconds)
    return max(0.0, min(limits)) if limits else opens_seconds


def fill(job: Job, choice: Choice) -> tuple[str, ...]:
    """The command with its placeholders filled; every argument stays one argument."""
    profile = profile_of(job, choice.offer)
    assert profile is not None
    values = {
        "steps": job.work.total,
        "micro_batch": choice.micro_batch,
        "accumulate": choice.accumulate,
        "devices": choice.devices,
        "precision": profile.precision.value,
        "seed": job.seed,
        "resume": RESUME,  # only the agent knows the path
    }
    if job.shell:  # its braces are the shell's own, except around these names
        return tuple(_IN_SCRIPT.sub(lambda match: str(values[match[1]]), word) for word in job.command)
    return tuple(word.format_map(values) for word in job.command)


def fall_back(order: Order, resume: Accepted | None) -> Order:
    """The same order resuming at an earlier checkpoint, or from the beginning."""
    return replace(
        order,
        resume=resume.name if resume else None,
        resume_step=resume.ref.step if resume else 0,
        resume_sha256=(resume.sha256 or None) if resume else None,
    )
