"""Which of a job's profiles an accelerator uses: the most exact one.

The accelerator's own name wins, then the largest `gpu>=NGB` whose memory it has, then `gpu`, then `default`.
The memory is that of one device in the catalogue. Pure.
"""

from __future__ import annotations

import re

from orchestrator.core.job import Job, Kind, Profile
from orchestrator.core.own_accelerators import Place, row_of

DEFAULT = "default"
GPU = "gpu"
_AT_LEAST = re.compile(r"gpu>=([0-9]{1,5}(?:\.[0-9]{1,3})?)GB")


def least_memory_gb(key: str) -> float | None:
    """The memory in a key such as `gpu>=24GB`; None if it is no such key."""
    match = _AT_LEAST.fullmatch(key)
    return float(match[1]) if match else None


def is_general(key: str) -> bool:
    """Whether the key names no single accelerator."""
    return key in (DEFAULT, GPU) or least_memory_gb(key) is not None


def profile_key(job: Job, place: Place) -> str | None:
    """The key of the profile for this offer or order; None if the job has none."""
    keys = [key for key, _ in job.profiles]
    if place.accelerator in keys:
        return place.accelerator
    row = row_of(place)
    if row is not None and row.kind is Kind.GPU:
        sizes = [(least, key) for key in keys if (least := least_memory_gb(key)) is not None]
        fitting = [(least, key) for least, key in sizes if least <= row.memory_gb]
        if fitting:
            return max(fitting)[1]
        if GPU in keys:
            return GPU
    return DEFAULT if DEFAULT in keys else None


def profile_of(job: Job, place: Place) -> Profile | None:
    """The profile for this offer or order; None if the job has none."""
    key = profile_key(job, place)
    return None if key is None else dict(job.profiles)[key]
