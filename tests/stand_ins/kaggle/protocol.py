"""HTTP of the local Kaggle: RPCs, uploads, signed downloads with ranges, the log stream, and faults in each.

Knows only the wire format of Kaggle (docs/references/kaggle.md#messages). HTTP/1.1, with a
thread per connection.
"""

from __future__ import annotations

import http.server
import json
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from tests.stand_ins.kaggle.datasets import Blob
from tests.stand_ins.kaggle.session import ENDED
from tests.stand_ins.kaggle.settings import Fault, Refusal

if TYPE_CHECKING:
    from tests.stand_ins.kaggle.server import LocalKaggle

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Reply:
    """`body` is bytes, or a file of which the bytes from `start` up to `stop` (exclusive) are sent."""

    status: int
    body: bytes | Path = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    start: int = 0
    stop: int | None = None

    @classmethod
    def json(cls, value: Any) -> Reply:
        return cls(200, json.dumps(value).encode())

    @classmethod
    def error(cls, status: int, message: str, nested: bool) -> Reply:
        """The error at the top level, or nested, where the client loses its message
        (docs/references/kaggle.md#errors)."""
        error: dict[str, Any] = {"code": status, "message": message}
        if nested:
            error = {"error": {**error, "status": "PERMISSION_DENIED" if status == 403 else "UNKNOWN"}}
        return cls(status, json.dumps(error).encode())

    def range(self) -> tuple[int, int]:
        size = len(self.body) if isinstance(self.body, bytes) else self.body.stat().st_size
        return self.start, size if self.stop is None else self.stop


def redirect(url: str) -> Reply:
    return Reply(302, headers={"Location": url})


class Listener(http.server.ThreadingHTTPServer):
    """Serves in its own thread until it is closed. Then none of its connections and threads is left."""

    daemon_threads = False

    def __init__(self, kaggle: LocalKaggle, port: int) -> None:
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        super().__init__(("127.0.0.1", port), type("Handler", (_Handler,), {"kaggle": kaggle}))
        self.closing = threading.Event()
        self._thread = threading.Thread(target=partial(self.serve_forever, poll_interval=0.02), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.closing.set()
        self.shutdown()
        self._thread.join()
        with self._guard:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:  # the client has closed it already
                    continue
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._guard:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that disconnect. Anything else is a bug, which socketserver
        prints as a traceback."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(http.server.BaseHTTPRequestHandler):
    kaggle: LocalKaggle
    protocol_version = "HTTP/1.1"
    server: Listener

    def do_POST(self) -> None:
        service, _, method = self._path().removeprefix("/api").removeprefix("/v1/").rpartition("/")
        body = b"".join(self._body())
        fault = self._fault(method)
        if fault is None or fault in (Fault.CUT, Fault.LOST_REPLY):
            if not self.kaggle.admits(self.headers.get("Authorization", "")):
                self._send(self._unknown_user())
                return
            reply = self.kaggle.answer(f"{service}/{method}", json.loads(body or b"{}"))
            self._send_with(fault, reply)
        else:
            self._show(fault)

    def do_PUT(self) -> None:
        blob = self.kaggle.datasets.blobs.get(self._path().rpartition("/")[2])
        fault = self._fault("upload")
        if blob is None:
            self.close_connection = True
            self._send(Reply(404))
            return
        half = fault in (Fault.UNAVAILABLE, Fault.CUT)
        takes_effect = half or fault in (None, Fault.LOST_REPLY)
        self._receive(blob, limit=blob.length // 2 if half else None, keep=takes_effect)
        if fault is Fault.CUT:
            self._drop()
        elif fault is None or fault is Fault.LOST_REPLY:
            self._send_with(fault, self._received(blob))
        else:
            self._show(fault)

    def do_GET(self) -> None:
        path = self._path()
        if path.startswith("/signed/"):
            fault = self._fault("download")
            if fault is None or fault in (Fault.CUT, Fault.LOST_REPLY):
                self._send_with(fault, self._file(parse_qs(urlsplit(self.path).query)["X-Goog-Signature"][0]))
            else:
                self._show(fault)
        elif "/v1/kernels/logs/stream/" in path:
            self._logs(*path.split("/")[-2:])
        else:
            self._send(Reply.error(404, "Not found", nested=False))

    def date_time_string(self, timestamp: float | None = None) -> str:
        now = time.time() if timestamp is None else timestamp
        return super().date_time_string(int(now + self.kaggle.warts.clock_ahead_seconds))

    def log_message(self, *_: object) -> None:
        """Prints nothing, because the tests look at `calls`."""

    def _path(self) -> str:
        return urlsplit(self.path).path  # it may be a whole URL: docs/references/kaggle.md#a-local-server

    def _fault(self, call: str) -> Fault | None:
        due = self.kaggle.take_fault(call)
        return Fault.UNAVAILABLE if self.kaggle.is_out else due

    def _body(self) -> Iterator[bytes]:
        """The request's body in pieces. Empty uploads are chunked (docs/references/kaggle.md#uploads)."""
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length", 0))
        while left > 0:
            data = self.rfile.read(min(left, _CHUNK))
            if not data:
                return
            left -= len(data)
            yield data

    def _receive(self, blob: Blob, limit: int | None, keep: bool) -> None:
        """Writes the body at the position in Content-Range, up to `limit` bytes in total."""
        asked = re.match(r"bytes (\d+)-", self.headers.get("Content-Range", ""))
        is_probe = self.headers.get("Content-Range", "").startswith("bytes */")
        start = int(asked[1]) if asked else 0
        with blob.path.open("r+b") as file:
            if keep and not is_probe:
                file.truncate(start)
                file.seek(start)
            for data in self._body():
                if keep and not is_probe:
                    file.write(data if limit is None else data[: max(0, limit - file.tell())])

    def _received(self, blob: Blob) -> Reply:
        if blob.is_complete:
            return Reply(200)
        done = blob.received
        return Reply(308, headers={"Range": f"bytes=0-{done - 1}"} if done else {})

    def _file(self, token: str) -> Reply:
        """A signed URL: no credentials, but Range, a length and a date (docs/references/kaggle.md#output)."""
        try:
            path = self.kaggle.signed(token)
        except Refusal as refusal:
            return Reply(refusal.status, f"<Error><Code>{refusal}</Code></Error>".encode(), "application/xml")
        if path is None:
            return Reply(404, b"<Error><Code>NoSuchKey</Code></Error>", "application/xml")
        status = path.stat()
        headers = {
            "Last-Modified": formatdate(status.st_mtime, usegmt=True),
            "ETag": f'"{status.st_size:x}-{status.st_mtime_ns:x}"',
            "Accept-Ranges": "bytes",
        }
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked or self.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            return Reply(200, path, "application/octet-stream", headers)
        start = int(asked[1])
        stop = min(int(asked[2] or status.st_size) + 1, status.st_size)
        if start >= status.st_size:
            return Reply(416, headers={"Content-Range": f"bytes */{status.st_size}"})
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{status.st_size}"
        return Reply(206, path, "application/octet-stream", headers, start, stop)

    def _logs(self, owner: str, slug: str) -> None:
        """Sends chunked events while the session runs, then the kept log (docs/references/kaggle.md#log)."""
        fault = self._fault("logs")
        if fault is not None and fault not in (Fault.CUT, Fault.LOST_REPLY):
            self._show(fault)
            return
        if not self.kaggle.admits(self.headers.get("Authorization", "")):
            self._send(self._unknown_user())
            return
        try:
            session = self.kaggle.session_at(owner, slug)
        except Refusal as refusal:
            self._send(Reply.error(refusal.status, refusal.message, nested=False))
            return
        if session.state in ENDED:
            self._send_with(fault, Reply(200, session.machine.log.text().encode()))
        elif fault is Fault.LOST_REPLY:
            self._drop()
        else:
            self._stream(
                session.machine.log.after, 1 if fault is Fault.CUT else self.kaggle.warts.stream_events_max
            )

    def _unknown_user(self) -> Reply:
        status = 403 if self.kaggle.warts.revoked_is_403 else 401
        return Reply.error(status, "Unauthenticated", nested=False)

    def _stream(self, after: Any, events_max: int) -> None:
        warts = self.kaggle.warts
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        if warts.log_is_unchunked:
            self.send_header("Connection", "close")
            self.close_connection = True
        else:
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        sent, is_over = 0, False
        last: dict[str, Any] = {"stream_name": "stdout", "time": 0.0, "data": "\n"}
        while not is_over and not self.server.closing.is_set():
            events, is_over = after(sent, 0.1)
            if warts.log_is_endless and not events:
                self._event(last)
            for event in events:
                last = event
                self._event(event)
                sent += 1
                if sent == events_max:
                    self._drop()
                    return
            if not events and self._client_is_gone():
                self._drop()
                return
        self._chunk("data: END_OF_LOG\n\n")
        if not warts.log_is_unchunked:
            self.wfile.write(b"0\r\n\r\n")

    def _event(self, event: dict[str, Any]) -> None:
        bare = self.kaggle.warts.log_has_no_newlines
        shown = {**event, "data": event["data"].rstrip("\n")} if bare else event
        self._chunk(f"data: {json.dumps(shown)}\n\n")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        bare = self.kaggle.warts.log_is_unchunked
        self.wfile.write(data if bare else b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _show(self, fault: Fault) -> None:
        """A fault without effect."""
        if fault is Fault.TIMEOUT:
            while not self.server.closing.wait(0.05) and not self._client_is_gone():
                continue
            self._drop()
            return
        wait = {"Retry-After": f"{self.kaggle.settings.retry_after_seconds:g}"}
        self._send(
            {
                Fault.RATE_LIMIT: Reply(429, b'{"code": 429, "message": "Too many requests"}', headers=wait),
                Fault.SERVER_ERROR: Reply.error(500, "Internal error", nested=False),
                Fault.UNAVAILABLE: Reply(503, b"upstream connect error", "text/plain"),
                Fault.NESTED: Reply.error(403, "Permission was denied", nested=True),
                Fault.HTML: Reply(200, b"<!doctype html><title>Kaggle</title>", "text/html; charset=utf-8"),
            }[fault]
        )

    def _send_with(self, fault: Fault | None, reply: Reply) -> None:
        if fault is Fault.LOST_REPLY:
            self._drop()
        else:
            self._send(reply, is_cut=fault is Fault.CUT)

    def _send(self, reply: Reply, is_cut: bool = False) -> None:
        start, stop = reply.range()
        self.send_response(reply.status)
        for name, value in {"Content-Type": reply.kind, **reply.headers}.items():
            self.send_header(name, value)
        if self.kaggle.warts.api_version:
            self.send_header("X-Kaggle-ApiVersion", self.kaggle.warts.api_version)
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if is_cut:
            stop = start + (stop - start) // 2
        if isinstance(reply.body, bytes):
            self.wfile.write(reply.body[start:stop])
        else:
            with reply.body.open("rb") as file:
                file.seek(start)
                while start < stop and (data := file.read(min(_CHUNK, stop - start))):
                    self.wfile.write(data)
                    start += len(data)
        if is_cut:
            self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        self.wfile.flush()

    def _client_is_gone(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
