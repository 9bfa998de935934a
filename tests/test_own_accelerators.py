"""The user's own accelerators: read from the config, known to jobs, carried by offers and orders."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import spec
from orchestrator.agent import probe
from orchestrator.client.wiring import Wired
from orchestrator.clock import SystemClock
from orchestrator.config import Config, load
from orchestrator.core import wire
from orchestrator.core.assign import assign
from orchestrator.core.fit import Fit, fit_on
from orchestrator.core.gpu_names import may_be
from orchestrator.core.job import Kind, Precision
from orchestrator.core.offer import Choice, Estimate, Offer
from orchestrator.core.order import Order
from orchestrator.core.own_accelerators import row_named, row_of
from orchestrator.core.run import RunRecord
from orchestrator.core.speed import Evidence, Measurement, rate
from orchestrator.errors import SpecError
from tests.specs import GOOD

ROW = """\
accelerators:
  lab-gpu:
    memory_gb: 30
    arch: sm_89
    teraflops: {fp16: 80, bf16: 80, fp32: 40}
    gpu_names: [NVIDIA Lab 9000]
"""
BOX = "platforms:\n  box: {type: process, accelerator: lab-gpu}\n"
JOB = GOOD.replace("cpu: {micro_batch: 8, precision: fp32}", "lab-gpu: {micro_batch: 8, precision: bf16}")


def config(home: Path, text: str) -> Config:
    (home / "config.yaml").write_text(text)
    return load(home)


def told(home: Path, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        config(home, text)
    return str(caught.value)


def offer(home: Path) -> Offer:
    wired = Wired.from_home(home, SystemClock())
    [found] = wired.platforms()["box"].survey()
    return found


def chosen(home: Path) -> tuple[Choice, spec.Parsed]:
    found = config(home, ROW + BOX)
    parsed = spec.parse(JOB.encode(), "job.yaml", None, found.accelerators)
    there = offer(home)
    fit = fit_on(parsed.job, there, {})
    assert isinstance(fit, Fit), fit
    figures = Estimate(0.0, 1.0, 1.0, 1.0, 1, 0.0, 0.0, 64.0, "test")
    return Choice(there, fit.micro_batch, fit.accumulate, fit.row.devices, figures), parsed


def test_a_row_of_the_config_is_an_accelerator(tmp_path: Path) -> None:
    own = config(tmp_path, ROW).accelerators
    row, four = row_named("lab-gpu", own), row_named("lab-gpux4", own)
    assert row is not None
    assert four is not None
    assert (row.kind, row.memory_gb, row.arch, row.devices) == (Kind.GPU, 30, "sm_89", 1)
    assert row.peak_flops[Precision.BF16] == 80e12
    assert (four.devices, four.memory_gb, four.peak_flops[Precision.FP32]) == (4, 30, 160e12)
    assert may_be("NVIDIA Lab 9000", four)
    assert not may_be("NVIDIA Lab 9001", row)
    assert row_named("lab-gpu") is None


@pytest.mark.parametrize(
    ("row", "where", "words"),
    [
        ("T4: {memory_gb: 1, arch: sm_89, teraflops: {fp32: 1}}", "T4", "the catalogue already has T4"),
        ("rtx4090: {memory_gb: 1, arch: sm_89, teraflops: {fp32: 1}}", "rtx4090", "already has RTX4090"),
        ("default: {memory_gb: 1, arch: cpu, teraflops: {fp32: 1}}", "default", "give another name"),
        ("minex2: {memory_gb: 1, arch: sm_89, teraflops: {fp32: 1}}", "minex2", "as if it counted devices"),
        ("my gpu: {memory_gb: 1, arch: sm_89, teraflops: {fp32: 1}}", "my gpu", "letters, digits"),
        ("mine: {arch: sm_89, teraflops: {fp32: 1}}", "mine.memory_gb", "missing"),
        ("mine: {memory_gb: 0, arch: sm_89, teraflops: {fp32: 1}}", "mine.memory_gb", "above zero"),
        ("mine: {memory_gb: 1, arch: ada, teraflops: {fp32: 1}}", "mine.arch", "such as sm_89, or cpu"),
        ("mine: {memory_gb: 1, arch: sm_89, teraflops: {}}", "mine.teraflops", "given nothing"),
        ("mine: {memory_gb: 1, arch: sm_89, teraflops: {fp8: 1}}", "mine.teraflops.fp8", "unknown key"),
        ("mine: {memory_gb: 1, arch: sm_89, teraflops: {fp32: .inf}}", "mine.teraflops.fp32", "above zero"),
        ("mine: {memory_gb: 1, arch: cpu, teraflops: {fp32: 1}, gpu_names: [A]}", "mine.gpu_names", "sm_89"),
        ("mine: 12", "mine", "mapping"),
    ],
)
def test_what_is_wrong_with_a_row_is_told_with_its_place(
    tmp_path: Path, row: str, where: str, words: str
) -> None:
    found = told(tmp_path, f"accelerators:\n  {row}\n")
    assert f"config.yaml:2: accelerators.{where}: " in found
    assert words in found


def test_two_names_that_differ_in_case_only_are_refused(tmp_path: Path) -> None:
    row = "{memory_gb: 1, arch: sm_89, teraflops: {fp32: 1}}"
    assert "upper and lower case only" in told(tmp_path, f"accelerators:\n  lab: {row}\n  Lab: {row}\n")


def test_rules_and_prices_know_the_users_names(tmp_path: Path) -> None:
    rest = (
        "rules: [{prefer: {accelerator: [lab-gpu, lab-gpux2]}}]\n"
        "prices: {currency: EUR, per_hour: {box/lab-gpu: 0.05}}\n"
    )
    [rule] = config(tmp_path, ROW + BOX + rest).rules
    assert "lab-gpux2" in str(rule)
    assert "lab-gpu" in told(tmp_path, ROW + "rules: [{prefer: {accelerator: lab-gpy}}]\n")


def test_a_job_may_name_it_only_with_that_config(tmp_path: Path) -> None:
    own = config(tmp_path, ROW).accelerators
    assert spec.parse(JOB.encode(), "job.yaml", None, own).job.profiles[0][0] == "lab-gpu"
    with pytest.raises(SpecError, match=r"unknown accelerator 'lab-gpu'.*the config's `accelerators`"):
        spec.parse(JOB.encode(), "job.yaml", None)


def test_several_of_it_must_divide_the_batch(tmp_path: Path) -> None:
    own = config(tmp_path, ROW).accelerators
    text = JOB.replace("lab-gpu: {micro_batch: 8", "lab-gpux2: {micro_batch: 64")
    with pytest.raises(SpecError, match="64 × 2 devices"):
        spec.parse(text.encode(), "job.yaml", None, own)


def test_an_order_says_all_of_it_so_that_no_other_config_is_needed(tmp_path: Path) -> None:
    choice, parsed = chosen(tmp_path)
    order = assign(RunRecord("demo-aaaaaaaa", parsed.job, 0.0), choice)
    again = wire.decode(Order, wire.encode(order))
    assert again == order
    row = row_of(again)
    assert row is not None
    assert row.peak_flops[Precision.BF16] == 80e12
    assert wire.decode(Offer, wire.encode(choice.offer)) == choice.offer


def test_its_speed_is_expected_and_its_measurements_tell_about_others(tmp_path: Path) -> None:
    choice, parsed = chosen(tmp_path)
    profile = dict(parsed.job.profiles)["lab-gpu"]
    row, other = row_of(choice.offer), row_named("RTX4090")
    assert row is not None
    assert other is not None
    known = Measurement("lab-gpu", profile.precision, 8, 100.0, 600.0, 1.0, own=choice.offer.own)
    assert rate(parsed.job.work, profile, row, [known]).evidence is Evidence.MEASURED
    assert rate(parsed.job.work, profile, other, [known]).evidence is Evidence.TRANSFER
    assert rate(parsed.job.work, profile, other, [replace(known, own=None)]).evidence is Evidence.GUESS


def test_the_agent_tells_its_gpu_from_another(tmp_path: Path) -> None:
    choice, parsed = chosen(tmp_path)
    order = assign(RunRecord("demo-aaaaaaaa", parsed.job, 0.0), choice)
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho NVIDIA Lab 9000\n")
    tool.chmod(0o755)
    variables = {"PATH": f"{tool.parent}:/usr/bin:/bin"}
    assert probe.check(order, variables) == {}
    tool.write_text("#!/bin/sh\necho NVIDIA Lab 8000\n")
    with pytest.raises(probe.Substituted, match=r"NVIDIA Lab 8000.*lab-gpu"):
        probe.check(order, variables)
