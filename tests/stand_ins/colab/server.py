"""The local Colab: a proxy on loopback behind which Google's hosts are this server, and its machines.

The real command line reaches it without a patch: HTTPS_PROXY names it, and REQUESTS_CA_BUNDLE its
certificates. It takes CONNECT for Google's hosts only and passes nothing on to the network. Decides which
part answers a request, which fault it shows, and what a machine gets to see. account.py decides the answers.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast
from urllib.parse import parse_qs, parse_qsl, urlsplit

from orchestrator.platforms.colab.environment import user_cache
from tests.stand_ins.colab import certificates
from tests.stand_ins.colab.account import Account, Refusal
from tests.stand_ins.colab.machine import Machine, jupyter
from tests.stand_ins.colab.settings import Fault, Settings

COLAB, OAUTH = "colab.research.google.com", "oauth2.googleapis.com"
HOSTS = (COLAB, OAUTH)
_XSSI = ")]}'\n"
_PAGE = "<html><body>Something went wrong</body></html>"
_TICK_SECONDS = 0.1
_CHUNK = 1 << 16
_A_KERNEL = re.compile(r"/api/kernels/[^/?]+(\?|$)")


@dataclass
class Trouble:
    """A fault for the next `times` requests whose "METHOD /path" starts with `start`."""

    start: str
    fault: Fault
    times: int


class LocalColab:
    """A running local Colab. `requests` has "METHOD /path" of every request in order; `strangers` the hosts
    that somebody wanted and did not reach; `bugs` the tracebacks of the stand-in itself."""

    def __init__(self, folder: Path, settings: Settings, python: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.account = Account(folder / "machines", settings, python=python)
        self.certificates = certificates.make(folder, HOSTS)
        self.requests: list[str] = []
        self.strangers: list[str] = []
        self.bugs: list[str] = []
        self.troubles: list[Trouble] = []
        self.ending = threading.Event()
        self.tls = self.certificates.context()

    @property
    def settings(self) -> Settings:
        return self.account.settings

    @property
    def ca(self) -> Path:
        return self.certificates.ca

    @property
    def url(self) -> str:
        return self.account.url

    def use(self, **changes: Any) -> None:
        """Changes settings from now on."""
        self.account.count()
        self.account.settings = replace(self.account.settings, **changes)

    def fail(self, start: str, fault: Fault, times: int = 1) -> None:
        """The next requests that start like this, such as "POST /tun/m/assign", meet a fault. A machine's
        are "GET /api/contents/…"."""
        self.troubles.append(Trouble(start, fault, times))

    def fault(self, request: str) -> Fault | None:
        for trouble in self.troubles:
            if trouble.times and request.startswith(trouble.start):
                trouble.times -= 1
                return trouble.fault
        return None

    def machine(self, endpoint: str) -> Machine:
        return self.account.machines[endpoint]

    def vanish(self, endpoint: str) -> None:
        self.account.vanish(self.machine(endpoint))

    def login(self) -> str:
        """A login as the command line keeps it in its token.json; expired, so it is renewed first."""
        known = {"client_id": "local", "client_secret": "local", "universe_domain": "googleapis.com"}
        expired = {"type": "authorized_user", "token": "old", "expiry": "2020-01-01T00:00:00Z"}
        return json.dumps(known | expired | {"refresh_token": self.settings.refresh_token})

    # --- Requests ---------------------------------------------------------------------------------------

    def answer(self, method: str, host: str, target: str, headers: Any, body: bytes) -> dict[str, Any]:
        """Raises Refusal for any other status than 200."""
        parts = urlsplit(target)
        query = dict(parse_qsl(parts.query))
        if host == OAUTH and (method, parts.path) == ("POST", "/token"):
            return self.account.token(dict(parse_qsl(body.decode())))
        if host != COLAB:
            raise Refusal(404)
        self.account.check(headers.get("Authorization", ""))
        xsrf = headers.get("X-Goog-Colab-Token", "")
        path, _, endpoint = parts.path.removeprefix("/tun/m/").partition("/")
        found: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
            ("GET", "assign"): lambda: self.account.get_assign(query),
            ("POST", "assign"): lambda: self.account.post_assign(query, xsrf),
            ("GET", "assignments"): self.account.assignments,
            ("GET", "ccu-info"): self.account.units,
            ("GET", "unassign"): lambda: self.account.get_unassign(endpoint),
            ("POST", "unassign"): lambda: self.account.post_unassign(endpoint, xsrf),
        }
        answer = found.get((method, path))
        if answer is None:
            raise Refusal(404)
        return answer()

    def admitted(self, target: str, headers: Any) -> Machine:
        """The machine that a request is for. Raises Refusal without a token of its that is still valid."""
        parts = urlsplit(target)
        machine = self.account.machines.get(parts.path.split("/")[2])
        if machine is None or machine.gone is not None:
            raise Refusal(404)
        given = {headers.get("X-Colab-Runtime-Proxy-Token")}
        given |= set(parse_qs(parts.query).get("colab-runtime-proxy-token", ()))
        if not any(machine.tokens.get(each or "", 0.0) > time.monotonic() for each in given):
            raise Refusal(401)
        return machine

    def watch(self) -> None:
        while not self.ending.wait(_TICK_SECONDS):
            try:
                self.account.tick()
            except Exception:  # noqa: BLE001 - the test that uses it must fail
                self.bugs.append(traceback.format_exc())


class _Handler(BaseHTTPRequestHandler):
    """A connection to the proxy; inside a tunnel, one to the host that was asked for."""

    protocol_version = "HTTP/1.1"
    host = ""
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Silence."""

    def do_CONNECT(self) -> None:
        host = self.path.partition(":")[0]
        if host not in HOSTS:
            self.server.colab.strangers.append(host)
            self._send(403, b"")
            return
        self.send_response_only(200, "Connection established")
        self.end_headers()
        try:
            tunnel = self.server.colab.tls.wrap_socket(self.connection, server_side=True)
        except OSError:
            self.close_connection = True
            return
        kind = type("_Tunnelled", (_Handler,), {"host": host})
        with tunnel, suppress(OSError):
            kind(tunnel, self.client_address, self.server)
        self.close_connection = True

    def _any(self) -> None:
        colab = self.server.colab
        if self.host:
            self._guarded(f"{self.command} {urlsplit(self.path).path}", self._google)
        elif self.path.startswith("/runtime/"):
            tail = "/".join(urlsplit(self.path).path.split("/")[3:])
            self._guarded(f"{self.command} /{tail}", self._machine)
        else:
            colab.strangers.append(self.path)
            self._send(403, b"")

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815

    def _guarded(self, request: str, answer: Callable[[], None]) -> None:
        colab = self.server.colab
        colab.requests.append(request)
        fault = colab.fault(request)
        if fault is Fault.HANGS:
            colab.ending.wait()
            self.close_connection = True
        elif fault is Fault.NONSENSE:
            self._send(200, _PAGE.encode(), "text/html")
        elif fault is Fault.HTML:
            self._send(502, _PAGE.encode(), "text/html")
        elif fault is not None and fault is not Fault.LOST_REPLY:
            self._send(int(fault.value), b"{}")
        else:
            self._lost = fault is Fault.LOST_REPLY
            try:
                answer()
            except Refusal as refusal:
                self._send(refusal.status, json.dumps(refusal.body).encode())
            except OSError:
                self.close_connection = True
            except Exception:  # noqa: BLE001 - the test that uses it must fail
                colab.bugs.append(traceback.format_exc())
                self._send(500, b"")

    def _google(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.server.colab.answer(self.command, self.host, self.path, self.headers, body)
        text = json.dumps(answer)
        self._send(200, (text if self.host == OAUTH else _XSSI + text).encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        if getattr(self, "_lost", False):
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")  # or the client would use it again
        self.end_headers()
        self.wfile.write(body)

    # --- A machine --------------------------------------------------------------------------------------

    def _machine(self) -> None:
        colab = self.server.colab
        self.close_connection = True
        if self.path.endswith("/local-unassign"):
            machine = colab.account.machines[self.path.split("/")[2]]
            self._send(200, b"{}")
            if not colab.settings.unassign_is_ignored:
                colab.account.vanish(machine)
            return
        machine = colab.admitted(self.path, self.headers)
        length = int(self.headers.get("Content-Length") or 0)
        if length > colab.settings.upload_bytes_max:
            self._skip(length)
            raise Refusal(400)
        if colab.settings.files_wait_for_cells and "/api/contents" in self.path and machine.is_busy():
            raise Refusal(503)
        if colab.settings.kernels_are_new and self.command == "GET" and _A_KERNEL.search(self.path):
            self._send(200, json.dumps(machine.new_kernel()).encode())
            return
        upgrade = self.headers.get("Upgrade", "").lower() == "websocket"
        with machine.connect() as jupyter_socket:
            lines = [f"{self.command} {self.path} HTTP/1.1", *(
                f"{name}: {value}" for name, value in self.headers.items()
                if name.lower() not in ("connection", "proxy-connection")
            ), f"Connection: {'Upgrade' if upgrade else 'close'}"]  # fmt: skip
            jupyter_socket.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")
            for _ in range(0, length, _CHUNK):
                data = self.rfile.read(min(_CHUNK, length))
                length -= len(data)
                jupyter_socket.sendall(data)
            if upgrade:
                threading.Thread(target=self._forward, args=(jupyter_socket,), daemon=True).start()
            with suppress(OSError):
                while data := jupyter_socket.recv(_CHUNK):
                    if not self._lost:
                        self.wfile.write(data)
        if upgrade and colab.settings.cells_need_clients:
            machine.interrupt()
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def _skip(self, length: int) -> None:
        while length > 0 and (data := self.rfile.read(min(_CHUNK, length))):
            length -= len(data)

    def _forward(self, jupyter_socket: socket.socket) -> None:
        """What the client says on a websocket."""
        stream = cast(Any, self.rfile)
        with suppress(OSError, ValueError):
            while data := stream.read1(_CHUNK):
                jupyter_socket.sendall(data)
        with suppress(OSError):
            jupyter_socket.shutdown(socket.SHUT_RDWR)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, colab: LocalColab) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.colab = colab

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no bug."""


@contextmanager
def local_colab(folder: Path, settings: Settings | None = None, *, port: int = 0) -> Iterator[LocalColab]:
    """Runs a local Colab until the end; then all its machines are gone. What they need is installed once, in
    the user's cache. Raises AssertionError if the stand-in had a bug."""
    colab = LocalColab(folder, settings or Settings(), jupyter(user_cache()))
    server = _Server(port, colab)
    colab.account.url = f"http://127.0.0.1:{server.server_address[1]}"
    serve = partial(server.serve_forever, poll_interval=0.05)
    threads = [threading.Thread(target=each, daemon=True) for each in (serve, colab.watch)]
    for thread in threads:
        thread.start()
    try:
        yield colab
    finally:
        colab.ending.set()
        for machine in colab.account.living():
            colab.account.vanish(machine)
        server.shutdown()
        server.server_close()
        for thread in threads:
            thread.join()
    assert not colab.bugs, "\n".join(colab.bugs)
