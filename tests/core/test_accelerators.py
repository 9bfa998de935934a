"""The catalogue: complete, with sources, and consistent with the facts that jobs are routed by."""

from __future__ import annotations

import pytest

from orchestrator.core.accelerators import Accelerator, catalogue
from orchestrator.core.job import Precision

FP16, BF16, FP32 = Precision.FP16, Precision.BF16, Precision.FP32
MENTIONED = [
    "T4",
    "T4x2",
    "P100",
    "V100",
    "RTX3050",
    "RTX3070",
    "RTX3090",
    "K80half",
    "L4",
    "A100",
    "H100",
    "H200",
    "RTXPRO6000",
    "TPUv2-8",
    "TPUv3-8",
    "TPUv5e-1",
    "TPUv5e-8",
    "TPUv6e-1",
    "cpu",
]


def test_every_accelerator_the_facts_mention_is_there() -> None:
    assert sorted(catalogue) == sorted(MENTIONED)


@pytest.mark.parametrize("row", catalogue.values(), ids=catalogue.keys())
def test_every_figure_is_plausible_and_has_a_source(row: Accelerator) -> None:
    assert catalogue[row.name] is row
    assert row.devices >= 1
    assert 0 < row.mfu <= 0.5
    assert 1 <= row.memory_gb <= 200
    assert 1e11 < row.bandwidth < 1e13
    assert row.peak_flops
    assert all(1e12 < peak < 2e15 for peak in row.peak_flops.values())
    assert set(row.sources) == {"devices", "memory_gb", "peak_flops", "bandwidth", "arch", "mfu"}
    assert all(row.sources.values())


@pytest.mark.parametrize(
    ("name", "precisions"),
    [
        ("K80half", {FP32}),
        ("P100", {FP16, FP32}),
        ("V100", {FP16, FP32}),
        ("T4", {FP16, FP32}),
        ("T4x2", {FP16, FP32}),
        ("RTX3050", {FP16, BF16, FP32}),
        ("A100", {FP16, BF16, FP32}),
        ("TPUv5e-1", {BF16, FP32}),
        ("cpu", {BF16, FP32}),
    ],
)
def test_native_precisions(name: str, precisions: set[Precision]) -> None:
    assert catalogue[name].precisions == precisions


def test_two_t4_are_two_devices_of_one_t4s_memory() -> None:
    one, two = catalogue["T4"], catalogue["T4x2"]
    assert (two.devices, two.memory_gb) == (2, one.memory_gb)
    assert two.peak_flops[FP16] == 2 * one.peak_flops[FP16]
    assert two.bandwidth == 2 * one.bandwidth


def test_gates() -> None:
    # docs/references/accelerators.md#torch-builds, docs/references/accelerators.md#retired and
    # docs/references/kaggle.md#accelerators
    assert {name for name, row in catalogue.items() if row.needs_torch} == {"P100", "V100"}
    assert {name for name, row in catalogue.items() if row.retired} == {"K80half", "TPUv2-8", "TPUv3-8"}


def test_names_are_case_sensitive() -> None:
    assert "t4" not in catalogue
    assert "CPU" not in catalogue
