"""A server on loopback that speaks another protocol, such as SSH, whatever it is asked."""

from __future__ import annotations

import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

_LIMIT_BYTES = 65536


class _Handler(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        self.request.recv(_LIMIT_BYTES)
        self.request.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")


@contextmanager
def no_web_server() -> Iterator[str]:
    """Its address."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Handler) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
