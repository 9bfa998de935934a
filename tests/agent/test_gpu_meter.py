"""How busy a session's GPUs are: what its agent writes down, whatever nvidia-smi does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.agent.gpu_meter import GpuMeter, Ours, ours
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.gpu_use import GpuUse, use_text, within_bounds
from orchestrator.core.order import AgentStatus
from orchestrator.nvidia import Asker
from orchestrator.session import saying
from tests.agent.sessions import QUICK, is_alive, new_order, session
from tests.stand_ins.nvidia_smi import GARBAGE, HANGS, FakeGpu, install, uuid
from tests.waiting import wait_until

NAMED = Ours((uuid(0), uuid(1)))


def measured(folder: Path, *gpus: FakeGpu, body: str = "", asks: int = 3, of: Ours = NAMED) -> list[GpuUse]:
    """What a meter of these GPUs says while nvidia-smi is asked so often."""
    place = install(folder, gpus, body=body)
    told: list[GpuUse] = []
    asker = Asker({"PATH": f"{place}:/usr/bin:/bin"}, 0.2)
    meter = GpuMeter(of, asker, SystemClock(), 0.01, told.append)
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


@pytest.mark.parametrize("gpus", [NAMED, Ours(devices=2)], ids=["named", "unnamed"])
@pytest.mark.parametrize("body", [GARBAGE, HANGS, "exit 9"], ids=["garbage", "hangs", "fails"])
def test_a_broken_driver_is_harmless_and_says_nothing(tmp_path: Path, body: str, gpus: Ours) -> None:
    assert measured(tmp_path, body=body, of=gpus) == []


@pytest.mark.parametrize(
    ("gpus", "count", "percent"), [(Ours(devices=2), 2, 70.0), (Ours(devices=1, seen="1"), 1, 50.0)]
)
def test_where_none_are_named_those_that_the_command_sees_are_sampled(
    tmp_path: Path, gpus: Ours, count: int, percent: float
) -> None:
    use = measured(tmp_path, FakeGpu(percent="90"), FakeGpu(percent="50"), of=gpus)[-1]
    assert (use.gpus, use.percent, use.watts) == (count, percent, count * 215.5)


@pytest.mark.parametrize("mig", ["[N/A]", "Enabled"])
def test_gpus_that_may_be_somebody_elses_and_slices_are_not_sampled(tmp_path: Path, mig: str) -> None:
    place = install(tmp_path, [FakeGpu(mig=mig)] * (2 if mig == "[N/A]" else 1))
    told: list[GpuUse] = []
    meter = GpuMeter(Ours(devices=1), Asker({"PATH": f"{place}:/bin"}), SystemClock(), 0.01, told.append)
    meter.start()
    meter.join(60)
    assert not meter.is_alive()
    assert (told, (tmp_path / "asked").read_text()) == ([], "asked\n")


def test_which_gpus_are_a_sessions_own() -> None:
    gpu, cpu, tpu = (new_order(accelerator=name, devices=1) for name in ("T4", "cpu", "TPUv5e-1"))
    assert ours(gpu, f"{uuid(0)},{uuid(3)}", None) == Ours((uuid(0), uuid(3)))
    assert ours(gpu, None, "0") == Ours(devices=1, seen="0")
    assert ours(gpu, "", None) is ours(gpu, "0,1", None) is None
    assert ours(cpu, None, None) is ours(tpu, None, None) is ours(cpu, "", "") is None


def test_a_hanging_driver_does_not_hold_up_a_sessions_end_and_leaves_no_process(tmp_path: Path) -> None:
    place = install(tmp_path, [], body=HANGS)
    settings = replace(QUICK, gpu_answer=3600.0)
    until_asked = (
        f"import os, time\nwhile not os.path.exists({str(tmp_path / 'hanging')!r}): time.sleep(0.01)"
    )
    with session(tmp_path / "1", "-c", until_asked, accelerator="T4", steps_total=1) as stay:
        result = stay.live(settings, environment={"PATH": f"{place}:{os.environ['PATH']}"})
        assert result.exit_code == 0
        status = stay.status()
        assert status is not None
        assert status.gpu_use is None
    pid = int((tmp_path / "hanging").read_text())
    wait_until(lambda: not is_alive(pid), "its end")


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
