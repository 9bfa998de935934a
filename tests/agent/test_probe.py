"""The probe: which machines match an order, by the driver's output and by a TPU host's files."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent import probe
from orchestrator.core.order import Outcome
from tests.agent.sessions import QUICK, new_order, session
from tests.stand_ins.nvidia_smi import FakeGpu, install, uuid

PROBING = replace(QUICK, probe=True)
BROKEN = "Failed to initialize NVML: Driver/library version mismatch"


def machine(folder: Path, *gpus: str, exit_code: int = 0) -> dict[str, str]:
    """The environment of a machine whose nvidia-smi lists these GPUs."""
    tool = folder / "bin" / "nvidia-smi"
    tool.parent.mkdir(parents=True)
    lines = "".join(f"echo {gpu!r}\n" for gpu in gpus)
    tool.write_text(
        f'#!/bin/sh\n[ "$*" = "--query-gpu=name --format=csv,noheader" ] || exit 9\n{lines}exit {exit_code}\n'
    )
    tool.chmod(0o755)
    return {"PATH": f"{tool.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize(
    ("accelerator", "devices", "gpus", "seen"),
    [
        ("T4x2", 2, ["Tesla T4", "Tesla T4"], None),
        ("T4", 1, ["Tesla T4"], None),
        ("T4", 1, ["Tesla T4", "Tesla T4"], "0"),
        ("T4x2", 2, ["Tesla T4"] * 4, "0,1"),
        ("T4", 1, ["NVIDIA A100-SXM4-40GB", "Tesla T4"], "1"),
        ("P100", 1, ["Tesla P100-PCIE-16GB"], None),
        ("RTX3050", 1, ["NVIDIA GeForce RTX 3050 Laptop GPU"], None),
        ("RTXPRO6000", 1, ["NVIDIA RTX PRO 6000 Blackwell Server Edition"], None),
        ("cpu", 1, ["Tesla T4"], None),
    ],
)
def test_a_machine_that_has_what_was_ordered(
    tmp_path: Path, accelerator: str, devices: int, gpus: list[str], seen: str | None
) -> None:
    order = new_order(accelerator=accelerator, devices=devices)
    shown = probe.check(order, machine(tmp_path, *gpus))
    assert shown.get("CUDA_VISIBLE_DEVICES") == seen
    assert ("CUDA_DEVICE_ORDER" in shown) == (seen is not None)


@pytest.mark.parametrize(
    ("accelerator", "devices", "gpus", "exit_code", "there"),
    [
        ("T4x2", 2, ["Tesla P100-PCIE-16GB"], 0, "Tesla P100-PCIE-16GB"),
        ("T4x2", 2, ["Tesla T4"], 0, "Tesla T4"),
        ("T4x2", 2, ["Tesla T4", "NVIDIA L4"], 0, "Tesla T4, NVIDIA L4"),
        ("L4", 1, ["NVIDIA L40S"], 0, "NVIDIA L40S"),
        ("P100", 1, ["Tesla T4", "Tesla T4"], 0, "2 × Tesla T4"),
        ("T4", 1, ["No devices were found"], 0, "no GPU (nvidia-smi: No devices were found)"),
        ("T4", 1, [BROKEN], 18, f"no GPU (nvidia-smi: {BROKEN})"),
        ("T4", 1, [], 0, "no GPU"),
    ],
)
def test_a_substitution_names_both(
    tmp_path: Path, accelerator: str, devices: int, gpus: list[str], exit_code: int, there: str
) -> None:
    order = new_order(accelerator=accelerator, devices=devices)
    with pytest.raises(probe.Substituted) as error:
        probe.check(order, machine(tmp_path, *gpus, exit_code=exit_code))
    expected = f"this machine has {there}, but the order is for {accelerator}: substituted by the platform"
    assert str(error.value) == expected


def test_a_machine_without_the_drivers_tool_has_no_gpu(tmp_path: Path) -> None:
    with pytest.raises(
        probe.Substituted, match=r"has no GPU \(nvidia-smi not found\), but the order is for T4"
    ):
        probe.check(new_order(accelerator="T4"), {"PATH": str(tmp_path)})


def tpu_host(root: Path, device: str, chips: int, nodes: str, count: int) -> Path:
    """The /sys and /dev of a TPU host: its PCI functions, and device nodes named by the format `nodes`."""
    for number, (maker, model) in enumerate([("0x8086", "0x1237"), *[("0x1ae0", device)] * chips]):
        folder = root / "sys/bus/pci/devices" / f"0000:00:{number:02x}.0"
        folder.mkdir(parents=True)
        (folder / "vendor").write_text(f"{maker}\n")
        (folder / "device").write_text(f"{model}\n")
    (root / "dev" / "vfio").mkdir(parents=True)
    (root / "dev" / "vfio" / "vfio").touch()  # the container's control node, which is not a chip
    for number in range(count):
        (root / "dev" / nodes.format(number)).touch()
    return root


@pytest.mark.parametrize(
    ("accelerator", "devices", "device", "chips", "nodes", "variables"),
    [
        ("TPUv5e-8", 8, "0x0063", 8, "vfio/{}", {}),
        ("TPUv5e-8", 8, "0x0063", 8, "accel{}", {}),
        ("TPUv5e-1", 1, "0x0063", 1, "vfio/{}", {}),
        ("TPUv6e-1", 1, "0x006f", 1, "vfio/{}", {}),
        ("TPUv5e-8", 8, "", 0, "vfio/{}", {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}),
        ("TPUv5e-1", 1, "", 0, "vfio/{}", {"TPU_ACCELERATOR_TYPE": "v5litepod-1"}),
        ("TPUv6e-1", 1, "", 0, "vfio/{}", {"TPU_ACCELERATOR_TYPE": "v6e-1"}),
    ],
)
def test_a_tpu_host_is_known_by_its_documented_signs(
    tmp_path: Path,
    accelerator: str,
    devices: int,
    device: str,
    chips: int,
    nodes: str,
    variables: dict[str, str],
) -> None:
    root = tpu_host(tmp_path, device, chips, nodes, devices)
    assert probe.check(new_order(accelerator=accelerator, devices=devices), variables, root) == {}


@pytest.mark.parametrize(
    ("device", "chips", "nodes", "variables", "there"),
    [
        ("0x0063", 1, 1, {}, "tpu-v5e"),
        ("0x0027", 8, 8, {}, "8 × tpu-v3"),
        ("0x0063", 8, 0, {}, "8 × tpu-v5e without a device node"),
        ("", 0, 0, {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, "no TPU"),
        ("", 0, 8, {}, "no TPU"),
        ("", 0, 8, {"TPU_ACCELERATOR_TYPE": "v3-8"}, "8 × tpu-v3"),
        ("0x006f", 8, 8, {"TPU_ACCELERATOR_TYPE": "v5litepod-8"}, "8 × tpu-v6e"),
    ],
)
def test_another_tpu_or_none_is_a_substitution(
    tmp_path: Path, device: str, chips: int, nodes: int, variables: dict[str, str], there: str
) -> None:
    root = tpu_host(tmp_path, device, chips, "vfio/{}", nodes)
    with pytest.raises(probe.Substituted) as error:
        probe.check(new_order(accelerator="TPUv5e-8", devices=8), variables, root)
    assert str(error.value).startswith(f"this machine has {there}, but the order is for TPUv5e-8")


@pytest.mark.parametrize(
    ("accelerator", "device", "nodes", "there"),
    [
        ("TPUv6e-1", "0x0063", 1, "tpu-v5e"),
        ("TPUv5e-1", "0x006f", 1, "tpu-v6e"),
        ("TPUv5e-1", "0x0063", 0, "tpu-v5e without a device node"),
        ("TPUv5e-1", "", 0, "no TPU"),
    ],
)
def test_one_chip_of_another_generation_is_a_substitution(
    tmp_path: Path, accelerator: str, device: str, nodes: int, there: str
) -> None:
    root = tpu_host(tmp_path, device, 1 if device else 0, "vfio/{}", nodes)
    with pytest.raises(probe.Substituted) as error:
        probe.check(new_order(accelerator=accelerator), {}, root)
    assert str(error.value).startswith(f"this machine has {there}, but the order is for {accelerator}:")


def test_a_session_on_a_substitute_ends_before_anything_is_restored(tmp_path: Path) -> None:
    there = machine(tmp_path / "machine", "Tesla P100-PCIE-16GB")
    with session(tmp_path / "1", "train.py", accelerator="T4x2", devices=2) as stay:
        result = stay.live(PROBING, environment=there)
        assert (result.outcome, result.exit_code, result.step) == (Outcome.NO_CAPACITY, None, None)
        assert result.message == (
            "this machine has Tesla P100-PCIE-16GB, but the order is for T4x2: substituted by the platform"
        )
        assert not list((tmp_path / "1" / "work" / "source").iterdir())


def test_the_command_sees_the_ordered_devices_only(tmp_path: Path) -> None:
    there = machine(tmp_path / "machine", "Tesla T4", "Tesla T4")
    with session(tmp_path / "1", "train.py", "--show-environment", accelerator="T4") as stay:
        assert stay.live(PROBING, environment=there).outcome is Outcome.COMPLETED
        seen = json.loads((tmp_path / "1" / "work" / "source" / "environment").read_text())
        assert (seen["CUDA_VISIBLE_DEVICES"], seen["CUDA_DEVICE_ORDER"]) == ("0", "PCI_BUS_ID")


def test_only_a_platform_that_asks_is_probed(tmp_path: Path) -> None:
    with session(tmp_path, "train.py", accelerator="T4x2", devices=2) as stay:
        assert stay.live(QUICK).outcome is Outcome.COMPLETED


@pytest.mark.parametrize(
    ("given", "gpus", "there"),
    [
        ([2], [FakeGpu()] * 2, "no GPU of those given"),
        ([0, 1], [FakeGpu(), FakeGpu(mig="Enabled")], "RTX 4090 in MIG mode of those given"),
        ([1], [FakeGpu(), FakeGpu("Tesla T4", 15360)], "Tesla T4 of those given"),
        ([0], [], "no GPU (nvidia-smi: No devices were found) of those given"),
    ],
)
def test_a_gpu_that_was_given_and_is_gone_counts_as_substituted(
    tmp_path: Path, given: list[int], gpus: list[FakeGpu], there: str
) -> None:
    path = f"{install(tmp_path, gpus)}:{os.environ['PATH']}"
    variables = {"PATH": path, probe.GIVEN: ",".join(map(uuid, given))}
    name = "RTX4090" if len(given) == 1 else f"RTX4090x{len(given)}"
    with pytest.raises(probe.Substituted, match=re.escape(there)):
        probe.check(new_order(accelerator=name, devices=len(given)), variables)


def test_only_the_gpus_that_were_given_count(tmp_path: Path) -> None:
    path = f"{install(tmp_path, [FakeGpu(), FakeGpu('Tesla T4', 15360)])}:{os.environ['PATH']}"
    variables = {"PATH": path, probe.GIVEN: uuid(0)}
    assert probe.check(new_order(accelerator="RTX4090", devices=1), variables) == {}
