"""How busy a session's GPUs are: what its agent writes down, whatever nvidia-smi does."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.agent.gpu_meter import GpuMeter, own_gpus
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.gpu_use import GpuUse, use_text, within_bounds
from orchestrator.core.order import AgentStatus
from orchestrator.nvidia import Asker
from orchestrator.session import saying
from tests.stand_ins.nvidia_smi import GARBAGE, HANGS, FakeGpu, install, uuid
from tests.waiting import wait_until


def measured(folder: Path, *gpus: FakeGpu, body: str = "", asks: int = 2) -> list[GpuUse]:
    """What a meter of the first two GPUs says while nvidia-smi is asked so often."""
    place = install(folder, gpus, body=body)
    told: list[GpuUse] = []
    asker = Asker({"PATH": f"{place}:/usr/bin:/bin"}, 0.2)
    meter = GpuMeter([uuid(0), uuid(1)], asker, SystemClock(), 0.01, told.append)
    meter.start()
    asked = folder / "asked"
    wait_until(lambda: asked.exists() and asked.read_text().count("asked") >= asks, "the samples")
    meter.finish()
    meter.join(10)
    assert not meter.is_alive()
    return told


def test_the_sessions_own_gpus_are_summed_up(tmp_path: Path) -> None:
    use = measured(tmp_path, FakeGpu(percent="90"), FakeGpu(percent="50"), FakeGpu(percent="1"))[-1]
    assert (use.gpus, use.percent, use.recent) == (2, 70.0, 70.0)
    assert (use.memory_gb, use.watts, use.celsius) == (1.07, 431.0, 61.0)


@pytest.mark.parametrize("body", [GARBAGE, HANGS, "exit 9"], ids=["garbage", "hangs", "fails"])
def test_a_broken_driver_is_harmless_and_says_nothing(tmp_path: Path, body: str) -> None:
    assert measured(tmp_path, body=body) == []


def test_only_gpus_that_were_given_by_name_are_sampled() -> None:
    assert own_gpus({"GIVEN": f"{uuid(0)},{uuid(3)}"}, "GIVEN") == (uuid(0), uuid(3))
    assert (
        own_gpus({"GIVEN": ""}, "GIVEN") == own_gpus({}, "GIVEN") == own_gpus({"GIVEN": "0,1"}, "GIVEN") == ()
    )


GOOD = GpuUse(2, 400.0, 12.0, 14.0, 20.0, 300.0, 60.0)


@pytest.mark.parametrize(
    "use",
    [
        GpuUse(0, 1.0, 1.0, 1.0),
        GpuUse(10**30, 1.0, 1.0, 1.0),
        GpuUse(1, -1.0, 1.0, 1.0),
        GpuUse(1, 1.0, 101.0, 1.0),
        GpuUse(1, 1.0, 1.0, -1.0),
    ],
)
def test_what_no_machine_does_is_left_out_of_a_status(use: GpuUse) -> None:
    assert within_bounds(use) is None
    status = saying.status(wire.encode(AgentStatus("abc", 1, 1.0, "training", gpu_use=use)))
    assert status is not None
    assert status.gpu_use is None
    assert "impossible gpu_use" in status.warnings[-1]


def test_a_good_status_keeps_it_and_a_figure_that_cannot_be_is_dropped() -> None:
    status = saying.status(wire.encode(AgentStatus("abc", 1, 1.0, "training", gpu_use=GOOD)))
    assert status is not None
    assert (status.gpu_use, status.warnings) == (GOOD, ())
    odd = within_bounds(GpuUse(1, 1.0, 1.0, 1.0, -5.0, 1e9, 1e9))
    assert odd == GpuUse(1, 1.0, 1.0, 1.0)


def test_low_use_is_only_told_after_some_minutes() -> None:
    assert GOOD.is_low
    assert not GpuUse(2, 200.0, 12.0, 14.0).is_low
    assert not GpuUse(2, 400.0, 31.0, 14.0).is_low
    assert use_text(GOOD) == "12 % busy (14 % lately), 20.0 GB, 300 W, 60 °C"
