"""What an edit of a job or a schedule changes, and whether a run can go on with it.

Pure. A hop never changes the mathematics, and neither does an edit.
"""

from __future__ import annotations

from orchestrator.core.checkpoint import newest
from orchestrator.core.job import Job, Recurrence
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import Schedule


def clash(run: RunRecord, job: Job) -> str:
    """Why the run cannot go on as this job; empty if it can. A hop never changes the mathematics."""
    best = newest(run.accepted)
    return clash_of(run.job, job, 0 if best is None else best.ref.step)


def clash_of(before: Job, after: Job, done: int) -> str:
    """Why step `done` of one job cannot be step `done` of the other; empty if it can."""
    for key, old, new in (
        ("work.global_batch", before.work.global_batch, after.work.global_batch),
        ("work.group", before.work.group, after.work.group),
        ("seed", before.seed, after.seed),
    ):
        if old != new:
            return f"{key} was {old} and would be {new}"
    if after.work.total < done:
        return f"work.total would be {after.work.total:,}, and step {done:,} is trained already"
    return ""


def job_differences(old: Job, new: Job) -> tuple[str, ...]:
    """What differs between two jobs but their schedules, by the keys of the job."""
    found = [
        name
        for name in ("command", "work", "profiles", "seed", "image", "inputs", "needs", "checkpoint", "route",
                     "env", "secrets", "tags", "notify", "outputs", "shell", "on_nan", "python")
        if getattr(old, name) != getattr(new, name)
    ]  # fmt: skip
    if old.bundle != new.bundle:
        found.insert(0, "source")
    if old.all_requirements != new.all_requirements:
        found.append("requirements")
    if old.without_progress != new.without_progress:
        found.append("retry")
    return tuple(found)


def differences(before: Schedule, job: Job, store: str) -> tuple[str, ...]:
    """What an edit of a schedule changes, by the keys of the job."""
    old, new = before.job, job
    found = list(job_differences(old, new))
    given, wanted = old.schedule or Recurrence(""), new.schedule or Recurrence("")
    for name in ("cron", "timezone", "mode", "overlap", "catch_up", "jitter_seconds", "window"):
        if getattr(given, name) != getattr(wanted, name):
            found.append(f"schedule.{name.removesuffix('_seconds')}")
    if before.store != store:
        found.append("the home store")
    if not found and old != new:
        found.append("the job")
    return tuple(found)
