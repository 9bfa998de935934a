"""The local Drive as an HTTP server on loopback: which request is which, and which fault it meets.

Decides the form of answers and the course of an upload. disk.py has the files. Each behaviour cites a heading
of docs/references/drive.md.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.stand_ins.drive.disk import Disk, Session
from tests.stand_ins.drive.faults import OTHER_HTML, REFUSALS, Fault, Faults, Refusal
from tests.stand_ins.drive.fields import filtered
from tests.stand_ins.drive.tokens import Tokens
from tests.waiting import PATIENCE

_PART = 256 * 1024  # parts of an upload are multiples of this (#uploads)
_FILE = re.compile(r"/drive/v2/files/([\w-]+)")
_UPDATE = re.compile(r"/upload/drive/v2/files/([\w-]+)")
Answer = tuple[int, dict[str, str], bytes]


class LocalDrive:
    """One account. `requests` has the kind of every request, `bytes_in` what uploads carried. `certificate`:
    a PEM file with key, to speak TLS."""

    def __init__(self, certificate: Path | None = None) -> None:
        self.disk = Disk()
        self.tokens = Tokens()
        self.faults = Faults()
        self.requests: list[str] = []
        self.bytes_in = 0
        self.lock = threading.RLock()
        self.closing = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
            self._scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def fail(self, kind: str, on: str = "", times: int = 1, skip: int = 0) -> None:
        self.faults.add(Fault(kind, on, times, skip))

    def close(self) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, on: str, act: Callable[[], Answer], fault: str) -> Answer:
        with self.lock:
            self.requests.append(on)
            if fault in REFUSALS:
                raise Refusal(*REFUSALS[fault])
            if fault == "html":
                return 502, {"Content-Type": "text/html"}, OTHER_HTML
            if fault == "html-ok":
                return 200, {"Content-Type": "text/html"}, OTHER_HTML
            if fault == "html-forbidden":
                return 403, {"Content-Type": "text/html"}, OTHER_HTML
            if fault.startswith("forbidden "):
                error = fault.removeprefix("forbidden ")
                return 403, {"Content-Type": "application/json"}, f'{{"error": {error}}}'.encode()
            if fault == "empty":
                return 200, {"Content-Type": "application/json"}, b"{}"
            return act()


@contextmanager
def local_drive(certificate: Path | None = None) -> Iterator[LocalDrive]:
    drive = LocalDrive(certificate)
    try:
        yield drive
    finally:
        drive.close()


def _handler(drive: LocalDrive) -> type[BaseHTTPRequestHandler]:
    class Handler(Request):
        service = drive

    return Handler


class Request(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    service: LocalDrive

    def log_message(self, format: str, *args: Any) -> None:
        """Tests look at `requests`."""

    def handle_any(self) -> None:
        parts = urlsplit(self.path)
        self.where = parts.path
        self.query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        on, act = self._routed()
        self.fault = self.service.faults.next(on)
        if self.fault == "hang":
            self.service.closing.wait(PATIENCE)
        if self.fault in ("drop", "hang"):
            self._drop()
            return
        try:
            if on != "token" and not self.service.tokens.is_valid(self.headers.get("Authorization", "")):
                raise Refusal(*REFUSALS["unauthorized"])
            status, headers, body = self.service.answer(on, act, self.fault)
        except Refusal as refusal:
            status, headers, body = refusal.status, {"Content-Type": "application/json"}, refusal.body
        if self.fault == "drop-after":
            self._drop()
            return
        self._send(status, headers, body)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 the names are the library's

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        cut = len(body) // 2 if self.fault == "truncate" else len(body)
        self.wfile.write("\r\n".join([*lines, "", ""]).encode() + body[:cut])
        if cut < len(body):
            self._drop()

    def _drop(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _routed(self) -> tuple[str, Callable[[], Answer]]:
        way = self.command, self.where
        file, update = _FILE.fullmatch(self.where), _UPDATE.fullmatch(self.where)
        if way == ("POST", "/token"):
            return "token", lambda: self.service.tokens.granted(self.content)
        if way == ("GET", "/drive/v2/files/generateIds"):
            return "ids", self._ids
        if way == ("GET", "/drive/v2/files"):
            return "list", self._list
        if way == ("GET", "/drive/v2/about"):
            return "about", self._about
        if file and self.command == "GET":
            is_media = self.query.get("alt") == "media"
            return ("media" if is_media else "get"), lambda: self._get(file.group(1), is_media)
        if file and self.command == "PATCH":
            return "patch", lambda: self._patch(file.group(1))
        if file and self.command == "DELETE":
            return "delete", lambda: self._delete(file.group(1))
        return self._routed_upload(way, update)

    def _routed_upload(
        self, way: tuple[str, str], update: re.Match[str] | None
    ) -> tuple[str, Callable[[], Answer]]:
        if way == ("PUT", "/session"):
            return "chunk", self._chunk
        if way == ("POST", "/drive/v2/files"):
            return "insert", lambda: self._insert(json.loads(self.content), b"")
        if way == ("POST", "/upload/drive/v2/files") and self.query["uploadType"] == "resumable":
            return "start", self._start
        if way == ("POST", "/upload/drive/v2/files"):
            return "insert", self._insert_multipart
        if update and self.command == "PUT":
            return "update", lambda: self._update(update.group(1))
        return "unknown", self._unknown

    # --- Answers --------------------------------------------------------------------------------------------

    def _json(self, value: dict[str, Any]) -> Answer:
        """Only the fields that were asked for."""
        shown = filtered(value, self.query.get("fields", ""))
        return 200, {"Content-Type": "application/json; charset=UTF-8"}, json.dumps(shown).encode()

    def _shown(self, file: Any) -> Answer:
        return self._json(file.shown(self.service.disk.shared_drive))

    def _unknown(self) -> Answer:
        raise Refusal(400, "badRequest", f"no such request: {self.command} {self.where}")

    def _ids(self) -> Answer:
        return self._json({"ids": self.service.disk.generate_ids(int(self.query["maxResults"]))})

    def _about(self) -> Answer:
        used = sum(len(file.data) for file in self.service.disk.files.values())
        return self._json(
            {"quotaBytesTotal": str(self.service.disk.quota_bytes), "quotaBytesUsed": str(used)}
        )

    def _check_drive(self) -> None:
        """A shared drive is invisible to requests that do not ask for it (#shared-drives)."""
        if self.service.disk.shared_drive and self.query.get("supportsAllDrives") != "true":
            raise Refusal(404, "notFound", "File not found")

    def _list(self) -> Answer:
        disk = self.service.disk
        if disk.shared_drive and self.query.get("driveId") != disk.shared_drive:
            return self._json({"items": []})
        count = int(self.query.get("maxResults", 100))
        page = disk.listed(self.query["q"], self.query.get("pageToken", ""), count)
        if self.fault == "incomplete":
            page |= {"items": [], "incompleteSearch": True}
        if self.fault == "endless":
            page["nextPageToken"] = "0"
        return self._json(page)

    def _get(self, id: str, is_media: bool) -> Answer:
        self._check_drive()
        file = self.service.disk.file(id)
        if not is_media:
            return self._shown(file)
        data = file.data
        if self.fault == "damage":
            data = data[:-1] + bytes([data[-1] ^ 1])
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if match is None or self.fault == "no-ranges":
            return 200, {}, data
        first, last = int(match.group(1)), min(int(match.group(2)), len(data) - 1)
        if first >= len(data):
            return 416, {"Content-Range": f"bytes */{len(data)}"}, b""
        shown = 0 if self.fault == "other-range" else first
        headers = {"Content-Range": f"bytes {shown}-{shown + last - first}/{len(data)}"}
        return 206, headers, data[shown : shown + last - first + 1]

    def _patch(self, id: str) -> Answer:
        self._check_drive()
        return self._shown(
            self.service.disk.patch(id, json.loads(self.content), self.headers.get("If-Match"))
        )

    def _delete(self, id: str) -> Answer:
        self._check_drive()
        self.service.disk.delete(id)
        return 204, {}, b""

    def _insert(self, body: dict[str, Any], data: bytes) -> Answer:
        self._check_drive()
        self._check_space()
        return self._shown(self.service.disk.insert(body, data))

    def _check_space(self) -> None:
        """#service-accounts"""
        if self.service.disk.shared_drive is None and self.service.tokens.is_service(
            self.headers.get("Authorization", "")
        ):
            message = "Service Accounts do not have storage quota. Leverage shared drives instead."
            raise Refusal(403, "storageQuotaExceeded", message)

    def _insert_multipart(self) -> Answer:
        boundary = self.headers["Content-Type"].partition("boundary=")[2].strip('"')
        first, second, _ = self.content.split(f"\n--{boundary}".encode())
        return self._insert(json.loads(first.partition(b"\n\n")[2]), second.partition(b"\n\n")[2])

    def _update(self, id: str) -> Answer:
        self._check_drive()
        file = self.service.disk.change(id, self.headers.get("If-Match"))
        file.data = self.content + b"x" if self.fault == "damage" else self.content
        return self._shown(file)

    # --- Resumable uploads (#uploads) -----------------------------------------------------------------------

    def _start(self) -> Answer:
        self._check_drive()
        self._check_space()
        disk = self.service.disk
        body, size = json.loads(self.content), int(self.headers["X-Upload-Content-Length"])
        if body.get("id") in disk.files:
            raise Refusal(409, "fileIdInUse", "A file already exists with the provided ID.")
        disk.check_room(size)
        name, fields = f"upload-{len(disk.sessions)}", self.query.get("fields", "")  # kept to the end
        disk.sessions[name] = Session(body, size)
        return 200, {"Location": f"{self.service.url}/session?upload_id={name}&fields={fields}"}, b""

    def _chunk(self) -> Answer:
        disk = self.service.disk
        session = disk.sessions.get(self.query["upload_id"])
        if session is None:
            raise Refusal(404, "notFound")
        if session.made is None:
            self._receive(session)
        if session.made is None and len(session.received) == session.size:
            data = bytes(session.received)
            session.made = disk.insert(session.body, data[:-1] + b"?" if self.fault == "damage" else data)
        if session.made is not None:
            return self._shown(session.made)
        headers = {"Range": f"bytes=0-{len(session.received) - 1}"} if session.received else {}
        return 308, headers, b""

    def _receive(self, session: Session) -> None:
        match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", self.headers.get("Content-Range", ""))
        if match is None:  # a question for the offset, or an empty file
            return
        first, last, total = map(int, match.groups())
        if total != session.size or last - first + 1 != len(self.content):
            raise Refusal(400, "badRequest")
        if last + 1 != total and len(self.content) % _PART:
            raise Refusal(400, "badRequest", "parts are multiples of 256 KiB")
        self.service.bytes_in += len(self.content)
        have = len(session.received)
        if first <= have:
            new = self.content[have - first :]
            session.received += new[:_PART] if self.fault == "partial" else new
