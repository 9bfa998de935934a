"""What an error of Drive, of its login or of the network means: which of our errors, and what to do next.

Must never repeat an address: that of an upload lets anyone who reads it write there. What the server says is
cut to one line. Each row cites what is known of Drive in docs/references/drive.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

import httplib2  # type: ignore[import-untyped]
from googleapiclient.errors import Error, HttpError  # type: ignore[import-untyped]
from oauth2client.client import AccessTokenRefreshError  # type: ignore[import-untyped]
from pydrive2.auth import AuthError  # type: ignore[import-untyped]

from orchestrator.core import bounds
from orchestrator.errors import (
    AccessDenied,
    BackendError,
    Conflict,
    NotFound,
    QuotaExhausted,
    Rejected,
    Transient,
)

# ValueError: an answer that is not JSON, such as a proxy's page. KeyError: JSON that lacks what was promised.
# AttributeError: the client reads an error whose message is no text.
FOREIGN = (Error, AuthError, AccessTokenRefreshError, httplib2.HttpLib2Error, HTTPException, OSError,
           ValueError, KeyError, TypeError, AttributeError)  # fmt: skip
SAID_BYTES_MAX = 200

_LOGIN = "run `orchestrator init drive` again"
_AGAIN = (
    f"{_LOGIN}; if your OAuth app is in Testing, its logins end after 7 days: publish it "
    "(Google Auth Platform, Audience, Publish app)"
)
_FREE = (
    "the Drive is full: free space there (see `orchestrator prune`, and empty Drive's trash), buy storage, "
    "or configure another store"
)
_SERVICE = (
    "a service account has no space of its own: use a folder of a shared drive, or the login of a person "
    "(`orchestrator init drive`)"
)
# Reasons and statuses of both of Google's forms (docs/references/drive.md#errors).
_PASSING = {"rateLimitExceeded", "userRateLimitExceeded", "sharingRateLimitExceeded", "backendError",
            "internalError", "transientError", "dailyLimitExceeded", "RATE_LIMIT_EXCEEDED",
            "RESOURCE_EXHAUSTED", "ABORTED", "UNAVAILABLE", "INTERNAL", "DEADLINE_EXCEEDED"}  # fmt: skip
_FULL = {"storageQuotaExceeded", "quotaExceeded", "teamDriveFileLimitExceeded",
         "activeItemCreationLimitExceeded", "numChildrenInNonRootLimitExceeded"}  # fmt: skip
_RIGHTS = "check who may write to the folder; on a shared drive only a Manager can delete for good"
_DENIED = (  # what a person must do, also if an administrator refuses a login
    ({"accessNotConfigured", "SERVICE_DISABLED"},
     "enable the Google Drive API in the Google Cloud project of your OAuth app"),
    ({"BILLING_DISABLED"},
     "enable billing in the Google Cloud project of your OAuth app, or use an app of another project"),
    ({"insufficientPermissions", "ACCESS_TOKEN_SCOPE_INSUFFICIENT"},
     f"the login lacks the scope drive.file: {_LOGIN} and leave every box ticked"),
    ({"domainPolicy", "admin_policy_enforced", "org_internal"},
     "the administrator of this Google account does not allow it: ask them, or use another account"),
)  # fmt: skip
_LOST_LOGINS = ("invalid_grant", "invalid_client", "unauthorized_client", "deleted_client", "invalid_scope",
                "disabled_client", "access_denied", "No refresh_token")  # fmt: skip
_REASONS_MAX = 10  # of one list
Kind = Callable[..., BackendError]


class Exists(Rejected):
    """A file has this id already: an earlier try of ours was received."""


class LocalFault(Exception):
    """Carries an error of this machine's file out of the client's code, which would mistake it."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def told(error: BaseException, name: str, operation: str) -> BackendError:
    """Our error for one of FOREIGN. The original says more than may be shown, so do not chain it."""
    if isinstance(error, BackendError):
        return error
    kind, said, advice = _meaning(error)
    message = f"Drive: {bounds.text(' '.join(said.split()), SAID_BYTES_MAX)}"
    return kind(f"{message}; {advice}" if advice else message, backend=name, operation=operation)


def _meaning(error: BaseException) -> tuple[Kind, str, str]:
    if isinstance(error, HttpError):
        return _refusal(int(error.resp.status), bytes(error.content or b""))
    if isinstance(error, AuthError | AccessTokenRefreshError):
        return _login(str(error))
    if isinstance(error, httplib2.ServerNotFoundError):
        return Transient, "its server's name was not found", "check this machine's network"
    if isinstance(error, TimeoutError):
        return Transient, "no answer in time", ""
    if isinstance(error, OSError | HTTPException | httplib2.HttpLib2Error):
        return Transient, f"the connection failed ({type(error).__name__})", ""
    return Transient, "the answer is not Drive's: a proxy or an error page may be in between", ""


def _refusal(status: int, content: bytes) -> tuple[Kind, str, str]:
    reasons, message = _said(content)
    said = f"{status} {' '.join(sorted(reasons))} {message}".strip()
    if status == 401:
        return AccessDenied, said, _AGAIN
    if status == 404 or status == 410:
        return NotFound, said, ""
    if status == 409 and "ABORTED" not in reasons:
        return Exists, said, ""
    if status == 412:
        return Conflict, said, ""
    if status in (408, 429) or status >= 500 or not (reasons or message):  # a page of something in between
        return Transient, said, ""
    return _by_reason(status, reasons, message, said)


def _by_reason(status: int, reasons: frozenset[str], message: str, said: str) -> tuple[Kind, str, str]:
    """403 has many meanings; only its reasons tell them apart. One that nobody knows goes to a person: it
    would be asked again for ever otherwise."""
    if "storage quota" in message and "ervice" in message:
        return Rejected, said, _SERVICE
    if reasons & _FULL:
        return QuotaExhausted, said, _FREE
    advice = next((text for names, text in _DENIED if reasons & names), "")
    if advice:
        return AccessDenied, said, advice
    if reasons & _PASSING:
        return Transient, said, ""
    return (AccessDenied, said, _RIGHTS) if status == 403 else (Rejected, said, "")


def _said(content: bytes) -> tuple[frozenset[str], str]:
    """The reasons, with the status, and the message of an answer in one of Google's forms of an error, or in
    both at once (docs/references/drive.md#errors); nothing of any other."""
    try:
        error = json.loads(content)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return frozenset(), ""
    if not isinstance(error, dict):
        return frozenset(), ""
    parts = [error.get("errors"), error.get("details")]
    listed: list[Any] = [each for part in parts if isinstance(part, list) for each in part[:_REASONS_MAX]]
    found = [error.get("status"), *(each.get("reason") for each in listed if isinstance(each, dict))]
    message = error.get("message")
    reasons = frozenset(each for each in found if isinstance(each, str) and each)
    return reasons, message if isinstance(message, str) else ""


def _login(said: str) -> tuple[Kind, str, str]:
    said = said.removeprefix("Access token refresh failed: ")
    policy = next((advice for names, advice in _DENIED if any(name in said for name in names)), "")
    if policy:
        return AccessDenied, f"the login is refused ({said})", policy
    if any(word in said for word in _LOST_LOGINS):
        return AccessDenied, f"the login has ended ({said})", _AGAIN
    return Transient, f"the login server did not answer as expected ({said})", ""
