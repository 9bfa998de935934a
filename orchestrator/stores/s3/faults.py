"""What an answer of an S3 service means: turns every error of obstore into ours, with the next thing to do.

Decides by the HTTP status and the code in the answer's body. Must never repeat what may be secret: of the
service's text only its code, and a cleaned and shortened message, are shown. Nothing of obstore's own text
is, because it quotes URLs, and a redirect's URL is signed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from obstore import exceptions

from orchestrator.errors import (
    AccessDenied,
    BackendError,
    NotFound,
    OrchestratorError,
    QuotaExhausted,
    Rejected,
    Transient,
)

Kind = Callable[..., BackendError]
_WORDS_MAX = 200

_KEYS = "check `access_key` and `secret_key` in the config: the new ones count from the next request on"
_EXPIRED = "the credential expired or was revoked: put a new one where the config says"
_CLOCK = "this machine's clock is off: set it (timedatectl set-ntp true), because S3 signs with the time"
_REGION = "the bucket is in another region: set `region` in the config to the bucket's own"
_BUCKET = "there is no such bucket: create it, or correct `bucket` in the config"
_FULL = (
    "the store is full: free space there (see `orchestrator prune`), raise the limit, or use another store"
)
_RIGHTS = "give these keys the right to read, write, list and delete in this bucket"

_CODES: dict[str, tuple[Kind, str]] = {
    **dict.fromkeys(("SignatureDoesNotMatch", "InvalidAccessKeyId", "Unauthorized"), (AccessDenied, _KEYS)),
    **dict.fromkeys(
        ("ExpiredToken", "ExpiredTokenException", "InvalidToken", "TokenRefreshRequired"),
        (AccessDenied, _EXPIRED),
    ),
    **dict.fromkeys(("RequestTimeTooSkewed", "RequestExpired", "RequestInTheFuture"), (AccessDenied, _CLOCK)),
    **dict.fromkeys(("AccessDenied", "AllAccessDisabled", "AccountProblem"), (AccessDenied, _RIGHTS)),
    **dict.fromkeys(
        ("PermanentRedirect", "AuthorizationHeaderMalformed", "IncorrectEndpoint"), (AccessDenied, _REGION)
    ),
    **dict.fromkeys(("NoSuchBucket", "InvalidBucketName"), (AccessDenied, _BUCKET)),
    **dict.fromkeys(
        (
            "QuotaExceeded", "QuotaExceededException", "InsufficientStorage", "StorageQuotaExceeded",
            "StorageCapExceeded", "TransactionCapExceeded", "XMinioStorageFull",
            "XMinioAdminBucketQuotaExceeded",
        ),
        (QuotaExhausted, _FULL),
    ),
    **dict.fromkeys(
        (
            "SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout", "Throttling",
            "ThrottlingException", "TooManyRequests", "OperationAborted", "ConditionalRequestConflict",
            "NoSuchUpload",
        ),
        (Transient, ""),
    ),
    **dict.fromkeys(
        ("EntityTooLarge", "EntityTooSmall", "InvalidPart", "InvalidPartOrder", "NotImplemented"),
        (Rejected, ""),
    ),
    "NoSuchKey": (NotFound, ""),
}  # fmt: skip
_QUOTA = re.compile(r"\bquota\b|storage (?:limit|cap)|cap exceeded|out of (?:space|storage)", re.IGNORECASE)
_TROUBLES = (
    # What obstore's own text contains if no answer came, and what that means.
    (re.compile(r"dns error|failed to lookup|Name or service not known|name resolution", re.IGNORECASE),
     "the name of the endpoint could not be looked up: is this machine online, is `endpoint` right?"),
    (re.compile(r"certificate|tls|ssl|handshake|InvalidContentType|corrupt message", re.IGNORECASE),
     "no secure connection: is `endpoint` https, is a proxy in between, is this machine's clock right?"),
    (re.compile(r"kind: Timeout|TimedOut|timed out|deadline", re.IGNORECASE), "no answer in time"),
    (re.compile(r"tcp connect error|Connection refused|kind: Connect"), "the endpoint accepts no connection"),
    (re.compile(r"Content-Range|non-partial"), "another part of the object came than was asked for"),
)  # fmt: skip
CUT_OFF = "the connection broke before the answer was complete"
HTML = "this is not S3's answer: a proxy or login page is in between, or `endpoint` is another service"


@dataclass(frozen=True)
class Answer:
    """What is known of an error: the status (0: no answer came), S3's code, its message, and whether the body
    was a web page."""

    status: int
    code: str
    message: str
    is_page: bool


def answer_of(error: BaseException) -> Answer:
    """Reads obstore's text. The first part is its own, the body follows the status."""
    text = str(error).partition("\n\nDebug source:")[0]
    status = re.search(r"status code: (\d{3})[^:]*: ?", text)
    if status is None:
        return Answer(301 if "redirect without LOCATION" in text else 0, "", "", False)
    return answer_in(int(status[1]), text[status.end() :])


def answer_in(status: int, body: str) -> Answer:
    """Reads the answer of a service."""
    code = re.search(r"<Code>([A-Za-z0-9.]{1,80})</Code>", body)
    message = re.search(r"<Message>([^<]*)</Message>", body)
    is_page = re.match(r"\s*(?:<!doctype html|<html)", body, re.IGNORECASE) is not None
    return Answer(status, code[1] if code else "", message[1] if message else "", is_page)


def ours(error: BaseException, backend: str, operation: str, key: str, where: str) -> OrchestratorError:
    """The error of ours that an error of obstore means."""
    answer = answer_of(error)
    if answer.status:
        return refused(answer, backend, operation, key, where)
    kind, said = _without_answer(error)
    return kind(_told(operation, key, said, where), backend=backend, operation=operation)


def refused(answer: Answer, backend: str, operation: str, key: str, where: str) -> BackendError:
    """The error of ours that an answer means."""
    kind, said = _meaning(answer)
    return kind(_told(operation, key, said, where), backend=backend, operation=operation)


def _told(operation: str, key: str, said: str, where: str) -> str:
    return f"{operation} {key}: {said} ({where})" if key else f"{operation}: {said} ({where})"


def _meaning(answer: Answer) -> tuple[Kind, str]:
    if answer.is_page:
        return Transient, f"{HTML} (HTTP {answer.status})"
    kind, advice = _kind(answer)
    said = " ".join(filter(None, (f"HTTP {answer.status}", answer.code, _clean(answer.message))))
    return kind, f"{said}; {advice}" if advice else said


def _kind(answer: Answer) -> tuple[Kind, str]:
    status, code = answer.status, answer.code
    if status in (402, 507) or (status in (400, 403, 409) and _QUOTA.search(f"{code} {answer.message}")):
        return QuotaExhausted, _FULL
    if code in _CODES:
        return _CODES[code]
    if status == 301:
        return AccessDenied, _REGION
    if status in (401, 403):
        return AccessDenied, f"{_KEYS}; {_RIGHTS}"
    if status == 404:
        return NotFound, ""
    if status in (400, 405, 411, 413, 414, 416, 501):
        return Rejected, ""
    return Transient, ""


def _without_answer(error: BaseException) -> tuple[Kind, str]:
    if isinstance(error, FileNotFoundError):
        return NotFound, "there is no such object"
    text = str(error)
    for pattern, said in _TROUBLES:
        if pattern.search(text):
            return Transient, said
    if re.search(
        r"Missing (?:etag|content length|last modified)|invalid .*response|Error getting", text, re.I
    ):
        return Transient, HTML
    return Transient, CUT_OFF


def _clean(message: str) -> str:
    """The service's own words, without addresses and without anything that is long enough to be a key."""
    text = re.sub(r"\w+://\S+", "…", message)
    text = re.sub(r"[A-Za-z0-9+/=_-]{20,}", "…", text)
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= _WORDS_MAX else f"{text[:_WORDS_MAX]}…"


@contextmanager
def reporting(
    backend: str, operation: str, key: str, where: str, *, conditional: bool = False
) -> Iterator[None]:
    """Turns what obstore raises into ours. `where`: the bucket, in words. Errors of local files stay as
    they are. With `conditional`, so does the answer that a condition did not hold."""
    try:
        yield
    except (exceptions.BaseError, FileNotFoundError) as error:
        if conditional and isinstance(error, UNMET):
            raise
        if isinstance(error, OSError) and error.errno is not None:  # obstore's has no number
            raise
        found = ours(error, backend, operation, key, where)
        if isinstance(found, Transient):
            found.retried = _is_exhausted(str(error))
        raise found from None  # the cause quotes URLs and bodies


UNMET = (exceptions.AlreadyExistsError, exceptions.PreconditionError)


def is_unmet(error: BaseException) -> bool:
    """Whether the service refused a conditional write because its condition did not hold. obstore takes
    any 404 and 409 for that, too."""
    answer = answer_of(error)
    return not answer.is_page and (answer.status == 412 or answer.code == "NoSuchKey")


def is_refusal(error: BaseException) -> bool:
    """Whether the service does not take such a request, whoever makes it and whenever. A 400 may also mean
    that a token expired, or that the request took too long."""
    answer = answer_of(error)
    return answer.status in (400, 405, 501) and _meaning(answer)[0] is Rejected


def _is_exhausted(text: str) -> bool:
    """Whether obstore has made all its retries. A body that breaks off is not always retried."""
    made, most = (re.search(rf"\b{name}: (\d+)", text) for name in ("retries", "max_retries"))
    return made is not None and most is not None and int(made[1]) >= int(most[1]) > 0
