"""The test of a new store: what it finds, which broken promise it names, and that it leaves nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.client.round_trip import prove, skew
from orchestrator.clock import SystemClock
from orchestrator.errors import AccessDenied, CorruptCheckpoint, OrchestratorError, Rejected
from orchestrator.stores.memory import MemoryStore
from orchestrator.stores.store import Stat

CLOCK = SystemClock()


class Replaces(MemoryStore):
    """Ignores that an object exists, as a server without conditional requests does."""

    def put(self, key: str, source: Path, sha256: str) -> None:
        self.delete(key)
        super().put(key, source, sha256)


class Hides(MemoryStore):
    def list(self, prefix: str) -> Iterator[Stat]:
        return iter(() if prefix else super().list(prefix))


class Garbles(MemoryStore):
    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        super().get(key, target, sha256, bytes_max=bytes_max)
        target.write_bytes(target.read_bytes()[::-1])


class Keeps(MemoryStore):
    """Its credentials may write, but not delete."""

    def delete(self, key: str) -> None:
        raise AccessDenied(f"deleting is not allowed: {key}")


def test_a_store_that_keeps_every_promise_is_left_empty() -> None:
    store = MemoryStore()
    proof = prove(store, CLOCK)
    assert proof.registers
    assert min(proof.upload, proof.download) > 0
    assert list(store.list("")) == []
    assert store.registers is not None
    assert list(store.registers.list("")) == []


def test_a_store_without_registers_is_said_to_have_none() -> None:
    store = MemoryStore()
    store.registers = None  # type: ignore[assignment]
    assert not prove(store, CLOCK).registers


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (Replaces, Rejected, "the store replaced an object"),
        (Hides, Rejected, "the list of objects does not have it"),
        (Garbles, (Rejected, CorruptCheckpoint), "other bytes"),
        (Keeps, AccessDenied, "deleting is not allowed"),
    ],
)
def test_a_broken_promise_is_named(
    make: Callable[[], MemoryStore], error: type[OrchestratorError], told: str
) -> None:
    store = make()
    with pytest.raises(error, match=told):
        prove(store, CLOCK)
    if make is not Keeps:
        assert list(MemoryStore.list(store, "")) == []


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """An address that refuses everything, and the times it gives."""
    dates: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response_only(403)
            if dates:
                self.send_header("Date", dates[0])
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        Thread(target=made.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{made.server_port}/", dates
        made.shutdown()


@pytest.mark.parametrize("date", [None, "yesterday", ""])
def test_a_server_without_a_time_says_nothing_about_the_clock(
    server: tuple[str, list[str]], date: str | None
) -> None:
    address, dates = server
    dates.extend([] if date is None else [date])
    assert skew(address, CLOCK) is None


def test_the_clock_of_a_server_that_refuses_is_read(server: tuple[str, list[str]]) -> None:
    address, dates = server
    dates.append("Sun, 22 Nov 2026 00:00:00 GMT")
    found = skew(address, CLOCK)
    assert found is not None
    assert abs(found - (CLOCK.now() - 1795305600)) < 5


def test_a_server_that_is_not_there_says_nothing_about_the_clock() -> None:
    assert skew("http://127.0.0.1:9/", CLOCK) is None
