"""GPUs for sessions that are processes: who gets which, and that no two get the same."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import processes
from orchestrator.clock import SystemClock
from orchestrator.core.job import Precision
from orchestrator.core.offer import Offer, UntilKind
from orchestrator.core.own_accelerators import OwnAccelerator
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import InputError, QuotaExhausted, Rejected
from orchestrator.platforms import catalog
from orchestrator.platforms.gpu_locks import GpuLocks, Holder, folder
from orchestrator.platforms.process import ProcessPlatform
from orchestrator.session.folder import SessionFolder
from tests.agent.sessions import is_alive
from tests.conformance.test_platforms import any_order
from tests.platforms.test_process import DEAF, Box
from tests.seen import observed
from tests.stand_ins.nvidia_smi import GARBAGE, HANGS, FakeGpu, install, uuid
from tests.waiting import wait_until

# An agent with a training that does not end with it; nothing inherits the locks.
WITH_TRAINING = DEAF.replace(
    "threading\n",
    """threading, subprocess
training = subprocess.Popen(["sleep", "3600"], start_new_session=True)
pathlib.Path(sys.argv[1], "training").write_text(str(training.pid))
""",
    1,
)
T4 = FakeGpu("Tesla T4", 15360)
A100_MIG = FakeGpu("NVIDIA A100-SXM4-40GB", 40960, mig="Enabled")
STRANGE = FakeGpu("NVIDIA Lab 9000", 30000)


class Machine:
    """A machine with GPUs, on which several homes start sessions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._started: list[tuple[ProcessPlatform, str]] = []

    def platform(self, home: str = "one", accelerator: str = "RTX4090", **options: object) -> ProcessPlatform:
        given = {"accelerator": accelerator, "gpus": "all", "grace_seconds": 0.001, **options}
        folder = self.folder / home / "sessions"
        made = catalog.build("box", "process", given, folder=folder, clock=SystemClock())
        assert isinstance(made, ProcessPlatform)
        return made

    def offer(self, **options: object) -> Offer:
        [found] = self.platform(**options).survey()  # type: ignore[arg-type]
        return found

    def start(self, platform: ProcessPlatform, name: str, devices: int = 1, agent: str = DEAF) -> list[str]:
        """Starts a session, and returns the UUIDs that it was given."""
        accelerator = platform.survey()[0].accelerator
        order = replace(any_order(name, 10, 1), platform="box", accelerator=accelerator, devices=devices)
        box = Box(self.folder)
        platform.prepare(order, box.materials(agent))
        self._started.append((platform, name))
        platform.launch(order)
        wait_until(
            lambda: observed(platform, [name])[name].sighting is Sighting.RUNNING, "the session to run"
        )
        seen = json.loads((platform._folder / name / "seen.json").read_text())
        assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
        assert seen["ORCHESTRATOR_GPUS"] == seen["CUDA_VISIBLE_DEVICES"]
        return str(seen["CUDA_VISIBLE_DEVICES"]).split(",")

    def end(self, platform: ProcessPlatform, name: str) -> None:
        wait_until(lambda: platform.stop(name) is StopReply.ENDED, "the stop")

    def close(self) -> None:
        for platform, name in self._started:
            self.end(platform, name)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Machine]]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    made: list[Machine] = []

    def with_gpus(*gpus: FakeGpu, body: str = "") -> Machine:
        install(tmp_path, gpus, body=body)
        made.append(Machine(tmp_path))
        return made[-1]

    yield with_gpus
    for each in made:
        each.close()


Gpus = Callable[..., Machine]


# --- Which there are --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "accelerator", "slots"),
    [(1, "RTX4090", 1), (2, "RTX4090", 2), (8, "RTX4090", 8), (8, "RTX4090x2", 4), (8, "RTX4090x8", 1)],
)
def test_slots_are_gpus_by_gpus_a_session(machine: Gpus, count: int, accelerator: str, slots: int) -> None:
    offer = machine(*[FakeGpu()] * count).offer(accelerator=accelerator)
    assert (offer.slots, offer.unavailable) == (slots, None)
    assert offer.memory_gb == pytest.approx(25.76, abs=0.01)


@pytest.mark.parametrize("gpus", [[FakeGpu()], []])
def test_sessions_with_gpus_run_in_the_users_own_python(machine: Gpus, gpus: list[FakeGpu]) -> None:
    assert machine(*gpus).offer().traits.own_python


def test_only_gpus_of_the_accelerator_count(machine: Gpus) -> None:
    mixed = machine(FakeGpu(), T4, FakeGpu(), A100_MIG)
    assert mixed.offer().slots == 2
    assert mixed.offer(accelerator="T4").slots == 1


@pytest.mark.parametrize(
    ("accelerator", "options", "cores"),
    [
        ("RTX4090", {}, 4),
        ("RTX4090x2", {}, 8),
        ("RTX4090", {"slots": 2}, 8),
        ("RTX4090", {"slots": 9}, 4),
        ("RTX4090", {"gpus": [0]}, 16),
        ("RTX4090", {"threads": 3}, 3),
    ],
)
def test_threads_do_not_depend_on_the_gpus_that_are_free(
    machine: Gpus, monkeypatch: pytest.MonkeyPatch, accelerator: str, options: dict[str, object], cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    box = machine(*[FakeGpu()] * 4)
    alone = box.offer(accelerator=accelerator, **options)
    with GpuLocks(folder(), SystemClock()).taken([uuid(n) for n in (1, 2, 3)], 3, "another home's"):
        beside = box.offer(accelerator=accelerator, **options)
    assert (alone.threads, beside.threads) == (cores, cores)
    assert beside.slots == 1


@pytest.mark.parametrize(
    ("gpus", "slots"), [([0], 1), ([0, 2], 2), (["1"], 1), ([uuid(1), 1], 1), ([0, 1, 2], 3)]
)
def test_the_config_chooses_gpus(machine: Gpus, gpus: list[object], slots: int) -> None:
    assert machine(*[FakeGpu()] * 4).offer(gpus=gpus).slots == slots


@pytest.mark.parametrize(
    ("given", "options", "words"),
    [
        ([], {}, "No devices were found"),
        (
            [A100_MIG],
            {"accelerator": "A100"},
            "GPU 0 (NVIDIA A100-SXM4-40GB) is left alone: it is in MIG mode",
        ),
        ([T4], {}, "GPU 0 (Tesla T4) is left alone: it is T4, not RTX4090"),
        ([STRANGE], {}, "it is not in the catalogue, not RTX4090"),
        ([FakeGpu()], {"gpus": [3]}, "there is no GPU 3; there are 0"),
        ([FakeGpu()], {"accelerator": "RTX4090x2"}, "RTX4090x2 needs 2 GPUs, and 1 can be used"),
    ],
)
def test_an_offer_says_why_it_has_no_gpu(
    machine: Gpus, given: list[FakeGpu], options: dict[str, object], words: str
) -> None:
    closed = machine(*given).offer(**options).unavailable
    assert closed is not None
    assert words in closed.reason
    assert closed.until.kind is UntilKind.HUMAN
    assert closed.until.commands


@pytest.mark.parametrize("body", [HANGS, GARBAGE])
def test_a_broken_driver_closes_the_offer_and_is_asked_once_a_minute(
    machine: Gpus, tmp_path: Path, body: str
) -> None:
    platform = machine(body=body).platform(nvidia_smi_seconds=0.2)
    for _ in range(5):
        closed = platform.survey()[0].unavailable
        assert closed is not None
        assert "nvidia-smi" in closed.reason
    assert (tmp_path / "asked").read_text().count("asked") == 1


@pytest.mark.parametrize(("seen", "slots"), [("1", 1), ("2,0", 2), ("", 0), (uuid(1), 1), ("7", 0)])
def test_what_the_controller_may_not_see_is_not_offered(
    machine: Gpus, monkeypatch: pytest.MonkeyPatch, seen: str, slots: int
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    offer = machine(*[FakeGpu()] * 3).offer()
    assert slots == (0 if offer.unavailable else offer.slots)
    if offer.unavailable:
        assert f"CUDA_VISIBLE_DEVICES={seen}" in offer.unavailable.reason
        [command] = offer.unavailable.until.commands
        assert "without CUDA_VISIBLE_DEVICES" in command


@pytest.mark.parametrize(("names", "slots"), [(("NVIDIA Lab 9000",), 1), ((), 2), (("Another",), 0)])
def test_the_users_own_accelerator_is_told_by_its_names(
    machine: Gpus, names: tuple[str, ...], slots: int
) -> None:
    platform = machine(STRANGE, T4).platform(accelerator="lab")
    platform.equip({"lab": OwnAccelerator("lab", 30.0, "sm_89", ((Precision.FP16, 80.0),), gpu_names=names)})
    [offer] = platform.survey()
    assert slots == (0 if offer.unavailable else offer.slots)
    assert offer.own is not None


# --- Who has which ----------------------------------------------------------------------------------------


def test_every_session_has_its_own_gpus_and_leaves_them(machine: Gpus) -> None:
    box = machine(*[FakeGpu()] * 4)
    platform = box.platform(accelerator="RTX4090x2")
    first, second = box.start(platform, "a-s01", 2), box.start(platform, "b-s01", 2)
    assert sorted(first + second) == [uuid(n) for n in range(4)]
    assert platform.survey()[0].slots == 2  # those that run count
    with pytest.raises(QuotaExhausted, match="needs 2 GPU"):
        box.start(platform, "c-s01", 2)
    box.end(platform, "a-s01")
    assert box.start(platform, "d-s01", 2) == first


def test_two_homes_never_use_one_gpu_at_once(machine: Gpus) -> None:
    box = machine(*[FakeGpu()] * 2)
    one, two = box.platform("one"), box.platform("two")
    mine = box.start(one, "a-s01")
    assert (one.survey()[0].slots, two.survey()[0].slots) == (2, 1)
    assert box.start(two, "b-s01") != mine
    closed = box.platform("three").survey()[0].unavailable
    assert closed is not None
    assert "in use by other sessions of this user" in closed.reason
    with pytest.raises(QuotaExhausted):
        box.start(box.platform("three"), "c-s01")
    box.end(one, "a-s01")
    assert two.survey()[0].slots == 2


def test_what_outlives_agent_and_guardian_still_holds_its_gpu(machine: Gpus) -> None:
    box = machine(FakeGpu())
    one, two = box.platform("one"), box.platform("two")
    box.start(one, "a-s01", agent=WITH_TRAINING)
    root = one._folder / "a-s01"
    training = int((root / "training").read_text())
    os.kill(int((root / "agent.pid").read_text()), signal.SIGKILL)
    wait_until(lambda: not SessionFolder(root).alive(), "the agent's end")
    assert is_alive(training)
    closed = two.survey()[0].unavailable
    assert closed is not None
    said = f"GPU 0 is held by process {training} (sleep), which outlived session a-s01 of {one._folder}"
    assert said in closed.reason
    with pytest.raises(QuotaExhausted, match=re.escape(said)):
        box.start(two, "b-s01")
    assert GpuLocks(folder(), SystemClock()).any_held()
    assert observed(one, ["a-s01"])["a-s01"].sighting is Sighting.ENDED
    assert not is_alive(training)
    assert not GpuLocks(folder(), SystemClock()).any_held()
    assert box.start(two, "b-s01") == [uuid(0)]


def test_all_that_outlived_a_session_is_named_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(processes.SESSION, str(tmp_path / "sessions" / "a-s01"))
    left = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    locks = GpuLocks(tmp_path, SystemClock())
    with locks.taken([uuid(0)], 1, ""):
        pass
    (tmp_path / f"{uuid(0)}.session").write_text(os.environ[processes.SESSION])
    told = locks.holders([uuid(0)])[uuid(0)].outlived("GPU 0")
    for each in left:
        each.kill()
        each.wait()
    first, second = sorted(each.pid for each in left)
    assert f"process {first} (sleep) and 1 other, which outlived session a-s01 of" in told
    assert told.endswith(f": `kill -9 {first} {second}` ends them")
    assert locks.holders([uuid(0)]) == {}
    many = Holder("/one/a-s01", tuple(range(10, 30)), "python").outlived("GPU 0")
    assert "process 10 (python) and 19 others, which" in many
    assert many.endswith("`kill -9 10 11 12 13 14 15 16 17` ends 8 of them")


def test_who_only_looks_at_a_gpu_keeps_nobody_from_taking_it(tmp_path: Path) -> None:
    looking: list[int] = []

    class LooksBriefly(SystemClock):
        def wait(self, event: threading.Event, seconds: float) -> bool:
            while looking:
                os.close(looking.pop())
            return super().wait(event, min(seconds, 0.001))

    locks = GpuLocks(tmp_path, LooksBriefly())
    with locks.taken([uuid(0)], 1, "a") as (held, _):
        assert list(held) == [uuid(0)]
        with locks.taken([uuid(0)], 1, "b") as (none, others):
            assert (none, others) == ({}, {uuid(0): Holder("a")})
    looking.append(os.open(tmp_path / f"{uuid(0)}.lock", os.O_RDONLY))
    fcntl.flock(looking[0], fcntl.LOCK_SH)
    with locks.taken([uuid(0)], 1, "c") as (held, _):
        assert list(held) == [uuid(0)]


def test_a_folder_for_locks_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    locks = GpuLocks(tmp_path / "cache" / "gpus", SystemClock())
    with pytest.raises(Rejected, match="cannot be opened: Not a directory"), locks.taken([uuid(0)], 1, "a"):
        pass


def test_another_controller_of_the_home_sees_the_same(machine: Gpus) -> None:
    box = machine(FakeGpu())
    box.start(box.platform(), "a-s01")
    [offer] = box.platform().survey()
    assert (offer.slots, offer.unavailable) == (1, None)


def test_a_session_on_the_cpu_sees_no_gpu(machine: Gpus) -> None:
    box = machine(FakeGpu())
    platform = box.platform(accelerator="cpu", gpus=None)
    assert box.start(platform, "a-s01") == [""]


# --- Options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gpus": []}, "give `all`, or a list of indexes"),
        ({"gpus": "some"}, "gpus"),
        ({"gpus": [-1]}, "indexes and UUIDs"),
        ({"gpus": [True]}, "indexes and UUIDs"),
        ({"gpus": [1.5]}, "gpus"),
        ({"gpus": ["0; rm"]}, "indexes and UUIDs"),
        ({"accelerator": "cpu"}, "gpus needs the kind of these GPUs"),
        ({"accelerator": "TPUv5e-1"}, "gpus needs the kind of these GPUs"),
        ({"memory_gb": 4}, "memory_gb limits sessions on the CPU"),
        ({"nvidia_smi_seconds": 0}, "nvidia_smi_seconds"),
    ],
)
def test_wrong_options_are_refused(machine: Gpus, options: dict[str, object], words: str) -> None:
    with pytest.raises(InputError, match=words.replace("(", "\\(")):
        machine().platform(**options)  # type: ignore[arg-type]


def test_gpus_of_an_own_accelerator_that_is_a_cpu_are_refused(machine: Gpus) -> None:
    platform = machine().platform(accelerator="lab")
    with pytest.raises(InputError, match="lab has arch cpu"):
        platform.equip({"lab": OwnAccelerator("lab", 30.0, "cpu", ((Precision.FP32, 1.0),))})
