"""What the registers of every store must do: subclass RegisterSuite and give it a `store` fixture."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.core import bounds
from orchestrator.errors import Conflict, Rejected
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Store
from tests.conformance.store_suite import Source

KEY = "runs/r-1/fence"
STALE = "0" * 64


@pytest.fixture
def registers(store: Store) -> Registers:
    assert store.registers is not None
    return store.registers


def incremented(registers: Registers, key: str = KEY) -> None:
    """Increments the counter by one, however many others do the same."""
    while True:
        held = registers.read(key)
        count, version = (0, None) if held is None else (int(held.value), held.version)
        try:
            registers.swap(key, str(count + 1).encode(), version)
        except Conflict:
            continue
        return


class RegisterSuite:
    def test_a_register_is_none_until_it_is_written(self, registers: Registers) -> None:
        assert registers.read(KEY) is None
        version = registers.swap(KEY, b"1", None)
        assert registers.read(KEY) == Held(b"1", version)
        registers.delete(KEY)
        assert registers.read(KEY) is None
        registers.delete(KEY)

    def test_only_who_read_the_last_value_writes_the_next(self, registers: Registers) -> None:
        first = registers.swap(KEY, b"1", None)
        second = registers.swap(KEY, b"2", first)
        assert second != first
        for version in (None, first, STALE):
            with pytest.raises(Conflict):
                registers.swap(KEY, b"3", version)
        assert registers.read(KEY) == Held(b"2", second)
        registers.delete(KEY)
        with pytest.raises(Conflict):
            registers.swap(KEY, b"3", second)
        assert registers.read(KEY) is None

    @pytest.mark.parametrize("value", [b"", b"\0\xff\r\n", b"x" * bounds.REGISTER_BYTES_MAX])
    def test_any_bytes_are_a_value(self, registers: Registers, value: bytes) -> None:
        version = registers.swap(KEY, value, None)
        assert registers.read(KEY) == Held(value, version)
        assert registers.swap(KEY, b"another", version) != version

    def test_a_value_beyond_the_bound_is_refused(self, registers: Registers) -> None:
        version = registers.swap(KEY, b"1", None)
        with pytest.raises(Rejected, match="128 kB"):
            registers.swap(KEY, b"x" * (bounds.REGISTER_BYTES_MAX + 1), version)
        assert registers.read(KEY) == Held(b"1", version)

    @pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", ".lock", "a/.b", "ä", "a b", "a\n"])
    def test_a_key_that_is_none_is_refused(self, registers: Registers, key: str) -> None:
        with pytest.raises(Rejected):
            registers.swap(key, b"1", None)
        with pytest.raises(Rejected):
            registers.read(key)
        with pytest.raises(Rejected):
            registers.delete(key)

    def test_keys_are_listed_by_their_prefix_in_order(self, registers: Registers) -> None:
        keys = ["a", "runs/r-1/fence", "runs/r-1/sessions/s2/claim", "runs/r-10/fence", "runs/r-1-x"]
        for key in keys:
            registers.swap(key, b"1", None)
        assert list(registers.list("")) == sorted(keys)
        assert list(registers.list("runs/r-1/")) == ["runs/r-1/fence", "runs/r-1/sessions/s2/claim"]
        assert list(registers.list("runs/r-1")) == sorted(keys[1:])
        assert list(registers.list("nothing")) == []

    def test_registers_and_objects_do_not_meet(
        self, store: Store, registers: Registers, source: Source
    ) -> None:
        store.put(KEY, *source(b"an object"))
        version = registers.swap(KEY, b"a register", None)
        registers.swap("runs/r-1/claim", b"1", None)
        assert [stat.key for stat in store.list("")] == [KEY]
        store.delete(KEY)
        assert registers.read(KEY) == Held(b"a register", version)
        assert store.stat(KEY) is None

    def test_no_count_is_lost_among_many(self, registers: Registers) -> None:
        with ThreadPoolExecutor(8) as pool:
            for counting in [pool.submit(incremented, registers) for _ in range(48)]:
                counting.result()
        held = registers.read(KEY)
        assert held is not None
        assert held.value == b"48"

    def test_of_many_that_claim_one_wins(self, registers: Registers) -> None:
        together = threading.Barrier(8)

        def claim(number: int) -> bool:
            together.wait()
            try:
                registers.swap("runs/r-1/claim", f"claimant {number}".encode(), None)
            except Conflict:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(claim, range(8)))
        assert won.count(True) == 1
        held = registers.read("runs/r-1/claim")
        assert held is not None
        assert held.value == f"claimant {won.index(True)}".encode()
