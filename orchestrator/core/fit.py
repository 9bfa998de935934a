"""Whether an accelerator can run a job at all. A reason given here never changes with time.

Must never know time, quota, other runs or rates. `orchestrator.core.route` asks it before anything else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from orchestrator.core.accelerators import Accelerator
from orchestrator.core.estimate import Terms, terms
from orchestrator.core.job import Job, Kind, Profile
from orchestrator.core.offer import Offer
from orchestrator.core.own_accelerators import row_of
from orchestrator.core.profiles import least_memory_gb, profile_of
from orchestrator.core.wording import count_text, span


@dataclass(frozen=True, slots=True)
class Fit:
    """How the job would run on an accelerator that can hold it."""

    row: Accelerator
    profile: Profile
    micro_batch: int
    accumulate: int
    terms: Terms


def may_use(job: Job, platform: str) -> bool:
    """Whether the job allows this platform."""
    return not job.route.platforms or platform in job.route.platforms


def fit_on(job: Job, offer: Offer, micro_batch_caps: Mapping[str, int]) -> Fit | str:
    """How the job fits the offer, or the reason why it never will.

    `micro_batch_caps`: per accelerator, the largest micro-batch that has not run out of memory.
    """
    name = offer.accelerator
    row = row_of(offer)
    if row is None:
        return f"{name!r} is neither in the catalogue nor in the config's `accelerators`"
    if row.retired is not None:
        return f"{name} is retired: {row.retired}"
    if not may_use(job, offer.platform):
        return f"route.platforms allows only {', '.join(job.route.platforms)}"
    profile = profile_of(job, offer)
    if profile is None:
        return _no_profile(job, row)
    limit = min(profile.micro_batch, micro_batch_caps.get(name, profile.micro_batch))
    micro_batch = _micro_batch(job, limit, row.devices)
    accumulate = None if micro_batch is None else job.work.accumulate(micro_batch, row.devices)
    if micro_batch is None or accumulate is None:
        return (
            f"no micro-batch up to {limit} divides the global batch of {job.work.global_batch} on "
            f"{count_text(row.devices, 'device')} in groups of {job.work.group}"
        )
    session = terms(job, offer)
    if session.productive <= 0:
        return too_short(session)
    reason = _wrong_precision(job, profile, row) or _lacking(job, profile, micro_batch, offer, row)
    return reason or Fit(row, profile, micro_batch, accumulate, session)


def _no_profile(job: Job, row: Accelerator) -> str:
    """With the keys that would be for it."""
    is_gpu = row.kind is Kind.GPU
    keys = (f"`{row.name}`", *(("`gpu`",) if is_gpu else ()), "`default`")
    told = f"the job has no profile for {row.name} and no default profile"
    sizes = [size for key, _ in job.profiles if (size := least_memory_gb(key)) is not None]
    if is_gpu and sizes:
        told += f", and its {row.memory_gb:g} GB are less than `gpu>={min(sizes):g}GB` asks for"
    return f"{told}: add one under {', '.join(keys[:-1])} or {keys[-1]}"


def _micro_batch(job: Job, limit: int, devices: int) -> int | None:
    if job.work.accumulate(limit, devices) is not None:
        return limit
    return job.work.next_micro_batch(limit, devices)


def _wrong_precision(job: Job, profile: Profile, row: Accelerator) -> str | None:
    asked = job.route.precision
    if asked is not None and profile.precision is not asked:
        return f"route.precision asks for {asked.value}, but the profile says {profile.precision.value}"
    if profile.precision not in row.peak_flops:
        native = ", ".join(sorted(p.value for p in row.precisions))
        return f"{row.name} has no native {profile.precision.value}, only {native}"
    return None


def _lacking(job: Job, profile: Profile, micro_batch: int, offer: Offer, row: Accelerator) -> str | None:
    memory = row.memory_gb if offer.memory_gb is None else offer.memory_gb
    wanted = job.needs.memory_gb if profile.memory_gb is None else profile.memory_gb
    # The figure is for the profile's own micro-batch, so a smaller one is allowed to try.
    if wanted > memory and micro_batch == profile.micro_batch:
        return f"needs {wanted:g} GB of memory per device, but {row.name} has {memory:g}"
    if offer.disk_gb is not None and job.needs.disk_gb > offer.disk_gb:
        return f"needs {job.needs.disk_gb:g} GB of disk, but only {offer.disk_gb:g} are available"
    if job.needs.internet and not offer.traits.internet:
        return "needs internet access, and sessions there have none"
    if job.secrets and not offer.traits.secrets:
        return "the job lists secrets, and this platform gets none: set `send_secrets: true` in the config"
    if job.needs.image and not offer.traits.custom_images:
        return "the job's code is in its image, and sessions there cannot run images"
    if job.image is None and offer.traits.needs_image:
        return "the job names no image, and sessions there need one: give the job or the platform an `image`"
    return None


def too_short(session: Terms) -> str:
    """The reason why a session with these terms achieves nothing."""
    step = f"a step ({span(session.step)})" if session.step else "a step"
    return (
        f"a session of {span(max(0.0, session.budget))} is too short for set-up ({span(session.setup)}), "
        f"{step} and a save ({span(session.save)})"
    )
