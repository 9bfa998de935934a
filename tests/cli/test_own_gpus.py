"""`init` on a machine with GPUs and no Docker: what it writes, and what it says of each GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.client import own_gpus
from orchestrator.nvidia import Found
from tests.cli.calls import Caller
from tests.stand_ins.nvidia_smi import GARBAGE, NO_DRIVER, FakeGpu, install

T4 = FakeGpu("Tesla T4", 15360)
MIG = FakeGpu("NVIDIA A100-SXM4-40GB", 40960, mig="Enabled")
STRANGE = FakeGpu("NVIDIA Lab 9000", 30000)
K80 = FakeGpu("Tesla K80", 11441)
ON_A_MAC = """
import pathlib, platform, sys
platform.system = lambda: "Darwin"
from orchestrator import Client
from orchestrator.clock import SystemClock
from orchestrator.platforms.catalog import build
home = pathlib.Path(sys.argv[1])
made = Client(home).init()
print(*(f"{each.name} {each.type}" for each in made.platforms), *made.notes, sep="\\n")
[offer] = build("here", "process", {}, folder=home, clock=SystemClock()).survey()
print(offer.unavailable.reason, *offer.unavailable.until.commands, sep="\\n")
"""
DEAD = "unix:///nonexistent/docker.sock"


def init(
    user: Caller, *gpus: FakeGpu, body: str = "", visible: str = "0,1,2,3,4,5,6,7"
) -> tuple[dict[str, str], str]:
    """The accelerator of each process platform that it wrote, and what it said."""
    place = install(user.folder, gpus, body=body)
    path = os.pathsep.join((str(place), os.environ["PATH"]))
    answer = user("init", "--force", DOCKER_HOST=DEAD, PATH=path, CUDA_VISIBLE_DEVICES=visible)
    written = config.load(user.home).platforms
    assert all(each.options.get("gpus") == "all" for each in written if each.name != "here")
    return {each.name: each.options["accelerator"] for each in written}, answer.out


@pytest.mark.parametrize(
    ("gpus", "written"),
    [
        ((), {}),
        ((FakeGpu(),), {"here-gpu": "RTX4090"}),
        ((FakeGpu(),) * 2, {"here-gpu": "RTX4090", "here-rtx4090x2": "RTX4090x2"}),
        ((FakeGpu(),) * 8, {"here-gpu": "RTX4090", "here-rtx4090x8": "RTX4090x8"}),
        ((FakeGpu(), T4), {"here-gpu": "RTX4090", "here-t4": "T4"}),
        ((T4, MIG, STRANGE, K80), {"here-gpu": "T4"}),
    ],
    ids=["none", "one", "two", "eight", "two-kinds", "others"],
)
def test_gpus_become_platforms_of_type_process(
    user: Caller, gpus: tuple[FakeGpu, ...], written: dict[str, str]
) -> None:
    found, text = init(user, *gpus)
    assert found == {"here": "cpu", **written}
    for name, accelerator in written.items():
        assert f"{name}: {accelerator}, process" in text


def test_it_says_why_a_gpu_is_left_out(user: Caller) -> None:
    _, text = init(user, MIG, STRANGE, K80, FakeGpu(), visible="0,1,2")
    told = " ".join(text.split())
    assert "GPU 0 (NVIDIA A100-SXM4-40GB) is left out: it is in MIG mode" in told
    assert "GPU 1 (NVIDIA Lab 9000) is left out: the catalogue does not know it" in told
    assert "orchestrator doctor --measure" in told
    assert "GPU 2 (Tesla K80) is left out: K80half is retired" in told
    assert "GPU 3 (NVIDIA GeForce RTX 4090) is left out: CUDA_VISIBLE_DEVICES=0,1,2 does not name it" in told


@pytest.mark.parametrize("body", [GARBAGE, NO_DRIVER])
def test_a_broken_driver_leaves_the_cpu(user: Caller, body: str) -> None:
    assert init(user, body=body)[0] == {"here": "cpu"}


def test_a_gpu_without_a_driver_is_noticed(tmp_path: Path) -> None:
    device = tmp_path / "0000:01:00.0"
    device.mkdir()
    (device / "vendor").write_text("0x10de\n")
    (device / "class").write_text("0x030000\n")
    (tmp_path / "odd").mkdir()
    [note] = own_gpus.of_this_machine(
        Found(trouble="nvidia-smi is not installed"), "here", pci=tmp_path
    ).notes
    assert note == "there is an NVIDIA GPU, but nvidia-smi is not installed: install its driver"


def test_a_mac_gets_no_platform_that_needs_linux(tmp_path: Path) -> None:
    """In a process of its own, because it looks for an engine."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "DOCKER_HOST": DEAD}
    done = subprocess.run(
        [sys.executable, "-c", ON_A_MAC, str(tmp_path / "home")],
        env=environ, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "docker docker", "processes of this machine need Linux: use Docker",
        "processes of this machine need Linux", "use Docker: a platform of type docker",
    ]  # fmt: skip


def test_a_run_on_a_gpu_of_this_machine_shows_how_busy_it_is(user: Caller) -> None:
    path = os.pathsep.join((str(install(user.folder, [FakeGpu(percent="12")])), os.environ["PATH"]))
    cache = str(user.folder / "cache")
    init(user, FakeGpu(percent="12"))
    job = user.folder / user.job(total=6, pace=0.01)
    job.write_text(job.read_text().replace("cpu: {", "gpu>=24GB: {"))
    plan = user("plan", job.name, PATH=path, XDG_CACHE_HOME=cache).out
    assert "here-gpu/RTX4090" in plan
    assert "profile gpu>=24GB" not in plan  # it is the only one
    user("submit", job.name, "--follow", PATH=path, XDG_CACHE_HOME=cache)
    run = user("ps", "--all", "--json").json["runs"][0]["run"]
    shown = user("show", run).out
    assert "12 % busy (12 % lately), 1.1 GB, 216 W, 61 °C" in shown
    found = user("show", run, "--json").json
    assert found["gpu_use"]["percent"] == found["sessions"][0]["gpu_use"]["percent"] == 12.0
    assert found["sessions"][0]["order"]["accelerator"] == "RTX4090"
    assert "GPU MEM" in user("ps", "--all", "--wide").out
