"""Receivers of notifications on loopback that answer as they are told to: a webhook, and a mail server.

Each takes one item of `plan` for each message, and answers well once the plan is empty. They know nothing of
what they are sent, besides where the delivery id is.
"""

from __future__ import annotations

import email
import json
import socketserver
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.waiting import PATIENCE

LOSE = "closes the connection once it has read everything"
HANG = "never answers"
DRIP = "sends its status one byte at a time, without end"
Item = int | str | tuple[int, dict[str, str]] | threading.Event | Callable[[], None]


@dataclass
class Received:
    """One request: the id in its header, and its JSON body."""

    id: str
    fields: dict[str, Any]
    headers: Message
    path: str


@dataclass
class Webhook:
    port: int
    plan: deque[Item] = field(default_factory=deque)
    got: list[Received] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [each.id for each in self.got]


@contextmanager
def webhook(*plan: Item) -> Iterator[Webhook]:
    """A web server. An item is a status, a status with headers, one of the words above, an event that the
    answer waits for, or a function that is called before the connection is closed without an answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            item = found.plan.popleft() if found.plan else 200
            found.got.append(
                Received(self.headers["X-Delivery-Id"] or "", json.loads(body), self.headers, self.path)
            )
            self._answer(item)

        def _answer(self, item: Item) -> None:
            self.close_connection = True
            if isinstance(item, threading.Event):
                item.wait(PATIENCE)
                self._answer(200)
            elif callable(item):
                item()
            elif item == HANG:
                found.over.wait()
            elif item == DRIP:
                self.wfile.write(b"HTTP/1.1 ")
                while not found.over.wait(0.05):
                    self.wfile.write(b"x")
            elif isinstance(item, int | tuple):
                status, headers = item if isinstance(item, tuple) else (item, {})
                self.send_response(status)
                for name, value in (headers | {"Content-Length": "0"}).items():
                    self.send_header(name, value)
                self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: object) -> None:  # whoever sends may go away at any time
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        found = Webhook(server.server_port, deque(plan))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            found.over.set()
            server.shutdown()
            thread.join()


@dataclass
class MailServer:
    port: int
    plan: deque[str] = field(default_factory=deque)
    got: list[Message] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"mailto://127.0.0.1:{self.port}?from=orchestrator@example.org&to=me@example.org&mode=insecure"


@contextmanager
def mail_server(*plan: str) -> Iterator[MailServer]:
    """An SMTP server (RFC 5321) without encryption. An item is the reply after the data, such as `451 full`,
    or LOSE."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self._say("220 here")
            while line := self.rfile.readline():
                verb = line[:4].upper()
                if verb == b"DATA":
                    if not self._take():
                        return None
                elif verb == b"QUIT":
                    return self._say("221 bye")
                else:
                    self._say("250 yes")
            return None

        def _take(self) -> bool:
            self._say("354 go on")
            lines = []
            while (line := self.rfile.readline()) not in (b".\r\n", b""):
                lines.append(line)
            found.got.append(email.message_from_bytes(b"".join(lines)))
            item = found.plan.popleft() if found.plan else "250 taken"
            if item != LOSE:
                self._say(item)
            return item != LOSE

        def _say(self, text: str) -> None:
            self.wfile.write(text.encode() + b"\r\n")

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        found = MailServer(server.server_address[1], deque(plan))
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()
            thread.join()
