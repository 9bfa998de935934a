"""A scripted server that speaks HTTP byte by byte: real answers, and all the ways in which they break.

It does not know how Kaggle behaves: tests script each answer. tests/stand_ins/kaggle behaves like Kaggle.
"""

from __future__ import annotations

import json
import socket
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.credentials import Credentials

KEY = "0123456789abcdef0123456789abcdef"
PATIENT = (60.0, 240.0)
SIGNATURE = "X-Goog-Signature=deadbeef"


@dataclass(frozen=True)
class Answer:
    """`cut`: after how many bytes of the body the connection closes. `silent`: no answer until the end of the
    test. `length`: whether Content-Length is sent. `pieces`: the body in chunks, silent after the last."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut: int | None = None
    silent: bool = False
    length: bool = True
    pieces: tuple[bytes, ...] = ()
    ends: bool = True


def said(body: Any, status: int = 200, **headers: str) -> Answer:
    """A JSON answer; an underscore in a header's name stands for a hyphen."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Answer(status, json.dumps(body).encode(), {"Content-Type": "application/json", **given})


SILENT = Answer(silent=True)
LIMITED = said({"code": 429, "message": "Too Many Requests"}, 429, Retry_After="7")
BROKEN = said({"code": 500, "message": "Internal"}, 500)
NESTED = said({"error": {"code": 403, "message": "Permission 'x.get' was denied", "status": "DENIED"}}, 403)
UNKNOWN = said({"error": {"code": 401, "message": "Unauthenticated"}}, 401)
MISSING = said({"code": 404, "message": "Not found"}, 404)
PAGE = Answer(200, b"<html>down for maintenance</html>", {"Content-Type": "text/html"})
CUT = Answer(
    200, b'{"status": "RUNNING", "x": "yyyyyyyyyyyyyyyy"}', {"Content-Type": "application/json"}, cut=9
)
LOST = Answer(cut=0, length=False)
QUOTA = {
    "quotaRefreshTime": "2026-11-28T00:00:00Z",
    "gpuQuota": {"timeUsed": "3600s", "timeReserved": "1.5s", "totalTimeAllowed": "108000s"},
}


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Script = Answer | Callable[[Request], Answer]


class Wire:
    """Answers by the last part of the path, such as SaveKernel: first the queued answers, then the permanent
    one."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: list[Request] = []
        self.over = threading.Event()
        self._queued: dict[str, deque[Script]] = defaultdict(deque)
        self._always: dict[str, Script] = {
            "GetAcceleratorQuotaStatistics": said(QUOTA),
            "ListKernels": said({}),  # an empty account
            "ListDatasets": said({}),
        }

    def then(self, name: str, *answers: Script) -> None:
        self._queued[name].extend(answers)

    def always(self, name: str, answer: Script) -> None:
        self._always[name] = answer

    def calls(self, name: str) -> list[Request]:
        return [request for request in self.requests if _name(request.path) == name]

    def answer(self, request: Request) -> Answer:
        self.requests.append(request)
        queued = self._queued[_name(request.path)]
        script = queued.popleft() if queued else self._always.get(_name(request.path), MISSING)
        return script if isinstance(script, Answer) else script(request)


def _name(path: str) -> str:
    return path.partition("?")[0].rpartition("/")[2]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wire: Wire

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.wire.answer(Request(self.command, self.path, dict(self.headers), body))
        if answer.silent:
            self.wire.over.wait()
            return self._close()
        if answer.cut == 0:
            return self._close()
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.pieces:
            return self._chunks(answer)
        if answer.length:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        self.wfile.write(answer.body[: answer.cut])
        if answer.cut is not None or not answer.length:
            self._close()
        return None

    do_GET = do_POST = do_PUT = _handle  # noqa: N815

    def _chunks(self, answer: Answer) -> None:
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for piece in answer.pieces:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if answer.ends:
            self.wfile.write(b"0\r\n\r\n")
        elif answer.cut is None:
            self.wire.over.wait()
        if not answer.ends:
            self._close()

    def _close(self) -> None:
        self.close_connection = True
        self.wfile.flush()
        self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *_: object) -> None:
        """Logs nothing: a failing test says what went wrong."""


@contextmanager
def wire() -> Iterator[Wire]:
    """A server on loopback, in threads of this process."""

    class Handler(_Handler):
        """A handler for this server only."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    Handler.wire = made = Wire(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        made.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


def client(server: Wire, pauses: list[float] | None = None, **options: Any) -> KaggleClient:
    """A client that does not wait between attempts; `pauses` records the pauses that it skips."""
    slept = [] if pauses is None else pauses
    given = {"credentials": Credentials("ada", key=KEY), "timeout": PATIENT, "backend": "box", **options}
    return KaggleClient(**given, endpoint=server.url, sleep=slept.append)


def timeout(fault: object) -> tuple[float, float]:
    """A short time-out for a test that waits for it."""
    return (60.0, 2.0) if fault is SILENT else PATIENT
