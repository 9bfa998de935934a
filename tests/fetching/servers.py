"""A web server on loopback with files, and with the faults that a test asks for."""

from __future__ import annotations

import datetime
import ipaddress
import re
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

Answering = Callable[["Handler"], None]


@dataclass
class Site:
    """`files`: content by path; `tags`: their ETags (default: by content). `answers`: what else a path does.
    `cuts`: after how many bytes the next answers with content are cut. `asked`: each request."""

    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Answering] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    resumes: bool = True
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    closing: Event = field(default_factory=Event)
    url: str = ""
    port: int = 0
    sent: int = 0  # bytes of content
    fallback: Answering | None = None  # for paths that nothing else answers

    def tag(self, path: str) -> str:
        return self.tags.get(path, f'"{hash(self.files[path]) & 0xFFFFFFFF:x}"')


class Handler(BaseHTTPRequestHandler):
    """Sends files with HEAD, ranges and conditions (RFC 9110)."""

    protocol_version = "HTTP/1.1"
    site: Site

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.site.asked.append((self.command, self.path, dict(self.headers.items())))
        if path in self.site.answers:
            self.site.answers[path](self)
        elif path in self.site.files:
            self.file(path)
        elif self.site.fallback is not None:
            self.site.fallback(self)
        else:
            self.reply(404)

    def file(self, path: str) -> None:
        data, tag = self.site.files[path], self.site.tag(path)
        headers = {"ETag": tag} if tag else {}
        if tag and self.headers.get("If-None-Match") == tag:
            self.reply(304, headers=headers)
            return
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match and self.site.resumes and self.headers.get("If-Range", tag) == tag:
            start = int(match[1])
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
            self.reply(206, data[start:], headers)
        else:
            self.reply(200, data, headers)

    def reply(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status != 304 and "Content-Length" not in (headers or {}):
            self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            cut = self.site.cuts.pop(0) if body and self.site.cuts else len(body)
            self.site.sent += min(cut, len(body))
            self.wfile.write(body[:cut])

    def redirect(self, to: str) -> None:
        self.reply(302, headers={"Location": to})

    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is no fault of ours."""


@contextmanager
def site(certificate: Path | None = None, host: str = "127.0.0.1") -> Iterator[Site]:
    """A server; with a certificate's file, over HTTPS."""
    made = Site()
    handler = type("Of", (Handler,), {"site": made})
    with _Server((host, 0), handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        made.port = server.server_address[1]
        made.url = f"{'http' if certificate is None else 'https'}://{host}:{made.port}"
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield made
        finally:
            made.closing.set()
            server.shutdown()


@contextmanager
def raw(answer: Callable[[socket.socket, Event], None]) -> Iterator[str]:
    """A server that sends whatever `answer` writes, once the request has come."""
    closing = Event()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    try:
                        connection.recv(65536)
                        answer(connection, closing)
                    except OSError:
                        continue

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            closing.set()
            listener.shutdown(socket.SHUT_RDWR)


def certificate(folder: Path) -> Path:
    """A file with a key and a certificate for 127.0.0.1 and localhost, which vouches for itself."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    begin = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file
