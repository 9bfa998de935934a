"""The register suite for every store that has registers, and more for the registers of a folder."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.core import bounds
from orchestrator.errors import Conflict, Rejected, Transient
from orchestrator.files import PREFIX
from orchestrator.stores import folder_registers
from orchestrator.stores.faulty import FaultRates, FaultyStore
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.folder_registers import FolderRegisters
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.retrying import RetryingStore
from tests.conformance.register_suite import KEY, RegisterSuite, incremented, registers
from tests.conformance.store_suite import source
from tests.conformance.test_stores import store

__all__ = ["registers", "source", "store"]  # fixtures


class TestEveryRegister(RegisterSuite):
    """The suite for the stores of `tests.conformance.test_stores`."""


# --- the folder's ---------------------------------------------------------------------------------------


COUNT = """
import sys
from pathlib import Path
from orchestrator.stores.folder import FolderStore
from tests.conformance.register_suite import incremented
registers = FolderStore(Path(sys.argv[1])).registers
while True:
    incremented(registers)
    print("one", flush=True)
"""


def test_counters_killed_at_random_moments_lose_no_count_and_leave_no_lock(tmp_path: Path) -> None:
    draw = random.Random(5)
    counters = [
        subprocess.Popen([sys.executable, "-c", COUNT, str(tmp_path)], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    counted = 0
    for counter in counters:
        assert counter.stdout is not None
        counter.stdout.readline()
        counted += 1
        threading.Event().wait(draw.uniform(0.0, 0.1))
        counter.kill()
        output, _ = counter.communicate()
        assert counter.returncode == -signal.SIGKILL
        counted += len(output.splitlines())
    held = FolderStore(tmp_path).registers.read(KEY)
    assert held is not None
    assert counted <= int(held.value) <= counted + len(counters), "a kill may come before the output"
    incremented(FolderStore(tmp_path).registers)
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(PREFIX)]


COMES_AND_GOES = """
import sys
from pathlib import Path
from orchestrator.stores.folder import FolderStore
from tests.conformance.register_suite import KEY
registers = FolderStore(Path(sys.argv[1])).registers
rounds = 0
while rounds < 1500 or not Path(sys.argv[2]).exists():
    registers.swap(KEY, b"1", None)
    registers.delete(KEY)
    rounds += 1
"""


def test_one_that_is_deleted_while_it_is_read_is_there_or_is_not(tmp_path: Path) -> None:
    registers, both = FolderStore(tmp_path / "store").registers, tmp_path / "both were seen"
    found = set()
    words = [str(tmp_path / "store"), str(both)]
    with subprocess.Popen([sys.executable, "-c", COMES_AND_GOES, *words]) as other:
        while other.poll() is None:
            held = registers.read(KEY)
            found.add(None if held is None else held.value)
            if len(found) > 1:
                both.touch()
    assert other.returncode == 0
    assert found == {None, b"1"}


def test_what_cannot_be_read_now_is_worth_another_try() -> None:
    """As a network file system answers for a while. The kernel refuses this file's first byte so."""
    registers = FolderRegisters(Path("/proc"), "here", FolderStore(Path("/proc"))._reporting)
    with pytest.raises(Transient):
        registers.read(f"{os.getpid()}/mem")


def test_a_lock_that_is_never_given_back_costs_patience_not_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_registers, "_LOOKS", 3)
    registers = FolderStore(tmp_path).registers
    version = registers.swap(KEY, b"1", None)
    descriptor = os.open(tmp_path / ".registers" / ".lock", os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(Transient, match="another process"):
        registers.swap(KEY, b"2", version)
    assert registers.read(KEY) == Held(b"1", version), "reading never waits"
    os.close(descriptor)
    registers.swap(KEY, b"2", version)


def test_what_is_no_register_is_refused_and_stays(tmp_path: Path) -> None:
    registers, folder = FolderStore(tmp_path).registers, tmp_path / ".registers"
    version = registers.swap("a", b"1", None)
    (tmp_path / "elsewhere").write_bytes(b"1")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "folder").mkdir()
    (folder / "large").write_bytes(b"x" * (bounds.REGISTER_BYTES_MAX + 1))
    os.mkfifo(folder / "pipe")
    for key in ("link", "folder", "large", "pipe"):
        with pytest.raises(Rejected):
            registers.read(key)
        with pytest.raises(Rejected):
            registers.swap(key, b"2", version)
    assert (tmp_path / "elsewhere").read_bytes() == b"1"
    assert registers.read("a") == Held(b"1", version)


# --- faults -----------------------------------------------------------------------------------------------


def tormented(rates: FaultRates, seed: int) -> tuple[Registers, Registers]:
    """Registers that fail and are tried again, and the same registers without faults."""
    inner = MemoryStore()
    faulty = FaultyStore(inner, rates, random.Random(seed), now=lambda: 0.0, wait=lambda _: None)
    found = RetryingStore(faulty, attempts=100, sleep=lambda _: None).registers
    assert found is not None
    return found, inner.registers


@pytest.mark.parametrize("seed", range(20))
def test_with_lost_replies_each_count_counts_once(seed: int) -> None:
    registers, inner = tormented(FaultRates(fails=0.3, loses_reply=0.3), seed)
    for _ in range(20):
        incremented(registers)
    held = inner.read(KEY)
    assert held is not None
    assert held.value == b"20"


@pytest.mark.parametrize("seed", range(20))
def test_with_lost_replies_a_claim_is_won_once_and_its_winner_knows(seed: int) -> None:
    registers, inner = tormented(FaultRates(fails=0.3, loses_reply=0.3), seed)
    won = []
    for claimant in (b"first", b"second"):
        try:
            registers.swap(KEY, claimant, None)
        except Conflict:
            continue
        won.append(claimant)
    held = inner.read(KEY)
    assert held is not None
    assert won == [held.value]


def test_a_new_register_may_be_listed_late_and_is_read_at_once() -> None:
    now = [0.0]
    rates = FaultRates(hides=1.0, hidden_seconds=10.0)
    faulty = FaultyStore(MemoryStore(), rates, random.Random(1), now=lambda: now[0], wait=lambda _: None)
    registers = faulty.registers
    assert registers is not None
    registers.swap(KEY, b"1", None)
    assert registers.read(KEY) is not None
    assert list(registers.list("")) == []
    now[0] = 11.0
    assert list(registers.list("")) == [KEY]
