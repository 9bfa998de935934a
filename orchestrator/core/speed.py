"""How fast a job will train on an accelerator: claims, the roofline and measurements → a rate.

The model is explained in docs/references/training.md#speed-model. Rates are in samples per second at the
job's reference cost (its `flops_per_step`). Where a step's cost changes, they are converted by FLOPs, so that
what was measured in a cheap phase predicts the expensive one. Must never know platforms, sessions or quota.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from orchestrator.core.accelerators import Accelerator
from orchestrator.core.job import Claim, Precision, Profile, Work
from orchestrator.core.own_accelerators import OwnAccelerator, row_of

PRIOR_SIGMA = 0.7  # docs/references/training.md#speed-model
CLAIM_SIGMA = 1.0  # a claim that cannot be checked by FLOPs: docs/references/training.md#claims
TRANSFER_SIGMA = PRIOR_SIGMA * math.sqrt(2)  # the share of the peak is guessed for both accelerators
GUESS_SIGMA = math.log(10)
GUESS_FLOPS = 1e11  # the cost of a sample if nothing is known: docs/references/training.md#claims
MACHINE_SIGMA = 0.05  # how far two sessions of one accelerator differ; assumption
SETTLING_SECONDS = 60.0  # docs/references/training.md#speed-model
OTHER_MICRO_BATCH_SIGMA = 0.3  # a rate measured with another micro-batch is less certain; assumption
MEASUREMENTS_MAX = 32


class Evidence(StrEnum):
    """What a rate is based on, strongest first."""

    MEASURED = "measured"
    CLAIM = "claim"
    PEAK = "peak"
    TRANSFER = "transfer"  # measured on another accelerator, scaled by the expected speed of both
    GUESS = "guess"


class Plausibility(StrEnum):
    """A claim against the physical bound: all of it below, only its high end above, or all of it above."""

    POSSIBLE = "possible"
    PARTLY = "partly impossible"
    IMPOSSIBLE = "impossible"


@dataclass(frozen=True)
class Measurement:
    """A measured rate of this job: samples per second over `seconds` of training, starting at step `step`.

    `at` is when it ended, in unix seconds; only the newest measurements count. `own` as in the order.
    """

    accelerator: str
    precision: Precision
    micro_batch: int
    samples_per_second: float
    seconds: float
    at: float
    step: int = 0
    own: OwnAccelerator | None = None


@dataclass(frozen=True)
class Rate:
    """Samples per second at the job's reference cost: the median, and one standard deviation either way.

    `sigma` is the standard deviation of ln rate. `bound` is what the peak allows, None if the FLOPs of a step
    are unknown; neither end of the error bar exceeds it, unless a faster rate was measured. `claim` says how
    plausible the profile's claim is.
    """

    samples_per_second: float
    low: float
    high: float
    sigma: float
    bound: float | None
    evidence: Evidence
    source: str
    claim: Plausibility | None = None

    @property
    def known(self) -> bool:
        """Whether it is good enough to reject a job; a guess is not."""
        return self.evidence is not Evidence.GUESS


def rate(
    work: Work,
    profile: Profile,
    accelerator: Accelerator,
    measurements: Sequence[Measurement] = (),
    *,
    micro_batch: int | None = None,
) -> Rate:
    """The expected rate of this job on an accelerator: the prior, updated by the measurements.

    `measurements` are of this job on any accelerator. `micro_batch` is the one that will be used; None means
    the profile's. The profile's precision must be native to the accelerator.
    """
    prior = _prior(work, profile, accelerator, measurements)
    mine = [m for m in measurements if _usable(m) and _same_class(m, profile, accelerator)]
    if not mine:
        return prior
    return _updated(prior, work, mine, profile.micro_batch if micro_batch is None else micro_batch)


def _usable(m: Measurement) -> bool:
    return m.seconds > 0 and m.samples_per_second > 0


def _same_class(m: Measurement, profile: Profile, accelerator: Accelerator) -> bool:
    return m.accelerator == accelerator.name and m.precision is profile.precision


def _prior(
    work: Work, profile: Profile, accelerator: Accelerator, measurements: Sequence[Measurement]
) -> Rate:
    peak = accelerator.peak_flops[profile.precision]
    sample_flops = reference_flops(work)
    claimed = None if profile.claim is None else math.sqrt(math.prod(profile.claim.samples_per_second))
    if sample_flops is not None:
        return _prior_by_peak(work, profile, accelerator, peak / sample_flops, claimed)
    if claimed is not None and profile.claim is not None:
        source = f"{_claim_text(profile.claim)}; not checked, because work.flops_per_step is not given"
        return _lognormal(claimed, CLAIM_SIGMA, None, Evidence.CLAIM, source)
    elsewhere = [m for m in measurements if _usable(m) and _expected_flops(m) is not None]
    if elsewhere:
        newest = max(elsewhere, key=lambda m: m.at)
        reached = newest.samples_per_second * relative_cost(work, newest.step)
        scale = accelerator.mfu * peak / (_expected_flops(newest) or 1.0)
        source = f"measured on {newest.accelerator}, scaled by the expected speed of both accelerators"
        return _lognormal(reached * scale, TRANSFER_SIGMA, None, Evidence.TRANSFER, source)
    source = "unknown until measured: neither work.flops_per_step nor a claim is given"
    return _lognormal(accelerator.mfu * peak / GUESS_FLOPS, GUESS_SIGMA, None, Evidence.GUESS, source)


def _prior_by_peak(
    work: Work, profile: Profile, accelerator: Accelerator, bound: float, claimed: float | None
) -> Rate:
    expected = accelerator.mfu * bound
    peak_text = (
        f"{accelerator.mfu:g} of the {accelerator.peak_flops[profile.precision] / 1e12:g} TFLOP/s "
        f"{profile.precision.value} peak of {accelerator.name}"
    )
    if profile.claim is None or claimed is None:
        return _lognormal(expected, PRIOR_SIGMA, bound, Evidence.PEAK, f"first guess: {peak_text}")
    plausible = plausibility(profile.claim, bound)
    source = f"{_claim_text(profile.claim)}{_doubt_text(work, profile.claim, bound, plausible)}"
    if claimed < expected:
        return _lognormal(claimed, PRIOR_SIGMA, bound, Evidence.CLAIM, source, plausible)
    return _lognormal(
        expected, PRIOR_SIGMA, bound, Evidence.PEAK, f"first guess: {peak_text}; {source}", plausible
    )


def _lognormal(
    median: float,
    sigma: float,
    bound: float | None,
    evidence: Evidence,
    source: str,
    claim: Plausibility | None = None,
) -> Rate:
    # Cut at the bound, without renormalising. Renormalising would move the median by 4 % at a share of 0.3
    # of the peak, which is less than the model's own error.
    ceiling = math.inf if bound is None else bound
    low, high = median * math.exp(-sigma), median * math.exp(sigma)
    return Rate(
        min(median, ceiling), min(low, ceiling), min(high, ceiling), sigma, bound, evidence, source, claim
    )


def _updated(prior: Rate, work: Work, mine: list[Measurement], micro_batch: int) -> Rate:
    # The conjugate update of a normal mean (ln rate) by observations of known variance.
    if len(mine) > MEASUREMENTS_MAX:
        mine = sorted(mine, key=lambda m: m.at)[-MEASUREMENTS_MAX:]
    weight = prior.sigma**-2
    total = weight * math.log(prior.samples_per_second)
    seconds = fastest = 0.0
    for m in mine:
        reached = m.samples_per_second * relative_cost(work, m.step)
        variance = MACHINE_SIGMA**2 * (1 + SETTLING_SECONDS / m.seconds)
        if m.micro_batch != micro_batch:
            variance += OTHER_MICRO_BATCH_SIGMA**2
        weight += 1 / variance
        total += math.log(reached) / variance
        seconds += m.seconds
        fastest = max(fastest, reached)
    sigma = max(MACHINE_SIGMA, math.sqrt(1 / weight))
    source = f"measured over {seconds:,.0f} s of training"
    bound = prior.bound
    if bound is not None and fastest > bound:
        # A measurement wins over a datasheet and over the declared FLOPs.
        source += f", faster than the peak allows at the declared FLOPs ({bound:.4g} samples/s)"
        bound = None
    rate = _lognormal(math.exp(total / weight), sigma, bound, Evidence.MEASURED, source, prior.claim)
    return replace(rate, bound=prior.bound)


def _expected_flops(m: Measurement) -> float | None:
    row = row_of(m)
    peak = None if row is None else row.peak_flops.get(m.precision)
    return None if row is None or peak is None else row.mfu * peak


# --- Claims ---------------------------------------------------------------------------------------------


def plausibility(claim: Claim, bound: float) -> Plausibility:
    """How a claim compares with `bound`, the samples per second that the peak allows."""
    low, high = claim.samples_per_second
    if low > bound:
        return Plausibility.IMPOSSIBLE
    return Plausibility.PARTLY if high > bound else Plausibility.POSSIBLE


def _claim_text(claim: Claim) -> str:
    low, high = claim.steps_per_second
    return f"claim of {low:g}–{high:g} steps/s at batch {claim.batch} on {claim.on} ({claim.source})"


def _doubt_text(work: Work, claim: Claim, bound: float, plausible: Plausibility) -> str:
    if plausible is Plausibility.POSSIBLE:
        return ""
    low, high = (end / bound for end in claim.samples_per_second)
    over = f"{low:.2g}–{high:.2g}" if plausible is Plausibility.IMPOSSIBLE else f"up to {high:.2g}"
    allowed = bound / work.global_batch
    return f" is {plausible.value}: {over} × the {allowed:.3g} steps/s that the peak allows"


# --- Work in seconds ------------------------------------------------------------------------------------


def reference_flops(work: Work) -> float | None:
    """FLOPs of one sample at the reference cost: `flops_per_step`, else the mean over the phases."""
    if work.flops_per_step is not None:
        return work.flops_per_step / work.global_batch
    if not work.phases:
        return None
    spent = sum(
        max(0.0, min(end, work.total) - phase.start) * phase.flops_per_step
        for phase, end in zip(work.phases, _phase_ends(work), strict=True)
    )
    return spent / work.total / work.global_batch


def _phase_ends(work: Work) -> tuple[float, ...]:
    return (*(phase.start for phase in work.phases[1:]), math.inf)


def relative_cost(work: Work, step: int) -> float:
    """The cost of a step at this point of the training, in steps of the reference cost."""
    return next((cost for start, end, cost in _segments(work) if start <= step < end), 1.0)


def _segments(work: Work) -> Iterator[tuple[int, float, float]]:
    """(first step, step after the last, relative cost); the last segment never ends."""
    reference = reference_flops(work)
    if not work.phases or reference is None:
        yield 0, math.inf, 1.0
        return
    for phase, end in zip(work.phases, _phase_ends(work), strict=True):
        yield phase.start, end, phase.flops_per_step / work.global_batch / reference


def samples_for(work: Work, from_step: int, to_step: int) -> float:
    """The samples between two steps, counted at the reference cost."""
    if not work.phases:
        return float(max(0, to_step - from_step) * work.global_batch)
    steps = sum(
        max(0.0, min(end, to_step) - max(start, from_step)) * cost for start, end, cost in _segments(work)
    )
    return steps * work.global_batch


def seconds_for(work: Work, from_step: int, to_step: int, rate: Rate) -> float:
    """The median time of pure training between two steps, in seconds."""
    return samples_for(work, from_step, to_step) / rate.samples_per_second


def step_seconds(work: Work, step: int, rate: Rate) -> float:
    """The median time of one step at this point of the training, in seconds."""
    return work.global_batch * relative_cost(work, step) / rate.samples_per_second


def step_after(work: Work, from_step: int, seconds: float, rate: Rate) -> int:
    """The last whole step reached after `seconds` of pure training; at most `total`."""
    left = seconds * rate.samples_per_second / work.global_batch
    step = from_step
    for start, end, cost in _segments(work):
        if end <= step:
            continue
        here = min(end, work.total) - max(start, step)
        if left < here * cost:
            # A rounding error below a whole step must not lose that step.
            return step + int(left / cost + 1e-6)
        left -= here * cost
        step = min(int(min(end, work.total)), work.total)
        if step >= work.total:
            break
    return step
