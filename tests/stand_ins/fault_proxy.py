"""A small HTTP proxy in front of an S3 service that fails on purpose.

Decides which request fails and how: as listed in `plan`, first come first served, or at random from a seed.
Must never know what the client is. Headers are passed on as they came, because they are signed.
"""

from __future__ import annotations

import http.client
import random
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.waiting import PATIENCE

_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length", "server"}
_PAGE = b"<!DOCTYPE html><html><body>The network is being looked after. token=supersecret</body></html>"


class Fault(Enum):
    DROP_BEFORE = auto()  # the connection breaks; the service never got the request
    DROP_AFTER = auto()  # the connection breaks; the service has done what was asked
    CUT = auto()  # the connection breaks in the middle of the body
    SHORT = auto()  # the body lacks its last byte, and the headers agree with that
    LONG = auto()  # the body has a byte too many
    FLIP = auto()  # one bit of the body is wrong
    REDIRECT = auto()  # 302 to another port, which has the object
    WHOLE = auto()  # the range is ignored: 200 with everything
    UNCONDITIONAL = auto()  # conditions are ignored
    HANG = auto()  # no answer comes


@dataclass(frozen=True)
class Says:
    """An answer instead of the service's. With a `code` it is S3's XML, without one a web page."""

    status: int
    code: str = ""
    message: str = ""
    header: tuple[str, str] | None = None

    def body(self) -> bytes:
        if not self.code:
            return _PAGE
        told = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message></Error>"
        return f'<?xml version="1.0" encoding="UTF-8"?>\n{told}'.encode()


PASSING = (
    # What a client survives by trying again.
    Fault.DROP_BEFORE, Fault.DROP_AFTER, Fault.CUT, Says(500, "InternalError"), Says(503, "SlowDown"),
    Says(429, "TooManyRequests", header=("Retry-After", "1")), Says(502),
)  # fmt: skip
Matches = Callable[["Request"], bool]


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Message = field(repr=False)
    body: bytes = field(repr=False)

    @property
    def is_part(self) -> bool:
        """Whether it sends a part of a large object, or fetches one after the first."""
        return "partNumber=" in self.path or self.headers.get("Range", "bytes=0-")[6:8] != "0-"


@dataclass
class FaultProxy:
    """`plan`: pairs of a fault and which request it strikes, each used once, or every time if in `always`.
    `rate`: how often a request fails at random. `seen`: every request that came."""

    service: int
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    rate: float = 0.0
    plan: deque[tuple[Matches, Fault | Says]] = field(default_factory=deque)
    always: list[tuple[Matches, Fault | Says]] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)
    elsewhere_seen: list[Request] = field(default_factory=list)  # what came where a redirect leads
    key_seconds: float = 0.0  # 429 for a write of a key that was written so short a time ago, as at R2
    written: dict[str, float] = field(default_factory=dict)  # when each key was written
    rewrite: Callable[[Request, bytes], bytes] = lambda _, body: body  # of the service's own answers
    drops: tuple[str, ...] = ()  # headers of answers that begin like this are left out
    address: str = "127.0.0.1"
    port: int = 0
    elsewhere: int = 0
    struck: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def endpoint(self) -> str:
        return f"http://{self.address}:{self.port}"

    def once(self, fault: Fault | Says, method: str = "", matches: Matches = lambda _: True) -> None:
        """The next request of this method that matches is struck."""
        self.plan.append((lambda request: request.method.startswith(method) and matches(request), fault))

    def each(self, fault: Fault | Says, method: str = "", matches: Matches = lambda _: True) -> None:
        """Every such request is struck."""
        self.always.append((lambda request: request.method.startswith(method) and matches(request), fault))

    def calm(self) -> None:
        """No more faults."""
        self.rate = 0.0
        self.plan.clear()
        self.always.clear()

    def fault_for(self, request: Request) -> Fault | Says | None:
        with self.lock:
            self.seen.append(request)
            if self.key_seconds and request.method in ("PUT", "DELETE"):
                now = time.monotonic()
                if now - self.written.get(request.path, float("-inf")) < self.key_seconds:
                    self.struck += 1
                    return Says(
                        429, "TooManyRequests", "Reduce your concurrent request rate for the same object."
                    )
                self.written[request.path] = now
            for number, (matches, fault) in enumerate(self.plan):
                if matches(request):
                    del self.plan[number]
                    self.struck += 1
                    return fault
            for matches, fault in self.always:
                if matches(request):
                    self.struck += 1
                    return fault
            if self.rate and self.chance.random() < self.rate:
                self.struck += 1
                return self.chance.choice(PASSING)
        return None


def _handler(proxy: FaultProxy, *, fails: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = PATIENCE

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Request(self.command, self.path, self.headers, body)
            if not fails:  # where a redirect leads: a signature has no business here
                proxy.elsewhere_seen.append(request)
                self.pass_on(request, drop={"authorization"})
                return
            fault = proxy.fault_for(request)
            if fault is None:
                self.pass_on(request)
            elif isinstance(fault, Says):
                self.answer(fault.status, [fault.header] if fault.header else [], fault.body())
            elif fault is Fault.DROP_BEFORE:
                self.drop()
            elif fault is Fault.HANG:
                proxy.over.wait(PATIENCE)
                self.drop()
            elif fault is Fault.REDIRECT:
                where = f"http://{proxy.address}:{proxy.elsewhere}{self.path}?X-Amz-Signature=supersecret"
                self.answer(302, [("Location", where)], b"")
            else:
                self.pass_on(request, fault, _dropped_by(fault))

        def pass_on(self, request: Request, fault: Fault | None = None, drop: set[str] = frozenset()) -> None:  # type: ignore[assignment]
            status, headers, body = _asked(proxy.service, request, drop)
            body = proxy.rewrite(request, body)
            if fault is Fault.DROP_AFTER:
                self.drop()
                return
            if fault is Fault.SHORT:
                body = body[:-1]
            elif fault is Fault.LONG:
                body += b"x"
            elif fault is Fault.FLIP and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            self.answer(status, headers, body, cut=len(body) // 2 if fault is Fault.CUT else None)

        def answer(
            self, status: int, headers: list[tuple[str, str]], body: bytes, cut: int | None = None
        ) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if not proxy.drops or not name.lower().startswith(proxy.drops):
                    self.send_header(name, value)
            size = dict(headers).get("X-Size", len(body))
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body if cut is None else body[:cut])
            if cut is not None:
                self.drop()

        def drop(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any  # noqa: N815 - names of the base class

    return Handler


def _dropped_by(fault: Fault) -> set[str]:
    """The headers that this fault loses. Without them the signature is wrong, so it is lost, too: the service
    takes unsigned requests."""
    if fault is Fault.UNCONDITIONAL:
        return {"if-match", "if-none-match", "authorization"}
    return {"range", "authorization"} if fault is Fault.WHOLE else set()


def _asked(port: int, request: Request, drop: set[str]) -> tuple[int, list[tuple[str, str]], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.putrequest(request.method, request.path, skip_host=True, skip_accept_encoding=True)
        for name, value in request.headers.items():
            if name.lower() not in drop and name.lower() not in ("connection", "expect"):
                connection.putheader(name, value)
        connection.endheaders(request.body or None)
        answer = connection.getresponse()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP]
        if request.method == "HEAD":
            headers.append(("X-Size", answer.getheader("Content-Length") or "0"))
        return answer.status, headers, answer.read()
    finally:
        connection.close()


@contextmanager
def fault_proxy(
    service: int, seed: int = 0, rate: float = 0.0, address: str = "127.0.0.1"
) -> Iterator[FaultProxy]:
    """Runs a proxy in front of the service on this port of loopback. `address` is where it listens itself."""
    proxy = FaultProxy(service, random.Random(seed), rate, address=address)
    servers = [ThreadingHTTPServer((address, 0), _handler(proxy, fails=fails)) for fails in (True, False)]
    proxy.port, proxy.elsewhere = (server.server_address[1] for server in servers)
    threads = [threading.Thread(target=server.serve_forever, args=(0.05,)) for server in servers]
    for server in servers:
        server.daemon_threads = True
    for thread in threads:
        thread.start()
    try:
        yield proxy
    finally:
        proxy.over.set()
        for server, thread in zip(servers, threads, strict=True):
            server.shutdown()
            thread.join()
            server.server_close()
