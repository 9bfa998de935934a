"""What the agent reads about the machine."""

from __future__ import annotations

import platform
from pathlib import Path

import numpy
import pytest

from orchestrator.agent import machine
from tests.agent.sessions import new_order


def test_the_instruction_set_is_the_flags_that_choose_kernels() -> None:
    machine_name = platform.machine()
    cpuinfo = "processor: 0\nflags\t\t: fpu vme sse2 avx512f avx2 fma hypervisor bmi1\nflags\t\t: other\n"
    assert machine.instruction_set(cpuinfo) == f"{machine_name} avx2 avx512f bmi1 fma sse2"
    assert (
        machine.instruction_set("Features : fp asimd asimddp crc32 sve\n")
        == f"{machine_name} asimd asimddp sve"
    )
    assert machine.instruction_set("vendor_id\t: AuthenticAMD\nflags\t: fma\n") == (
        f"{machine_name} AuthenticAMD fma"
    )
    assert machine.instruction_set("") == machine_name


def test_the_fingerprint_names_what_bitwise_resume_depends_on() -> None:
    found = machine.fingerprint(new_order("train.py", threads=2, accelerator="T4x2", devices=2))
    assert found["threads"] == "2"
    assert found["accelerator"] == "T4x2"
    assert found["python"] == platform.python_version()
    assert found["instruction_set"].startswith(platform.machine())
    assert found == machine.fingerprint(new_order("train.py", threads=2, accelerator="T4x2", devices=2))


def a_package(folder: Path, version: str) -> str:
    """A folder of a PYTHONPATH that has numpy's metadata."""
    info = folder / "numpy-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_bytes(f"Metadata-Version: 2.1\nName: numpy\n{version}".encode("latin-1"))
    return str(folder)


def test_numpys_version_is_that_of_the_first_one_on_the_commands_path(tmp_path: Path) -> None:
    order = new_order("train.py")
    assert machine.fingerprint(order)["numpy"] == numpy.__version__
    empty = tmp_path / "empty"
    empty.mkdir()
    first, second = (a_package(tmp_path / version, f"Version: {version}\n") for version in ("98.1", "99.2"))
    assert machine.fingerprint(order, f"{empty}:{first}::{second}")["numpy"] == "98.1"
    assert machine.fingerprint(order, f"{tmp_path}/none:{empty}")["numpy"] == numpy.__version__


@pytest.mark.parametrize(
    ("metadata", "found"),
    [("", ""), ("Version: caf\xe9\n", ""), (f"Version: {'9' * 5000}\n", "9" * 97 + "…")],
)
def test_a_damaged_version_is_no_error(tmp_path: Path, metadata: str, found: str) -> None:
    path = a_package(tmp_path / "x", metadata)
    assert machine.fingerprint(new_order("train.py"), path)["numpy"] == found


def test_kills_for_memory_are_counted_from_some_number_upwards() -> None:
    first = machine.oom_kills()
    assert machine.oom_kills() >= first >= 0
