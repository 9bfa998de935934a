"""One request over HTTP(S): redirects, proxies, credentials, time limits. Only reads.

Decides where a request may lead, hop by hop. Must never repeat a query, a login or a token in an error, send
a credential to another host than the first, or wait without a limit.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import os
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from functools import partial
from urllib.parse import quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi

from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.fetching.addresses import Allowed, literal

REDIRECTS_MAX = 10
STALL_SECONDS = 60.0
BYTES_PER_SECOND_MIN = 1024.0  # over STALL_SECONDS; slower counts as a stall
CHUNK_BYTES = 1 << 20
_REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "%/:=&?~+!$,;'@()*[]-._|"
_NAME = re.compile(r"[A-Za-z0-9._-]+")


class Broken(Exception):
    """It may work next time. `wait_seconds`: how long the server asks to wait."""

    def __init__(self, text: str, *, unreached: bool = False, wait_seconds: float = 0.0) -> None:
        super().__init__(text)
        self.unreached = unreached
        self.wait_seconds = wait_seconds


def shown(url: str) -> str:
    """An address without what may be secret: login, query and fragment."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}{'?…' if parts.query else ''}"


@dataclass(frozen=True)
class _Target:
    scheme: str
    host: str
    port: int
    path: str  # with the query

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port


class Answer:
    """What a server answers. `read` gives the next bytes, and raises Broken."""

    def __init__(self, response: http.client.HTTPResponse, url: str, watch: _Watch) -> None:
        self.status = response.status
        self.headers: Message = response.headers
        self.url = url
        self._response = response
        self._watch = watch

    def read(self) -> bytes:
        with _as_broken(self._watch):
            piece = self._response.read1(CHUNK_BYTES)
        if not piece and self._watch.stalled:
            raise Broken(self._watch.text)
        self._watch.count(len(piece))
        return piece

    def text(self, bytes_max: int) -> bytes:
        """The whole body. Raises InputError if it is longer."""
        found = bytearray()
        while piece := self.read():
            found += piece
            if len(found) > bytes_max:
                raise InputError(f"{shown(self.url)}: the answer is longer than {bytes_max:,} bytes")
        return bytes(found)


class Web:
    """Makes requests under the config's rules. `environ` may name proxies, as everywhere."""

    def __init__(self, allowed: Allowed, clock: Clock, *, stall_seconds: float = STALL_SECONDS) -> None:
        self.allowed = allowed
        self.clock = clock
        self._stall_seconds = stall_seconds
        self._tls: ssl.SSLContext | None = None

    @contextmanager
    def open(
        self, url: str, headers: Mapping[str, str], *, method: str = "GET", token: str = ""
    ) -> Iterator[Answer]:
        """The answer to a request, after redirects. `token` goes to the first host alone.

        Raises Broken if it may work later, InputError for an address that is not to be fetched from.
        """
        first: tuple[str, str, int] | None = None
        for _ in range(REDIRECTS_MAX + 1):
            target = self._checked(url)
            first = first or target.origin
            if target.origin != first:
                token = ""
            own = {"Authorization": f"Bearer {token}"} if token else {}
            with self._sent(target, {**headers, **own}, method) as (response, watch):
                if response.status not in _REDIRECTS:
                    yield Answer(response, url, watch)
                    return
                url = _next(url, response.headers.get("Location", ""))
        raise InputError(f"{shown(url)}: more than {REDIRECTS_MAX} redirects, one after the other")

    def _checked(self, url: str) -> _Target:
        try:
            parts = urlsplit(url)
        except ValueError:  # its text may hold a login
            raise InputError("an address that cannot be read") from None
        if parts.scheme not in ("https", "http") or not parts.hostname:
            raise InputError(f"{parts.scheme or 'no scheme'}: an input is fetched from https:// alone")
        if "@" in parts.netloc:
            raise InputError(f"{shown(url)}: an address with a login is not used; give `token: env:NAME`")
        host = _ascii(parts.hostname)
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError as error:
            raise InputError(f"{shown(url)}: its port is none: {error}") from None
        if parts.scheme == "http" and not self.allowed.names(host):
            raise InputError(
                f"{shown(url)}: without https anybody on the way can change it; if that is meant, allow the "
                f"host in the config: inputs: {{allow_private: [{host}]}}"
            )
        path = quote(parts.path or "/", safe=_SAFE)
        return _Target(
            parts.scheme, host, port, path + (f"?{quote(parts.query, safe=_SAFE)}" * bool(parts.query))
        )

    @contextmanager
    def _sent(
        self, target: _Target, headers: Mapping[str, str], method: str
    ) -> Iterator[tuple[http.client.HTTPResponse, _Watch]]:
        watch = _Watch(self.clock, self._stall_seconds)
        connection = self._connection(target)
        response: http.client.HTTPResponse | None = None
        try:
            with _as_broken(watch):
                connection.connect()
                watch.start(connection.sock)
                connection.request(method, target.path, headers={
                    "Accept-Encoding": "identity", "User-Agent": "accelerator-orchestrator", "Accept": "*/*",
                    "Connection": "close", **headers,
                })  # fmt: skip
                response = connection.getresponse()
                watch.count(0, answered=True)
            yield response, watch
        finally:
            watch.stop()
            if response is not None:  # it has taken the socket over
                response.close()
            connection.close()

    def _connection(self, target: _Target) -> http.client.HTTPConnection:
        proxy = self._proxy(target)
        if proxy is None:
            if target.scheme == "http":
                return _Plain(self.allowed, target, self._stall_seconds)
            return _Encrypted(self.allowed, target, self._stall_seconds, self._context())
        self.allowed.check_unresolved(target.host)
        host, port, headers = proxy
        made = http.client.HTTPSConnection(host, port, timeout=self._stall_seconds, context=self._context())
        made.set_tunnel(target.host, target.port, headers)
        return _tunnelled(made)

    def _proxy(self, target: _Target) -> tuple[str, int, dict[str, str]] | None:
        """Host, port and headers of the proxy for this target. What the config allows is always reached
        directly."""
        if target.scheme != "https" or self.allowed.names(target.host) or proxy_bypass(target.host):
            return None
        given = getproxies()
        url = given.get("https") or given.get("all")
        if not url:
            return None
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or 80
        except ValueError:  # its text may hold a login
            raise InputError("the address of the proxy in HTTPS_PROXY or ALL_PROXY cannot be read") from None
        if parts.scheme != "http" or not parts.hostname:
            raise InputError(
                f"the proxy that HTTPS_PROXY or ALL_PROXY names begins with {parts.scheme}://; valid: "
                "http://, through which https goes encrypted all the way"
            )
        headers = {}
        if parts.username:
            login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
            headers["Proxy-Authorization"] = f"Basic {base64.b64encode(login.encode()).decode()}"
        return parts.hostname, port, headers

    def _context(self) -> ssl.SSLContext:
        """The system's certificates, those that come with `requests`, and those that the environment names
        for it."""
        if self._tls is None:
            made = ssl.create_default_context()
            own = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE")
            for file in filter(None, (certifi.where(), own)):
                with contextlib.suppress(OSError):
                    made.load_verify_locations(file)
            self._tls = made
        return self._tls


def _next(url: str, location: str) -> str:
    if not location or len(location) > 10_000 or any(c.isspace() or not c.isprintable() for c in location):
        raise InputError(f"{shown(url)}: redirects to nowhere")
    try:
        found = urljoin(url, location)
        scheme = urlsplit(found).scheme
    except ValueError:
        raise InputError(f"{shown(url)}: redirects to an address that cannot be read") from None
    if scheme not in ("https", "http"):
        raise InputError(f"{shown(url)}: redirects to {scheme}:, which is not followed")
    return found


def _ascii(host: str) -> str:
    """A host as it is resolved. What is neither an address nor letters, digits, dots and hyphens, such as
    `127%2e1`, a proxy might read in its own way."""
    try:
        found = host if host.isascii() else host.encode("idna").decode()
    except UnicodeError:
        found = ""
    if not _NAME.fullmatch(found) and literal(found) is None:
        raise InputError(f"{host!a} is not a host's name")
    return found


# --- Connections ------------------------------------------------------------------------------------------


def _dial(allowed: Allowed, target: _Target, timeout: float) -> socket.socket:
    """Connects to an address that was checked: the name is not resolved a second time."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        raise Broken(f"no server of the name {target.host} is found: {error}", unreached=True) from None
    allowed.check(target.host, [str(each[4][0]) for each in found])
    last = OSError("it has no address")
    for family, kind, protocol, _, address in found:
        made = socket.socket(family, kind, protocol)
        try:
            made.settimeout(timeout)
            made.connect(address)
        except OSError as failed:
            made.close()
            last = failed
        else:
            return made
    raise Broken(f"{target.host}:{target.port} cannot be reached: {last}", unreached=True)


Dial = Callable[[], socket.socket]


class _Plain(http.client.HTTPConnection):
    def __init__(self, allowed: Allowed, target: _Target, timeout: float) -> None:
        super().__init__(target.host, target.port, timeout=timeout)
        self._dial: Dial = partial(_dial, allowed, target, timeout)

    def connect(self) -> None:
        self.sock = self._dial()


class _Encrypted(http.client.HTTPSConnection):
    def __init__(self, allowed: Allowed, target: _Target, timeout: float, context: ssl.SSLContext) -> None:
        super().__init__(target.host, target.port, timeout=timeout, context=context)
        self._dial: Dial = partial(_dial, allowed, target, timeout)
        self._name, self._tls = target.host, context

    def connect(self) -> None:
        self.sock = self._tls.wrap_socket(self._dial(), server_hostname=self._name)


def _tunnelled(made: http.client.HTTPSConnection) -> http.client.HTTPSConnection:
    connect = made.connect

    def told() -> None:
        try:
            connect()
        except ssl.SSLError:
            raise
        except OSError as error:
            raise Broken(f"the proxy {made.host}:{made.port} does not let it through: {error}") from None

    made.connect = told  # type: ignore[method-assign]
    return made


class _Watch:
    """Cuts a connection that brings less than BYTES_PER_SECOND_MIN, or no answer, for `seconds`. A socket's
    own time-out starts again with every byte."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._bytes, self._answered = 0, False
        self._over = threading.Event()
        self.stalled = False

    def start(self, sock: socket.socket) -> None:
        threading.Thread(target=self._run, args=(sock,), daemon=True).start()

    def count(self, size: int, *, answered: bool = False) -> None:
        self._bytes += size
        self._answered = self._answered or answered

    def stop(self) -> None:
        self._over.set()

    def _run(self, sock: socket.socket) -> None:
        before, least = 0, self._seconds * BYTES_PER_SECOND_MIN
        while not self._clock.wait(self._over, self._seconds):
            if not self._answered or self._bytes - before < least:
                self.stalled = True
                with contextlib.suppress(OSError):  # SSLSocket's own would take its state from the reader
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                return
            before = self._bytes

    @property
    def text(self) -> str:
        return f"nearly nothing came for {self._seconds:.0f} s"


@contextmanager
def _as_broken(watch: _Watch) -> Iterator[None]:
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        raise InputError(
            f"the server's certificate does not hold: {error.verify_message}. For a company's own authority, "
            "set SSL_CERT_FILE or REQUESTS_CA_BUNDLE to its file"
        ) from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if watch.stalled or isinstance(error, TimeoutError):
            raise Broken(watch.text) from None
        raise Broken(f"{type(error).__name__}: {str(error)[:200]}") from None
