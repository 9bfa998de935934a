"""The speed model: checked against the peaks that it is computed from, and how measurements change it."""

from __future__ import annotations

import math

import pytest

from orchestrator.core.accelerators import catalogue
from orchestrator.core.job import Claim, CostPhase, Precision, Profile, Work
from orchestrator.core.speed import (
    Evidence,
    Measurement,
    Plausibility,
    Rate,
    rate,
    reference_flops,
    samples_for,
    seconds_for,
    step_after,
)

FP16, BF16, FP32 = Precision.FP16, Precision.BF16, Precision.FP32

# The precision of each peak in docs/references/accelerators.md#peaks.
PRECISION = {
    "T4": FP16, "T4x2": FP16, "P100": FP16, "V100": FP16, "RTX3050": FP16, "RTX3090": FP16,
    "K80half": FP32, "TPUv2-8": BF16, "TPUv5e-1": BF16, "H200": BF16,
}  # fmt: skip
# job: (FLOPs a step, bound in steps/s, expectation in steps/s), in PRECISION's order.
SPEEDS: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "graphmer_b64_s768": (
        25697648325427.2,
        (2.529, 5.059, 0.728, 4.864, 0.708, 2.763, 0.16, 7.005, 7.666, 38.486),
        (0.759, 1.416, 0.218, 1.605, 0.248, 1.243, 0.08, 2.101, 2.683, 13.47),
    ),
    "graphmer_b32_s768": (
        12848824162713.6,
        (5.059, 10.118, 1.455, 9.729, 1.416, 5.526, 0.319, 14.009, 15.332, 76.972),
        (1.518, 2.833, 0.437, 3.21, 0.496, 2.487, 0.16, 4.203, 5.366, 26.94),
    ),
    "graphmer_b16_s768": (
        6424412081356.8,
        (10.118, 20.235, 2.911, 19.457, 2.833, 11.052, 0.638, 28.018, 30.664, 153.944),
        (3.035, 5.666, 0.873, 6.421, 0.992, 4.973, 0.319, 8.405, 10.732, 53.88),
    ),
    "graphmer_b256_s768": (
        102790593301708.8,
        (0.632, 1.265, 0.182, 1.216, 0.177, 0.691, 0.04, 1.751, 1.917, 9.622),
        (0.19, 0.354, 0.055, 0.401, 0.062, 0.311, 0.02, 0.525, 0.671, 3.368),
    ),
    "rna_b48_L1200": (
        2452045824000,
        (26.508, 53.017, 7.626, 50.978, 7.422, 28.955, 1.672, 73.408, 80.341, 403.337),
        (7.953, 14.845, 2.288, 16.823, 2.598, 13.03, 0.836, 22.022, 28.119, 141.168),
    ),
    "rna_b24_L1200": (
        1226022912000,
        (53.017, 106.034, 15.253, 101.956, 14.845, 57.911, 3.344, 146.816, 160.682, 806.673),
        (15.905, 29.689, 4.576, 33.645, 5.196, 26.06, 1.672, 44.045, 56.239, 282.336),
    ),
    "rna_b16_L1200": (
        817348608000,
        (79.525, 159.051, 22.879, 152.934, 22.267, 86.866, 5.016, 220.224, 241.023, 1210.01),
        (23.858, 44.534, 6.864, 50.468, 7.793, 39.09, 2.508, 66.067, 84.358, 423.504),
    ),
    "rna_b12_L1200": (
        613011456000,
        (106.034, 212.068, 30.505, 203.911, 29.689, 115.822, 6.688, 293.632, 321.364, 1613.347),
        (31.81, 59.379, 9.152, 67.291, 10.391, 52.12, 3.344, 88.09, 112.478, 564.671),
    ),
    "ember_small_b8": (
        147313754112,
        (441.235, 882.47, 126.94, 848.529, 123.546, 481.965, 27.832, 1221.882, 1337.282, 6713.562),
        (132.371, 247.092, 38.082, 280.015, 43.241, 216.884, 13.916, 366.565, 468.049, 2349.747),
    ),
    "ember_large_b32": (
        1859206053888,
        (34.961, 69.922, 10.058, 67.233, 9.789, 38.188, 2.205, 96.816, 105.959, 531.947),
        (10.488, 19.578, 3.017, 22.187, 3.426, 17.185, 1.103, 29.045, 37.086, 186.182),
    ),
    "lejepa_b16": (
        6033813897216.0,
        (10.773, 21.545, 3.099, 20.717, 3.016, 11.767, 0.68, 29.832, 32.649, 163.91),
        (3.232, 6.033, 0.93, 6.836, 1.056, 5.295, 0.34, 8.95, 11.427, 57.368),
    ),
    "lejepa_b128": (
        48270511177728.0,
        (1.347, 2.693, 0.387, 2.59, 0.377, 1.471, 0.085, 3.729, 4.081, 20.489),
        (0.404, 0.754, 0.116, 0.855, 0.132, 0.662, 0.042, 1.119, 1.428, 7.171),
    ),
}  # fmt: skip
CASES = [
    (job, flops, name, bound, expected)
    for job, (flops, bounds, expectations) in SPEEDS.items()
    for name, bound, expected in zip(PRECISION, bounds, expectations, strict=True)
]


def work_of(
    flops: float | None, *, batch: int = 64, total: int = 50_000, phases: tuple[CostPhase, ...] = ()
) -> Work:
    return Work(total, batch, flops_per_step=flops, phases=phases)


def claimed(low: float, high: float, batch: int) -> Claim:
    return Claim((low, high), batch, "T4", "platform comparison", "2025-10-21")


def steps_per_second(rate: Rate, batch: int = 64) -> float:
    return rate.samples_per_second / batch


@pytest.mark.parametrize(("job", "flops", "name", "bound", "expected"), CASES)
def test_bound_and_expectation_are_those_of_the_facts(
    job: str, flops: float, name: str, bound: float, expected: float
) -> None:
    found = rate(work_of(flops), Profile(8, PRECISION[name]), catalogue[name])
    assert found.bound is not None
    assert found.bound / 64 == pytest.approx(bound, rel=0.005, abs=0.0006), job
    assert steps_per_second(found) == pytest.approx(expected, rel=0.005, abs=0.0006), job
    assert found.low < found.samples_per_second < found.high <= found.bound
    assert found.evidence is Evidence.PEAK


# docs/references/training.md#claims: TFLOP a step, batch, claim in steps/s, bound, expectation.
CLAIMS = [
    ("T4", FP16, 25.7, 64, (10, 25), 2.53, 0.76, Plausibility.IMPOSSIBLE),
    ("P100", FP16, 25.7, 64, (10, 25), 0.73, 0.22, Plausibility.IMPOSSIBLE),
    ("RTX3050", FP16, 12.85, 32, (5, 8), 1.42, 0.50, Plausibility.IMPOSSIBLE),
    ("TPUv2-8", BF16, 6.42, 16, (1, 2), 28.0, math.sqrt(2), Plausibility.POSSIBLE),
    ("TPUv2-8", BF16, 102.8, 256, (1, 2), 1.75, 0.53, Plausibility.PARTLY),
    ("V100", FP16, 2.45, 48, (15, 25), 51.0, 16.8, Plausibility.POSSIBLE),
    ("P100", FP16, 1.226, 24, (8, 15), 15.3, 4.6, Plausibility.POSSIBLE),
    ("T4", FP16, 0.817, 16, (5, 10), 80.0, math.sqrt(50), Plausibility.POSSIBLE),
    ("K80half", FP32, 0.613, 12, (3, 6), 6.7, 3.3, Plausibility.POSSIBLE),
]


@pytest.mark.parametrize(
    ("name", "precision", "teraflop", "batch", "claim", "bound", "expected", "plausible"), CLAIMS
)
def test_claims_are_judged_as_the_facts_judge_them(
    name: str,
    precision: Precision,
    teraflop: float,
    batch: int,
    claim: tuple[float, float],
    bound: float,
    expected: float,
    plausible: Plausibility,
) -> None:
    profile = Profile(4, precision, claim=claimed(*claim, batch))
    found = rate(work_of(teraflop * 1e12, batch=batch), profile, catalogue[name])
    assert found.claim is plausible
    assert found.bound is not None
    assert found.bound / batch == pytest.approx(bound, rel=0.02)
    assert steps_per_second(found, batch) == pytest.approx(expected, rel=0.03)
    assert ("impossible" in found.source) == (plausible is not Plausibility.POSSIBLE)


def test_an_impossible_claim_says_by_how_much() -> None:
    found = rate(work_of(25.7e12), Profile(16, FP16, claim=claimed(10, 25, 64)), catalogue["T4"])
    assert "4–9.9 × the 2.53 steps/s that the peak allows" in found.source


CURRICULUM = (CostPhase(0, 17e12), CostPhase(15_000, 25.7e12))


@pytest.mark.parametrize(("name", "hours"), [("T4", 16.3), ("T4x2", 8.7), ("H200", 0.9)])
def test_fifty_thousand_steps_take_the_hours_of_the_facts(name: str, hours: float) -> None:
    work = work_of(25.7e12, phases=CURRICULUM)
    found = rate(work, Profile(16, PRECISION[name]), catalogue[name])
    assert seconds_for(work, 0, work.total, found) / 3600 == pytest.approx(hours, rel=0.05)


def measured(
    samples: float, *, seconds: float = 600, step: int = 0, name: str = "T4", micro_batch: int = 16
) -> Measurement:
    return Measurement(name, FP16, micro_batch, samples, seconds, at=1000.0, step=step)


def test_a_minute_of_measuring_beats_the_prior() -> None:
    work, profile = work_of(25.7e12), Profile(16, FP16, claim=claimed(10, 25, 64))
    prior = rate(work, profile, catalogue["T4"])
    found = rate(work, profile, catalogue["T4"], [measured(10.0, seconds=60)])
    assert found.evidence is Evidence.MEASURED
    assert found.samples_per_second == pytest.approx(10.0, rel=0.05)
    assert found.sigma < 0.1 < prior.sigma
    assert found.low < 10.0 < found.high * 1.05
    assert found.claim is Plausibility.IMPOSSIBLE


def test_more_measuring_pulls_closer_and_narrows_the_error_bar() -> None:
    work, profile = work_of(25.7e12), Profile(16, FP16)
    found = [rate(work, profile, catalogue["T4"], [measured(5.0, seconds=s)]) for s in (1.0, 10.0, 1000.0)]
    errors = [abs(math.log(r.samples_per_second / 5.0)) for r in found]
    assert errors == sorted(errors, reverse=True)
    assert [r.sigma for r in found] == sorted((r.sigma for r in found), reverse=True)


@pytest.mark.parametrize(
    "other",
    [
        measured(10.0, name="V100"),
        Measurement("T4", FP32, 16, 10.0, 600, at=0.0),
        measured(10.0, seconds=0.0),
        measured(0.0),
    ],
)
def test_what_was_not_measured_here_changes_nothing(other: Measurement) -> None:
    work, profile = work_of(25.7e12), Profile(16, FP16)
    assert rate(work, profile, catalogue["T4"], [other]) == rate(work, profile, catalogue["T4"])


def test_another_micro_batch_tells_less() -> None:
    work, profile = work_of(25.7e12), Profile(16, FP16)
    same = rate(work, profile, catalogue["T4"], [measured(10.0)])
    other = rate(work, profile, catalogue["T4"], [measured(10.0, micro_batch=8)])
    assert same.sigma < other.sigma < 0.7
    assert rate(work, profile, catalogue["T4"], [measured(10.0, micro_batch=8)], micro_batch=8) == same


def test_a_rate_of_the_cheap_phase_predicts_the_dear_one() -> None:
    work, profile = work_of(25.7e12, phases=CURRICULUM), Profile(16, FP16)
    cheap = rate(work, profile, catalogue["T4"], [measured(64 * 1.0, step=0)])
    dear = rate(work, profile, catalogue["T4"], [measured(64 * 17 / 25.7, step=20_000)])
    assert cheap == dear
    assert seconds_for(work, 0, 1, cheap) == pytest.approx(1.0, rel=0.02)
    assert seconds_for(work, 15_000, 15_001, cheap) == pytest.approx(25.7 / 17, rel=0.02)


def test_a_measurement_above_the_bound_wins_and_says_so() -> None:
    work = work_of(25.7e12)
    found = rate(work, Profile(16, FP16), catalogue["T4"], [measured(64 * 5.0)])
    assert steps_per_second(found) == pytest.approx(5.0, rel=0.02)
    assert found.bound is not None
    assert found.samples_per_second > found.bound
    assert "faster than the peak allows" in found.source


def test_only_the_newest_measurements_count() -> None:
    work, profile = work_of(25.7e12), Profile(16, FP16)
    old = [Measurement("T4", FP16, 16, 40.0, 600, at=float(i)) for i in range(100)]
    new = [Measurement("T4", FP16, 16, 20.0, 600, at=float(i)) for i in range(100, 140)]
    found = rate(work, profile, catalogue["T4"], [*new, *old])
    assert found.samples_per_second == pytest.approx(20.0, rel=0.01)


def test_without_flops_a_claim_is_all_there_is() -> None:
    found = rate(work_of(None), Profile(16, FP16, claim=claimed(4, 9, 64)), catalogue["T4"])
    assert (found.evidence, found.bound, found.claim) == (Evidence.CLAIM, None, None)
    assert steps_per_second(found) == pytest.approx(6.0)
    assert found.known


def test_without_flops_or_claim_a_measurement_elsewhere_is_scaled() -> None:
    elsewhere = [measured(10.0)]
    found = rate(work_of(None), Profile(16, FP16), catalogue["T4x2"], elsewhere)
    assert found.evidence is Evidence.TRANSFER
    assert found.samples_per_second == pytest.approx(10.0 * 2 * 0.28 / 0.3)
    assert found.known


def test_without_anything_the_rate_is_called_unknown() -> None:
    found = rate(work_of(None), Profile(16, FP16), catalogue["T4"])
    assert not found.known
    assert "unknown until measured" in found.source
    assert found.high / found.low == pytest.approx(100)


def test_reference_flops_of_phases_alone_are_their_mean() -> None:
    work = Work(100, 10, phases=(CostPhase(0, 100.0), CostPhase(50, 300.0)))
    assert reference_flops(work) == pytest.approx(20.0)
    assert samples_for(work, 0, 100) == pytest.approx(1000.0)
    assert samples_for(work, 0, 50) == pytest.approx(250.0)


@pytest.mark.parametrize("phases", [(), CURRICULUM])
@pytest.mark.parametrize(
    ("start", "end"), [(0, 1), (0, 14_999), (7, 15_000), (14_990, 15_010), (20_000, 50_000)]
)
def test_step_after_undoes_seconds_for(phases: tuple[CostPhase, ...], start: int, end: int) -> None:
    work = work_of(25.7e12, phases=phases)
    found = rate(work, Profile(16, FP16), catalogue["T4"])
    assert step_after(work, start, seconds_for(work, start, end, found), found) == end


def test_step_after_never_passes_the_total() -> None:
    work = work_of(25.7e12)
    found = rate(work, Profile(16, FP16), catalogue["T4"])
    assert step_after(work, 10, 1e12, found) == work.total
