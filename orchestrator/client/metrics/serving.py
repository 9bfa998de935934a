"""Answers `GET /metrics` over HTTP, on this machine's loopback unless the config names an address.

Decides who may ask: a browser that was lured to a name which points here sends that name as its Host, so only
IP addresses, localhost and the names in the config are answered (DNS rebinding). Must never know what the
figures mean, nor wait for the controller.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from orchestrator.config import MetricsConfig

CONNECTION_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 8  # one Prometheus needs one; more are refused


class Server:
    """Listens once `ensure` could bind the port. A port that is taken is told once, and tried again."""

    def __init__(self, given: MetricsConfig, text: Callable[[], bytes], warn: Callable[[str], None]) -> None:
        self._given = given
        self._text = text
        self._warn = warn
        self._http: _Http | None = None
        self._told = ""
        self._lock = threading.Lock()
        self._closed = False

    def ensure(self) -> None:
        """Starts to listen unless it does. Raises nothing."""
        with self._lock:
            if self._http is not None or self._closed:
                return
            try:
                self._http = self._listening()
            except OSError as error:
                where = f"port {self._given.port} of {self._given.address}"
                self._tell(
                    f"metrics are not served: {where} cannot be opened ({error.strerror or error}); tried "
                    "again every 15 seconds. Change `metrics` in the config to use another port"
                )
            except RuntimeError as error:  # this machine has no thread left
                self._tell(f"metrics are not served: {error}; tried again every 15 seconds")

    def _listening(self) -> _Http:
        http = _Http(self._given, self._text)
        try:
            threading.Thread(target=http.serve_forever, name="metrics-http", daemon=True).start()
        except BaseException:
            http.server_close()
            raise
        return http

    def _tell(self, text: str) -> None:
        if text != self._told:
            self._told = text
            self._warn(text)

    def close(self) -> None:
        """Ends the listening; the port is free at once."""
        with self._lock:
            self._closed = True
            http, self._http = self._http, None
        if http is not None:
            http.shutdown()
            http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, given: MetricsConfig, text: Callable[[], bytes]) -> None:
        self.address_family = socket.AF_INET6 if ":" in given.address else socket.AF_INET
        self.names = frozenset(name.lower() for name in ("localhost", *given.hosts))
        self.text = text
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__((given.address, given.port), _Handler)

    def process_request(self, request: object, client_address: object) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        try:
            super().process_request(request, client_address)  # type: ignore[arg-type]
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: object, client_address: object) -> None:
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away concerns nobody."""


class _Handler(BaseHTTPRequestHandler):
    server: _Http
    timeout = CONNECTION_SECONDS_MAX
    server_version, sys_version = "orchestrator", ""

    def do_GET(self) -> None:
        if not is_allowed(self.headers.get_all("Host", []), self.server.names):
            self._answer(HTTPStatus.FORBIDDEN, b"this Host is not allowed: add it to metrics.hosts\n")
        elif self.path.partition("?")[0] != "/metrics":
            self._answer(HTTPStatus.NOT_FOUND, b"see /metrics\n")
        else:
            self._answer(HTTPStatus.OK, self.server.text())

    do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

    def _answer(self, status: HTTPStatus, body: bytes) -> None:
        with suppress(OSError):
            self.send_response(status)
            self.send_header(
                "Content-Type", CONTENT_TYPE_PLAIN_0_0_4 if status is HTTPStatus.OK else "text/plain"
            )
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes come every few seconds and belong in no log."""


def is_allowed(hosts: list[str], names: frozenset[str]) -> bool:
    """Whether a request with these Host headers may be answered: exactly one, and an IP address or one of the
    names."""
    if len(hosts) != 1:
        return False
    host = hosts[0].strip().lower()
    if host.startswith("["):
        host = host[1:].partition("]")[0]
    elif host.count(":") <= 1:
        host = host.partition(":")[0]
    if host in names:
        return True
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
