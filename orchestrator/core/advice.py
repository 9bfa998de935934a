"""What is allowed in a job and probably not meant, in sentences for the person who submits it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.core.accelerators import catalogue, split
from orchestrator.core.job import Job
from orchestrator.core.order import RESUME


def advice(job: Job) -> tuple[str, ...]:
    """One sentence for each thing to look at; empty for most jobs."""
    return tuple(_advice(job))


def _advice(job: Job) -> Iterator[str]:
    given = " ".join(job.command)
    if job.checkpoint.watch is not None and RESUME not in given:
        yield (
            "the command has no {resume}: the script must find what checkpoint.watch brings back by itself, "
            "or each session starts from the beginning"
        )
    if "{micro_batch}" not in given and _has_ladder(job):
        yield (
            "the command has no {micro_batch}: the script gets neither the micro-batch of its profile nor a "
            "smaller one after it ran out of memory"
        )


def _has_ladder(job: Job) -> bool:
    """Whether the micro-batch differs between accelerators, or leaves gradients to accumulate."""
    sizes = {profile.micro_batch for _, profile in job.profiles}
    if len(sizes) > 1:
        return True
    for name, profile in job.profiles:
        devices = catalogue[name].devices if name in catalogue else (split(name) or ("", 1))[1]
        if (job.work.accumulate(profile.micro_batch, devices) or 1) > 1 and "{accumulate}" not in " ".join(
            job.command
        ):
            return True
    return False
