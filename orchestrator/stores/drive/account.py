"""A login to Drive: sends requests with it, each on a connection of its own, and turns every error into ours.

Decides when to log in, and reads the credentials again after they were refused. Never writes them: access
tokens stay in memory, and Google's refresh tokens do not change when they are used. Must never know what the
files are for.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import BadStatusLine
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httplib2  # type: ignore[import-untyped]
from googleapiclient.discovery import build_from_document  # type: ignore[import-untyped]
from googleapiclient.discovery_cache import get_static_doc  # type: ignore[import-untyped]
from oauth2client.client import OAuth2Credentials  # type: ignore[import-untyped]
from pydrive2.auth import GoogleAuth  # type: ignore[import-untyped]
from pydrive2.settings import InvalidConfigError  # type: ignore[import-untyped]

from orchestrator.errors import AccessDenied, BackendError, InputError, Rejected, Transient
from orchestrator.files import read_own
from orchestrator.stores.drive import faults

SCOPE_FILE = "https://www.googleapis.com/auth/drive.file"
SCOPE_ALL = "https://www.googleapis.com/auth/drive"  # a service account did not make its folder itself
TIMEOUT_SECONDS = 60.0  # PyDrive2's own default is for ever
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_POOL = 10  # ids per request
_LOGIN_BYTES_MAX = 1 << 17
_NOTHING = "is missing or not a login"
T = TypeVar("T")

# Its warnings repeat what our errors say, and the answers of proxies with it.
logging.getLogger("googleapiclient.http").setLevel(logging.ERROR)


@dataclass(frozen=True)
class Login:
    """The credentials: a person's consent, or a service account's key. They are in the file `path`, or they
    are `text`, where a session was given them."""

    path: Path | None = None
    is_service: bool = False
    text: str = field(default="", repr=False)


class Account:
    """May be shared by threads. Logs in with the first request."""

    def __init__(
        self, name: str, login: Login, endpoint: str = "", *, timeout: float = TIMEOUT_SECONDS
    ) -> None:
        self.name = name
        self.login = login
        self.endpoint = endpoint
        self._timeout = timeout
        self._lock = threading.Lock()
        self._auth: Any = None
        self._files: Any = None
        self._ids: list[str] = []
        self._idle: list[Any] = []  # connections for the next requests
        weakref.finalize(self, _close, self._idle)

    def call(self, operation: str, make: Callable[[Any], Any], *, once: bool = False) -> Any:
        """Executes the request that `make` builds from Drive's `files`. Returns its answer.

        `once`: httplib2 never repeats it by itself (docs/references/drive.md#repeated-requests).
        """

        def execute(http: Any, files: Any) -> Any:
            return make(files).execute(http=http, num_retries=0)

        return self.run(operation, execute, once=once)

    def run(self, operation: str, act: Callable[[Any, Any], T], *, once: bool = False) -> T:
        """Calls `act` with a connection of its own and Drive's `files`, and reports its errors as ours."""
        connection = None
        try:
            auth, files = self._opened()
            connection = self._connection(auth, once=once)
            found = act(connection, files)
        except faults.LocalFault as local:
            raise local.error from None
        except BackendError:
            raise
        except faults.FOREIGN as error:
            told = faults.told(error, self.name, operation)
            if isinstance(told, AccessDenied):
                self._forget()
            raise told from None
        else:
            if not once and auth is self._auth:
                self._idle.append(connection)
                connection = None
            return found
        finally:
            if connection is not None:
                connection.close()

    def new_id(self) -> str:
        """An id for a file that is to be inserted, so that inserting twice makes one file."""
        while True:
            with self._lock:
                if self._ids:
                    return self._ids.pop()
            answer = self.call(
                "generateIds", lambda files: files.generateIds(maxResults=_POOL, space="drive")
            )
            found = answer.get("ids") if isinstance(answer, dict) else None
            if not found or not all(isinstance(each, str) and each for each in found):
                raise self.strange("generateIds")
            with self._lock:
                self._ids.extend(found)

    @property
    def is_on_this_machine(self) -> bool:
        """Whether its server is, which is so in tests only."""
        return urlsplit(self.endpoint).hostname in LOOPBACK

    def secret(self) -> str:
        """The login itself. Raises AccessDenied if it is missing, or if others may read it."""
        return self._text()

    def strange(self, operation: str) -> Transient:
        """The error for an answer that lacks what Drive always sends."""
        return Transient(
            "Drive: an answer without what was asked for", backend=self.name, operation=operation
        )

    def _opened(self) -> tuple[Any, Any]:
        with self._lock:
            if self._files is None:
                auth = self._service_login() if self.login.is_service else self._personal_login()
                service = build_from_document(self._document(), http=auth.Get_Http_Object())
                self._auth, self._files = auth, service.files()
            return self._auth, self._files

    def _forget(self) -> None:
        """The next request reads the credentials again: a person may have renewed them."""
        with self._lock:
            self._auth = self._files = None
            _close(self._idle)

    def _connection(self, auth: Any, *, once: bool) -> Any:
        """One that nobody else uses now: httplib2 is not safe for threads."""
        if not once:
            with suppress(IndexError):
                return self._idle.pop()
        made = auth.Get_Http_Object()
        if once:
            secure = not self.endpoint.startswith("http://")
            made.request = partial(made.request, connection_type=_OnceSecure if secure else _Once)
        return made

    def _document(self) -> dict[str, Any]:
        """Drive's own description in the client. Both addresses count: uploads use `rootUrl`."""
        document: dict[str, Any] = json.loads(get_static_doc("drive", "v2"))
        if self.endpoint:
            root = self.endpoint.rstrip("/") + "/"
            document |= {"rootUrl": root, "baseUrl": root + document["servicePath"]}
        return document

    def _personal_login(self) -> Any:
        text = self._text()
        try:
            credentials = OAuth2Credentials.from_json(text)
            config = {
                name: str(getattr(credentials, name)) for name in ("client_id", "client_secret", "token_uri")
            }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._no_login(_NOTHING) from None
        auth = GoogleAuth(
            settings={
                "client_config_backend": "settings",
                "client_config": config,
                "save_credentials": False,
                "oauth_scope": [SCOPE_FILE],
            },
            http_timeout=self._timeout,
        )
        auth.credentials = credentials
        if auth.access_token_expired:
            try:
                auth.Refresh()  # never opens a browser
            finally:
                _close([auth.http] if auth.http is not None else [])
        return auth

    def _service_login(self) -> Any:
        auth = GoogleAuth(
            settings={
                "client_config_backend": "service",
                "service_config": {"client_json": self._text()},
                "save_credentials": False,
                "oauth_scope": [SCOPE_ALL],
            },
            http_timeout=self._timeout,
        )
        try:
            auth.ServiceAuth()
        except (ValueError, KeyError, TypeError, AttributeError, InvalidConfigError):
            raise self._no_login("is not the key file of a service account") from None
        return auth

    def _text(self) -> str:
        path = self.login.path
        if path is None:
            return self.login.text
        try:
            mode = path.stat().st_mode
            text = read_own(path, _LOGIN_BYTES_MAX).decode("utf-8")
        except (OSError, InputError, ValueError):
            raise self._no_login(_NOTHING) from None
        if mode & 0o077:
            raise AccessDenied(
                f"others may read the login in {path}: chmod 600 {path}",
                backend=self.name,
                operation="login",
            )
        return text

    def _no_login(self, what: str) -> BackendError:
        advice = "download a new key" if self.login.is_service else "run `orchestrator init drive`"
        place = self.login.path or "what the session was given"
        return AccessDenied(f"{place} {what}: {advice}", backend=self.name, operation="login")


class _NeverAgain:
    """httplib2 takes a connection that was closed before the answer for a stale one, and sends again. It does
    not after another error."""

    def getresponse(self) -> Any:
        try:
            return super().getresponse()  # type: ignore[misc]
        except BadStatusLine:
            raise ConnectionResetError("closed without an answer") from None


class _Once(_NeverAgain, httplib2.HTTPConnectionWithTimeout):  # type: ignore[misc]
    """A request is sent once."""


class _OnceSecure(_NeverAgain, httplib2.HTTPSConnectionWithTimeout):  # type: ignore[misc]
    """The same over TLS."""


def _close(connections: list[Any]) -> None:
    while connections:
        connections.pop().close()


def rejected(account: Account, operation: str, message: str) -> Rejected:
    """A request that will never work."""
    return Rejected(message, backend=account.name, operation=operation)
