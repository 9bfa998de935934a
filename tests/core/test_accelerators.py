"""The catalogue: complete, with sources, and consistent with the facts that jobs are routed by."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.accelerator_words import unknown_accelerator
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
    assert set(MENTIONED) <= set(catalogue)


@pytest.mark.parametrize("name", ["T4x3", "RTX4090x2", "H100x8", "A100-80GBx16", "K80halfx2", "MPS"])
def test_several_gpus_follow_from_one_by_rule(name: str) -> None:
    row = catalogue[name]
    assert row.name == name
    assert row is catalogue[name]
    one = catalogue[name.rpartition("x")[0] or name]
    assert row.devices * one.peak_flops[FP32] == pytest.approx(row.peak_flops[FP32])
    assert (row.memory_gb, row.arch, row.precisions) == (one.memory_gb, one.arch, one.precisions)
    assert row.mfu <= one.mfu


@pytest.mark.parametrize(
    "name",
    ["T4x1", "T4x0", "T4x02", "T4x65", "T4x100", "T4x2x2", "TPUv5e-1x2", "cpux2", "MPSx2", "x2", "T4x²"],
)
def test_what_is_no_count_of_gpus_is_unknown(name: str) -> None:
    assert name not in catalogue
    assert catalogue.get(name) is None


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("RTX 4090", "RTX4090"),
        ("rtx4090", "RTX4090"),
        ("NVIDIA GeForce RTX 3090 Ti", "RTX3090Ti"),
    ],
)
def test_an_unknown_name_is_told_the_closest(given: str, near: str) -> None:
    told = unknown_accelerator("accelerator", given)
    assert f"did you mean {near!r}?" in told
    assert len(told) < 300


def test_the_users_own_names_are_always_told() -> None:
    assert "such as lab-gpu" in unknown_accelerator("accelerator", "zzz", own=["lab-gpu"], also=["default"])


def test_every_row_stands_in_the_references_with_its_figures() -> None:
    page = (Path(__file__).parents[2] / "docs/references/accelerators.md").read_text()
    assert [line for row in catalogue.values() if (line := _line(row)) not in page] == []


def _line(row: Accelerator) -> str:
    figures = (
        row.memory_gb,
        row.bandwidth / 1e9,
        *(row.peak_flops.get(each, 0) / 1e12 for each in (FP16, BF16, FP32)),
    )
    cells = (f"{figure:.10g}" if figure else "–" for figure in figures)
    return f"| {row.name} | {row.arch} | {' | '.join(cells)} | {row.mfu:g} |"


@pytest.mark.parametrize("row", catalogue.values(), ids=catalogue.keys())
def test_every_figure_is_plausible_and_has_a_source(row: Accelerator) -> None:
    assert catalogue[row.name] is row
    assert row.devices >= 1
    assert 0 < row.mfu <= 0.5
    assert 1 <= row.memory_gb <= 200
    assert 1e11 < row.bandwidth < 1e13
    assert row.peak_flops
    assert all(1e12 < peak < 3e15 for peak in row.peak_flops.values())
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
    without = {"P100", "P100-12GB", "V100", "V100-16GB", "TITANV"}
    assert {name for name, row in catalogue.items() if row.needs_torch} == without
    assert {name for name, row in catalogue.items() if row.retired} == {"K80half", "TPUv2-8", "TPUv3-8"}


def test_names_are_case_sensitive() -> None:
    assert "t4" not in catalogue
    assert "CPU" not in catalogue
