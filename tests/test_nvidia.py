"""What is understood of nvidia-smi, in whatever state it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.nvidia import GPUS_MAX, Asker, Gpu, visible
from tests.stand_ins.nvidia_smi import GARBAGE, HANGS, NO_DRIVER, FakeGpu, install, uuid
from tests.waiting import wait_until

SYSTEM = "/usr/bin:/bin"


def asker(place: Path, seconds: float = 10.0) -> Asker:
    return Asker({"PATH": f"{place}:{SYSTEM}"}, seconds)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("knows_mig", [True, False])
def test_every_gpu_is_found(tmp_path: Path, count: int, knows_mig: bool) -> None:
    found = asker(install(tmp_path, [FakeGpu()] * count, knows_mig=knows_mig)).gpus()
    assert [each.index for each in found.gpus] == list(range(count))
    assert found.gpus[-1] == Gpu(count - 1, uuid(count - 1), "NVIDIA GeForce RTX 4090", 24564 * 1024**2 / 1e9)
    assert found.trouble == ""


def test_a_gpu_in_mig_mode_is_known_as_such(tmp_path: Path) -> None:
    place = install(
        tmp_path, [FakeGpu("NVIDIA A100-SXM4-40GB", 40960, mig="Enabled"), FakeGpu(mig="Disabled")]
    )
    assert [each.mig for each in asker(place).gpus().gpus] == [True, False]


def test_a_machine_without_gpus_says_so(tmp_path: Path) -> None:
    found = asker(install(tmp_path, [])).gpus()
    assert (found.gpus, found.trouble) == ((), "nvidia-smi: No devices were found")


def test_a_machine_without_the_program_says_so(tmp_path: Path) -> None:
    found = Asker({"PATH": str(tmp_path)}).gpus()
    assert (found.gpus, found.trouble) == ((), "nvidia-smi is not installed")


def test_its_own_words_are_told_if_it_fails(tmp_path: Path) -> None:
    found = asker(install(tmp_path, [], body=NO_DRIVER)).gpus()
    assert found.gpus == ()
    assert "couldn't communicate with the NVIDIA driver" in found.trouble


@pytest.mark.parametrize(
    "body",
    [
        GARBAGE,
        "yes nonsense,with,four,cells | head -100000",
        "echo '0, GPU_1, X, 100'; echo 'a, GPU-2-aaaa, X, 100'; echo '1, GPU-3-aaaa, X, -5'",
        "echo '0, GPU-aaaa-bbbb, X, [Unknown Error]'; echo 'GPU 0: Unable to determine the device handle'",
        "printf ''",
    ],
)
def test_garbage_is_no_gpu(tmp_path: Path, body: str) -> None:
    found = asker(install(tmp_path, [], body=body)).gpus()
    assert found.gpus == ()
    assert found.trouble.startswith("nvidia-smi")
    assert len(found.trouble) < 300


def test_endless_output_is_cut_off_early(tmp_path: Path) -> None:
    found = asker(install(tmp_path, [], body="exec yes"), seconds=60.0).gpus()
    assert (found.gpus, found.trouble.startswith("nvidia-smi: y y y")) == ((), True)


def test_what_it_says_cannot_control_a_terminal(tmp_path: Path) -> None:
    for body in ("printf '\\033[31mred'; exit 3", "printf '\\033[31mred'"):
        assert asker(install(tmp_path, [], body=body)).gpus().trouble == "nvidia-smi: [31mred"


def test_a_row_that_makes_sense_is_kept_among_others(tmp_path: Path) -> None:
    body = (
        f"echo 'garbage'; echo '3, {uuid(3)}, Tesla T4, 15360, [N/A]'; echo '4, {uuid(3)}, Twice, 1, [N/A]'"
    )
    [only] = asker(install(tmp_path, [], body=body)).gpus().gpus
    assert (only.index, only.name) == (3, "Tesla T4")


def test_more_gpus_than_any_machine_has_are_cut_off(tmp_path: Path) -> None:
    assert len(asker(install(tmp_path, [FakeGpu()] * 100)).gpus().gpus) == GPUS_MAX


def test_one_that_hangs_is_ended_and_leaves_no_process(tmp_path: Path) -> None:
    asking = asker(install(tmp_path, [], body=HANGS), seconds=0.2)
    found = asking.gpus()
    assert found.trouble == "nvidia-smi did not answer within 0.2 s"
    assert "did not answer" in asking.gpus().trouble
    pids = [int(line) for line in (tmp_path / "hanging").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        wait_until(lambda pid=pid: not Path(f"/proc/{pid}").exists(), "its end")  # type: ignore[misc]


def test_loads_are_of_the_gpus_asked_for(tmp_path: Path) -> None:
    place = install(tmp_path, [FakeGpu(percent="7"), FakeGpu(percent="[N/A]"), FakeGpu(percent="900")])
    first, second = asker(place).loads([uuid(0), uuid(1)])
    assert (first.percent, first.watts, first.celsius) == (7.0, 215.5, 61.0)
    assert first.memory_gb == pytest.approx(1.07, abs=0.01)
    assert second.percent is None
    [third] = asker(place).loads([uuid(2)])
    assert third.percent is None
    assert asker(install(tmp_path, [], body=GARBAGE)).loads([uuid(0)]) == ()


ALL = tuple(Gpu(n, uuid(n), "X", 1.0) for n in range(4))


@pytest.mark.parametrize(
    ("said", "indexes"),
    [
        (None, [0, 1, 2, 3]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("2,0", [2, 0]),
        (" 1 , 3 ", [1, 3]),
        ("1,9,2", [1]),
        ("1,1", [1]),
        (uuid(3), [3]),
        ("GPU-00000002", [2]),
        ("GPU-0000000", []),  # of several
        ("GPU-", []),
        ("99999999999999999999", []),
        ("00003", [3]),
        ("00012", []),
    ],
)
def test_what_the_controller_may_see(said: str | None, indexes: list[int]) -> None:
    assert [each.index for each in visible(ALL, said)] == indexes
