"""What an edit of a schedule changes, and whether its growing run can go on with it.

Pure. A hop never changes the mathematics, and neither does an edit.
"""

from __future__ import annotations

from orchestrator.core.checkpoint import newest
from orchestrator.core.job import Job, Recurrence
from orchestrator.core.run import RunRecord
from orchestrator.core.schedule import Schedule


def clash(run: RunRecord, job: Job) -> str:
    """Why the growing run cannot go on as this job; empty if it can. A hop never changes the mathematics."""
    before, after = run.job, job
    best = newest(run.accepted)
    done = 0 if best is None else best.ref.step
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


def differences(before: Schedule, job: Job, store: str) -> tuple[str, ...]:
    """What an edit changes, by the keys of the job."""
    old, new = before.job, job
    found = [
        name
        for name in ("command", "work", "profiles", "seed", "image", "inputs", "needs", "checkpoint", "route",
                     "env", "secrets", "tags", "notify", "outputs", "shell", "on_nan")
        if getattr(old, name) != getattr(new, name)
    ]  # fmt: skip
    if old.bundle != new.bundle:
        found.insert(0, "source")
    if old.all_requirements != new.all_requirements:
        found.append("requirements")
    if old.without_progress != new.without_progress:
        found.append("retry")
    given, wanted = old.schedule or Recurrence(""), new.schedule or Recurrence("")
    for name in ("cron", "timezone", "mode", "overlap", "catch_up", "jitter_seconds", "window"):
        if getattr(given, name) != getattr(wanted, name):
            found.append(f"schedule.{name.removesuffix('_seconds')}")
    if before.store != store:
        found.append("the home store")
    if not found and old != new:
        found.append("the job")
    return tuple(found)
