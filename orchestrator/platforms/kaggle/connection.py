"""Connects to one Kaggle account through the `kaggle` package: endpoint, credentials, timeouts and retries.

Decides which requests to retry. Must never log in by itself, read KAGGLE_* variables or files, print, or
repeat a secret. Every request uses its own connection, so threads share nothing, and a push never meets an
idle connection that was cut.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import AccessDenied, BackendError, InputError
from orchestrator.platforms.kaggle import sdk
from orchestrator.platforms.kaggle.answers import Failure, Patience, clean, of_error, of_response, told
from orchestrator.platforms.kaggle.credentials import SETTINGS, Credentials
from orchestrator.platforms.kaggle.options import PRODUCTION
from orchestrator.platforms.kaggle.values import decode_username

NO_PRODUCTION = "ORCHESTRATOR_NO_PRODUCTION"  # set: only endpoints on this machine's loopback
T = TypeVar("T")
# Hears each request and its answer (None if none came), and which secrets it must not tell. Must not read the
# body of a stream.
Witness = Callable[[requests.PreparedRequest, requests.Response | None, tuple[str, ...]], None]

if TYPE_CHECKING:  # the package has no types; with Any as its base, mypy would find no typos
    _KaggleApi = object
else:
    _KaggleApi = sdk.KaggleApi


class _Json:
    """The undecoded answer: the SDK's decoder fails on unknown values (docs/references/kaggle.md#status)."""

    @staticmethod
    def prepare_from(response: requests.Response) -> dict[str, Any]:
        body = response.json()
        if not isinstance(body, dict):
            raise ValueError
        code = body.get("code")
        if isinstance(body.get("error"), dict) or (isinstance(code, int) and code >= 400):
            raise requests.HTTPError(response=response)  # even if the status is 200
        return body


class _Redacted(logging.Filter):
    """urllib3 logs every path with its query, which contains signatures. It logs some as warnings."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = clean(record.getMessage()), ()
        return True


logging.getLogger("urllib3.connectionpool").addFilter(_Redacted())


class _Timeouts(HTTPAdapter):
    """The SDK sets no timeouts and ignores the socket's (docs/references/kaggle.md#timeouts-and-retries)."""

    def __init__(self, timeout: tuple[float, float], witness: Witness, secrets: tuple[str, ...]) -> None:
        self._timeout = timeout
        self._witness = witness
        self._secrets = secrets
        super().__init__(max_retries=0)

    def send(self, request, stream=False, timeout=None, verify=True, cert=None, proxies=None):  # type: ignore[no-untyped-def]  # fmt: skip
        _keep_home(request.url)
        try:
            response = super().send(request, stream, timeout or self._timeout, verify, cert, proxies)
        except requests.RequestException:
            self._witness(request, None, self._secrets)
            raise
        self._witness(request, response, self._secrets)
        return response


def _without_credentials(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """As a session's auth, it keeps `requests` from sending credentials from ~/.netrc."""
    return request


class Connection(_KaggleApi):
    """Requests of one account; safe to use from several threads.

    `timeout`: seconds to connect, and between two bytes. A read is tried `attempts` times in total. A write
    is not repeated if it may have taken effect. `sleep` waits between two tries. `backend` is the platform's
    name, for errors. `witness` hears everything.
    """

    args: tuple[str, ...] = ()
    config_values: Mapping[str, str] = {}

    def __init__(self, credentials: Credentials, *, endpoint: str = PRODUCTION,
                 timeout: tuple[float, float] = (10.0, 60.0), attempts: int = 4, backend: str = "kaggle",
                 clock: Clock | None = None, sleep: Callable[[float], None] | None = None,
                 witness: Witness = lambda *_: None) -> None:  # fmt: skip
        """Raises InputError for an endpoint that must not be used."""
        self.endpoint = _checked(endpoint)
        self.backend = backend
        self.clock = clock or SystemClock()
        self.patience = Patience(attempts, sleep or self._sleep, Random())
        self._credentials = credentials
        self._timeout = timeout
        self._witness = witness
        self._username = credentials.username

    def build_kaggle_client(self) -> Any:
        """The SDK's client for this account, with its session set up. Ignores all variables and files."""
        production = self.endpoint == PRODUCTION
        env = sdk.kagglesdk.KaggleEnv.PROD if production else sdk.kagglesdk.KaggleEnv.LOCAL
        client = sdk.kagglesdk.KaggleClient(env=env)
        http = client.http_client()
        http._endpoint = self.endpoint
        http._signed_in = True  # otherwise it looks for credentials by itself
        http._init_session()
        http._session.auth = self._auth()
        self._mount(http._session)
        return client

    def session(self) -> requests.Session:
        """A session for one request to a signed URL: timeouts, no credentials. The caller closes it."""
        session = requests.Session()
        session.auth = _without_credentials
        session.headers["Accept-Encoding"] = "identity"  # so that lengths and ranges match the stored bytes
        self._mount(session)
        return session

    # --- How it is asked --------------------------------------------------------------------------------

    def username(self) -> str:
        """The account's name. Asks Kaggle once if the token came without a name."""
        if self._username:
            return self._username
        request = sdk.oauth.IntrospectTokenRequest()
        request.token = self._credentials.token
        try:
            name = self._read("security.OAuthService/IntrospectToken", request, decode_username)
        except Failure as failure:
            if not failure.passing:
                failure.status = 401  # for an unknown token Kaggle may answer 400 or 404
            raise self._denied(failure, "login") from None
        if not name:
            raise self._denied(Failure("the token is not active", status=401), "login")
        self._username = name
        return name

    def _auth(self) -> Any:
        if self._credentials.token:
            bearer = sdk.http_client.KaggleHttpClient.BearerAuth
            return bearer(self._credentials.token)
        return (self._credentials.username, self._credentials.key)

    def _mount(self, session: requests.Session) -> None:
        session.headers["Connection"] = "close"
        session.trust_env = self.endpoint == PRODUCTION  # proxies are for production, not for a local server
        for scheme in ("https://", "http://"):
            session.mount(scheme, _Timeouts(self._timeout, self._witness, self._credentials.secrets))

    def _sleep(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), seconds)

    def _read(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T],
              again: Callable[[Failure], bool] = lambda failure: failure.passing) -> T:  # fmt: skip
        answer: T = self.patience.retrying(again)(self._call, rpc, request, decode)
        return answer

    def _write(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> T:
        again = self.patience.retrying(lambda failure: failure.untouched)
        answer: T = again(self._call, rpc, request, decode)
        return answer

    def _call(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> T:
        """One RPC, once. Raises Failure only."""
        service, _, method = rpc.partition("/")
        try:
            with self.build_kaggle_client() as kaggle:
                return decode(kaggle.http_client().call(service, method, request, _Json))
        except requests.HTTPError as error:
            raise of_response(error.response, self.clock, secrets=self._credentials.secrets) from None
        except (KeyError, TypeError, ValueError, AttributeError):  # `requests` raises ValueError for bad JSON
            raise Failure("the answer cannot be read") from None
        except requests.RequestException as error:
            raise of_error(error) from None

    def _stream(self, path: str) -> requests.Response:
        base = self.endpoint if self.endpoint == PRODUCTION else f"{self.endpoint}/api"
        headers = {"Accept": "text/event-stream, */*", "Content-Type": None}
        try:
            with self.build_kaggle_client() as kaggle:
                session = kaggle.http_client()._session
                response: requests.Response = session.get(f"{base}/v1/{path}", stream=True, headers=headers)
        except requests.RequestException as error:
            raise of_error(error) from None
        if response.ok and "html" not in response.headers.get("Content-Type", "").lower():
            return response
        with response:
            if response.ok:
                raise Failure("Kaggle sent a web page instead of the log")
            raise of_response(response, self.clock, secrets=self._credentials.secrets)

    def _pages(self, rpc: str, request: Any, decode: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        seen = {""}
        while True:
            page, token = self._read(
                rpc, request, lambda body: (decode(body), str(body.get("nextPageToken") or ""))
            )
            yield page
            if not token:
                return
            if token in seen:
                raise Failure("the list of pages does not end")
            seen.add(token)
            request.page_token = token

    def _denied(self, failure: Failure, operation: str) -> BackendError:
        if failure.status not in (401, 403):
            return self._failed(failure, operation)
        whose = f" of {self._credentials.username}" if self._credentials.username else ""
        return self._error(
            AccessDenied,
            operation,
            f"Kaggle refuses the credentials{whose} ({failure}): make a new token at {SETTINGS}",
        )

    def _failed(self, failure: Failure, operation: str) -> BackendError:
        return told(failure, f"Kaggle: {failure}", backend=self.backend, operation=operation)

    def _error(self, kind: type[BackendError], operation: str, text: str) -> BackendError:
        return kind(text, backend=self.backend, operation=operation)


def _checked(endpoint: str) -> str:
    """Checks that credentials go only to an https server or to this machine. Raises InputError."""
    _keep_home(endpoint)
    if urlsplit(endpoint).scheme != "https" and not on_loopback(endpoint):
        raise InputError(f"{_host(endpoint)!r} would get the credentials unencrypted; use https")
    return endpoint.rstrip("/")


def _keep_home(url: str) -> None:
    """Raises InputError for a URL outside this machine if NO_PRODUCTION is set."""
    if os.environ.get(NO_PRODUCTION) and not on_loopback(url):
        raise InputError(f"{NO_PRODUCTION} is set and {_host(url)!r} is not on this machine's loopback")


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""


def on_loopback(url: str) -> bool:
    """Whether the URL leads to this machine."""
    try:
        return ipaddress.ip_address(_host(url)).is_loopback
    except ValueError:
        return _host(url) == "localhost"
