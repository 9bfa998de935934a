"""A machine of Colab that sends more than anybody asked for costs only its own part of a reading."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from orchestrator.core import bounds
from orchestrator.platforms.colab import errand
from orchestrator.platforms.colab.outbox import page

MIB = 1 << 20
SENT_MAX = 64 * MIB


class Flood(HTTPServer):
    """A machine whose every answer is very long. `sent`: how many bytes it could send in total."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Flooding)
        self.sent = 0


class _Flooding(BaseHTTPRequestHandler):
    server: Flood

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            while self.server.sent < SENT_MAX:
                self.wfile.write(bytes(MIB))
                self.server.sent += MIB


@pytest.fixture
def flood() -> Iterator[Flood]:
    with Flood() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("path", ["content/folder/", "content/file"])
def test_an_answer_without_end_is_not_read_to_its_end(flood: Flood, path: str) -> None:
    url = f"http://127.0.0.1:{flood.server_address[1]}"
    machine = {"runtimeProxyInfo": {"url": url, "token": "local"}}
    found = errand.contents(machine, [path], {"bytes_max": MIB, "file_seconds": 60.0})
    assert "answers with more than" in found["problem"]
    assert flood.sent < SENT_MAX / 2


def test_one_answer_has_little_of_the_log_whatever_its_listing_says() -> None:
    names = [f"{number:06}.log" for number in range(5, 100)]
    assert page(dict.fromkeys(names, 0)) == (names[:16], MIB)
    assert page(dict.fromkeys(names, MIB)) == (names[:16], MIB)
    assert page({}) == ([], bounds.LOG_SEGMENT_BYTES_MAX)


@pytest.mark.parametrize("large", [0, 1])
def test_a_large_segment_of_the_log_does_not_keep_the_next_ones_away(large: int) -> None:
    """The first one may be here already, so two at least."""
    names = [f"{number:06}.log" for number in range(5, 100)]
    sizes = dict.fromkeys(names, 0) | {names[large]: 9 * MIB}
    assert page(sizes) == (names[:2], bounds.LOG_SEGMENT_BYTES_MAX)
