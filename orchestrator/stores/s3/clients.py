"""The connections of an S3 store: one client for small requests, and one each for sending and fetching parts.

Decides time limits, retries and when a client must be made anew, because the keys changed. Must never show a
key. Takes nothing but the proxy (`HTTPS_PROXY`) from the environment, because a variable such as
`AWS_ENDPOINT_URL` must not lead checkpoints elsewhere.
"""

from __future__ import annotations

import ipaddress
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from obstore.store import S3Store as Connection

from orchestrator.clock import SystemClock
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.stores.s3.conditions import Conditions
from orchestrator.stores.s3.credentials import Credentials, Keys
from orchestrator.stores.s3.exchange import Reply, exchanged
from orchestrator.stores.s3.faults import answer_in, ours, refused, reporting
from orchestrator.stores.s3.signing import path_of, query_of, signed

if TYPE_CHECKING:  # obstore has these for type checkers alone
    from obstore.store import ClientConfig, RetryConfig, S3Credential

NO_PRODUCTION = "ORCHESTRATOR_NO_PRODUCTION"  # set: only endpoints on this machine's loopback
CONNECT_SECONDS = 10
SMALL_SECONDS = 60  # a request without much of a body
PART_SECONDS = 600  # 4 parts of 16 MiB at a time then need 0.9 Mbit/s
STALL_SECONDS = 60  # nothing came for so long
PART_RETRIES = 6
PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 0.5, 15.0


@dataclass(frozen=True)
class Place:
    """Where the objects are. `endpoint` names no bucket and ends without a slash, as `prefix` does."""

    endpoint: str
    bucket: str
    prefix: str
    region: str
    is_virtual: bool = False
    conditions: Conditions | None = None  # known of the service; None: it must be tried

    @property
    def words(self) -> str:
        """For messages: `bucket runs at s3.hf.co`."""
        return f"bucket {self.bucket} at {urlsplit(self.endpoint).netloc}"

    @property
    def address(self) -> str:
        """The endpoint as obstore needs it: for virtual hosts, with the bucket."""
        if not self.is_virtual:
            return self.endpoint
        scheme, _, rest = self.endpoint.partition("://")
        return f"{scheme}://{self.bucket}.{rest}"

    def url(self, key: str | None) -> str:
        """Of an object, or of the bucket itself."""
        path = "" if self.is_virtual else f"/{self.bucket}"
        if key is not None:
            path += f"/{self.prefix}/{key}" if self.prefix else f"/{key}"
        return f"{self.address}{path_of(path or '/')}"

    @property
    def is_loopback(self) -> bool:
        """Whether the endpoint is this machine."""
        host = urlsplit(self.endpoint).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost" or host.endswith(".localhost")


@dataclass(frozen=True)
class Client:
    """The three connections, for one pair of keys."""

    small: Connection
    sends: Connection
    fetches: Connection


class Clients:
    """Makes clients for a place, and remembers the last one while the keys are the same."""

    def __init__(self, place: Place, credentials: Credentials, backend: str) -> None:
        self.place = place
        self.credentials = credentials
        self.backend = backend
        self._lock = threading.Lock()
        self._last: tuple[Keys, Client] | None = None

    def now(self) -> Client:
        """A client with the present keys. Raises AccessDenied if they are missing."""
        keys = self.credentials.now(self.backend)
        with self._lock:
            if self._last is None or self._last[0] != keys:
                self._last = keys, self._made(keys)
            return self._last[1]

    def reporting(
        self, operation: str, key: str = "", *, conditional: bool = False
    ) -> AbstractContextManager[None]:
        """Turns the errors of obstore into ours, except UNMET for a conditional write."""
        return reporting(self.backend, operation, key, self.place.words, conditional=conditional)

    def ours(self, error: BaseException, operation: str, key: str) -> OrchestratorError:
        """The error of ours that an error of obstore means."""
        return ours(error, self.backend, operation, key, self.place.words)

    def ask(self, operation: str, method: str, key: str | None, query: Mapping[str, str]) -> Reply:
        """Sends one signed request that obstore cannot make: about an object, or about the bucket (None).
        Raises what `ours` makes of an answer that does not come; what came is for `check`."""
        keys = self.credentials.now(self.backend)
        self._check_allowed()
        url = f"{self.place.url(key)}?{query_of(query)}"
        headers = signed(method, url, keys, self.place.region, SystemClock().now())
        try:
            return exchanged(method, url, headers, SMALL_SECONDS)
        except (OSError, HTTPException) as error:
            raise self.ours(error, operation, key or "") from None

    def check(self, reply: Reply, operation: str, key: str = "") -> None:
        """Raises the error that the reply means, unless the service did what was asked."""
        answer = answer_in(reply.status, reply.body)
        if reply.status >= 300 or answer.is_page:
            raise refused(answer, self.backend, operation, key, self.place.words)

    def _check_allowed(self) -> None:
        if os.environ.get(NO_PRODUCTION) and not self.place.is_loopback:
            raise InputError(
                f"{NO_PRODUCTION} is set, and {self.place.words} is not on this machine's loopback"
            )

    def _made(self, keys: Keys) -> Client:
        once: RetryConfig = {"max_retries": 0}  # RetryingStore repeats the verb
        again: RetryConfig = {
            "max_retries": PART_RETRIES,
            "backoff": {
                "init_backoff": timedelta(seconds=PAUSE_SECONDS_MIN),
                "max_backoff": timedelta(seconds=PAUSE_SECONDS_MAX),
                "base": 2,
            },
        }
        return Client(
            self._store(keys, once, {"timeout": f"{SMALL_SECONDS}s"}),
            self._store(keys, again, {"timeout": f"{PART_SECONDS}s"}),
            self._store(keys, again, {"timeout": f"{PART_SECONDS}s", "read_timeout": f"{STALL_SECONDS}s"}),
        )

    def _store(self, keys: Keys, retry: RetryConfig, limits: ClientConfig) -> Connection:
        place = self.place
        self._check_allowed()
        plain = place.endpoint.startswith("http://")
        with self.reporting("connect"):
            return Connection(
                place.bucket,
                prefix=place.prefix or None,
                # Everything that the environment could change is given: docs/references/s3.md#obstore
                endpoint=place.address,
                aws_endpoint_url_s3=place.address,
                region=place.region,
                virtual_hosted_style_request=place.is_virtual,
                skip_signature=False,
                unsigned_payload=False,
                conditional_put="etag",
                disable_bulk_delete=True,
                disable_tagging=True,
                client_options={"allow_http": plain, "connect_timeout": f"{CONNECT_SECONDS}s", **limits},
                retry_config=retry,
                credential_provider=_provider(keys),
            )


def _provider(keys: Keys) -> Callable[[], S3Credential]:
    """A function, because keys given as options would be mixed with those of the environment."""
    return lambda: {
        "access_key_id": keys.access_key,
        "secret_access_key": keys.secret_key,
        "token": keys.token or None,
        "expires_at": None,
    }
