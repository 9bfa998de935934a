"""What went wrong between us and Kaggle, in text without secrets, and whether to retry.

Requests to Kaggle are retried here, one by one. No wrapper retries a whole verb: a verb makes many requests,
and repeating it would multiply the attempts, ignore Retry-After, and upload gigabytes again.
Decides nothing about sessions. Must never repeat a header, a URL or a body, except Kaggle's own message. The
error texts of `requests` contain signed URLs, so none of them is passed on.
"""

from __future__ import annotations

import http
import re
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from random import Random

import requests
from tenacity import Retrying, retry_if_exception, stop_after_attempt

from orchestrator.clock import Clock
from orchestrator.errors import BackendError, Refused, Rejected, Transient

AFTER_SECONDS_MAX = 60.0  # a longer wait must not block a worker
FIRST_SECONDS = 0.5
PAUSE_SECONDS_MAX = 30.0
_MESSAGE_LENGTH_MAX = 300
_PASSING = (0, 408, 429)
_WRONG = (400, 413)  # the request itself is wrong
_QUERY = re.compile(r"\?[^\s\"'<>]*=[^\s\"'<>]*")


class Failure(Exception):
    """A request without a usable answer.

    `status` is the HTTP status, or 0 if there was no readable answer. `after` is what Retry-After asked
    for, in seconds. `sent`: the request may have taken effect.
    """

    def __init__(self, text: str, *, status: int = 0, after: float | None = None, sent: bool = True) -> None:
        super().__init__(text)
        self.status = status
        self.after = after
        self.sent = sent

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed the next time."""
        return self.status in _PASSING or self.status >= 500

    @property
    def untouched(self) -> bool:
        """Whether it certainly took no effect and may succeed next time. Then a write is safe to repeat."""
        return self.passing and (self.status == 429 or not self.sent)

    @property
    def soon(self) -> bool:
        return self.after is None or self.after <= AFTER_SECONDS_MAX


@dataclass(frozen=True)
class Patience:
    """How often to try, and how long to wait: exponential with jitter, or what the server asks for."""

    attempts: int
    sleep: Callable[[float], None]
    random: Random

    def seconds(self, failed: int, after: float | None) -> float:
        """The pause after the given number of failures (from 1)."""
        if after is not None:
            return after + self.random.uniform(0.0, FIRST_SECONDS)
        return self.random.uniform(0.0, min(PAUSE_SECONDS_MAX, FIRST_SECONDS * 2.0**failed))

    def retrying(self, again: Callable[[Failure], bool]) -> Retrying:
        def worth(error: BaseException) -> bool:
            return isinstance(error, Failure) and error.soon and again(error)

        def pause(state: object) -> float:
            outcome = getattr(state, "outcome", None)
            error = outcome.exception() if outcome is not None else None
            return self.seconds(getattr(state, "attempt_number", 1), getattr(error, "after", None))

        return Retrying(
            stop=stop_after_attempt(self.attempts),
            wait=pause,
            retry=retry_if_exception(worth),
            sleep=self.sleep,
            reraise=True,
        )


def told(failure: Failure, text: str, *, backend: str, operation: str) -> BackendError:
    """The error to raise for a request that failed after all its retries.

    A request that may have taken effect was made only once; the caller must look before it tries again. A
    refusal may pass, too, unless it says that the request itself is wrong.
    """
    if failure.passing:
        return Transient(text, backend=backend, operation=operation, retried=True)
    kind = Rejected if failure.status in _WRONG else Refused
    return kind(text, backend=backend, operation=operation)


class Tries:
    """Counts the failed tries of one transfer. Progress beyond the furthest byte so far resets the count."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._failed = 0
        self._furthest = 0

    def again(self, failure: Failure, reached: int) -> None:
        """Waits before the next try. Raises the failure if it is permanent or no tries are left."""
        if reached > self._furthest:
            self._furthest, self._failed = reached, 0
        self._failed += 1
        if not (failure.passing and failure.soon) or self._failed >= self._patience.attempts:
            raise failure
        self._patience.sleep(self._patience.seconds(self._failed, failure.after))


def of_response(response: requests.Response, clock: Clock, *, secrets: tuple[str, ...] = (),
                with_message: bool = True) -> Failure:  # fmt: skip
    """The failure that an error response describes.

    Use `with_message=False` for signed URLs: the storage's error messages repeat what was signed.
    """
    message, code = _message(response) if with_message else ("", 0)
    status = response.status_code if response.status_code >= 400 else code
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = "an unknown answer"
    text = f"HTTP {status} ({clean(message, secrets) or phrase})"
    return Failure(text, status=status, after=_after(response, clock))


def of_error(error: BaseException) -> Failure:
    """The failure for an error of `requests`, in our own words."""
    chain = list(_chain(error))
    refused = any(isinstance(each, requests.ConnectTimeout | ConnectionRefusedError | socket.gaierror)
                  or type(each).__name__ in ("NewConnectionError", "NameResolutionError")
                  for each in chain)  # fmt: skip
    return Failure(_reason(chain), sent=not refused)


def _reason(chain: list[BaseException]) -> str:
    for each in chain:
        if isinstance(each, ssl.SSLCertVerificationError):
            return f"the server's certificate is not trusted: {each.verify_message}"
        if isinstance(each, requests.ConnectTimeout):
            return "no connection in time"
        if isinstance(each, requests.Timeout) or type(each).__name__ == "ReadTimeoutError":
            return "no answer in time"
        if isinstance(each, socket.gaierror):
            return "host name not found: check the network"
        if isinstance(each, OSError) and each.errno and each.strerror:
            return each.strerror.lower()
    if any(
        type(each).__name__ in ("IncompleteRead", "ProtocolError", "InvalidChunkLength") for each in chain
    ):
        return "the connection was cut"
    return f"no usable answer ({type(chain[0]).__name__})"


def _chain(error: BaseException | None) -> list[BaseException]:
    """The innermost first: `requests` wraps urllib3, which wraps the system's errors."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        inner = next((each for each in error.args if isinstance(each, BaseException)), None)
        inner = inner or getattr(error, "reason", None)
        error = inner if isinstance(inner, BaseException) else error.__cause__ or error.__context__
    return found[::-1]


def clean(text: str, secrets: tuple[str, ...] = ()) -> str:
    """One line without secrets, and without the query part of any URL, because it contains signatures."""
    for secret in secrets:
        text = text.replace(secret, "…") if secret else text
    line = _QUERY.sub("?…", " ".join(text.split()))
    return line if len(line) <= _MESSAGE_LENGTH_MAX else f"{line[:_MESSAGE_LENGTH_MAX]}…"


def _message(response: requests.Response) -> tuple[str, int]:
    """Kaggle's message and code: at the top level or inside `error` (docs/references/kaggle.md#errors)."""
    try:
        body = response.json()
        inner = body.get("error", body)
        inner = inner if isinstance(inner, dict) else {"message": inner, **body}
        code = inner.get("code", 0)
        return str(inner.get("message") or ""), code if isinstance(code, int) else 0
    except (ValueError, AttributeError, requests.RequestException):
        return "", 0


def _after(response: requests.Response, clock: Clock) -> float | None:
    """Retry-After in seconds from now. The header is a number or a date."""
    given = response.headers.get("Retry-After", "").strip()
    if given.isdecimal():
        return float(given)
    try:
        date = parsedate_to_datetime(given)
    except ValueError:
        return None
    return max(0.0, date.replace(tzinfo=date.tzinfo or UTC).timestamp() - clock.now())
