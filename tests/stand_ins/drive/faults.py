"""The faults that a test may switch on, and Drive's own way of saying no. Decides no answer by itself."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass

# What may fail: token, ids, list, get, media, start and chunk (of an upload), insert, update, patch, delete.
OTHER_HTML = b"<!doctype html><title>Error 502 (Server Error)!!1</title>"


@dataclass
class Fault:
    """The next `times` requests of the kind `on` (empty: any), after `skip` of them, fail as `kind` says."""

    kind: str
    on: str = ""
    times: int = 1
    skip: int = 0


class Refusal(Exception):
    """An answer in one of Google's forms of an error (docs/references/drive.md#errors). `form`: the status of
    the newer form; "+" before it for both forms in one answer."""

    def __init__(self, status: int, reason: str, message: str = "", form: str = "") -> None:
        super().__init__(reason)
        self.status = status
        text = message or reason
        error: dict[str, object] = {"code": status, "message": text}
        if not form or form.startswith("+"):
            old = _OLD_REASONS.get(reason, reason)
            error["errors"] = [{"domain": "usageLimits", "reason": old, "message": text}]
        if form:
            info = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com"}
            error |= {"status": form.removeprefix("+")}
            error |= {"details": [{"locale": "en-US"}, info | {"reason": reason}]} if reason else {}
        self.body = json.dumps({"error": error}).encode()


_OLD_REASONS = {
    "SERVICE_DISABLED": "accessNotConfigured",
    "ACCESS_TOKEN_SCOPE_INSUFFICIENT": "insufficientPermissions",
    "RATE_LIMIT_EXCEEDED": "rateLimitExceeded",
}
REFUSALS: dict[str, tuple[int, str, str] | tuple[int, str, str, str]] = {
    "rate": (403, "userRateLimitExceeded", "User Rate Limit Exceeded"),
    "rate-project": (403, "rateLimitExceeded", "Rate Limit Exceeded"),
    "too-many": (429, "rateLimitExceeded", "Rate Limit Exceeded"),
    "500": (500, "internalError", "Internal Error"),
    "503": (503, "backendError", "Backend Error"),
    "quota": (403, "storageQuotaExceeded", "The user's Drive storage quota has been exceeded."),
    "quota-old": (403, "quotaExceeded", "The user has exceeded their Drive storage quota"),
    "denied": (403, "insufficientFilePermissions", "The user does not have sufficient permissions"),
    "scope": (403, "insufficientPermissions", "Request had insufficient authentication scopes."),
    "off": (403, "accessNotConfigured", "Google Drive API has not been used in project 1 before"),
    "lost": (404, "notFound", "File not found"),
    "bad": (400, "invalid", "Invalid Value"),
    "unauthorized": (401, "authError", "Invalid Credentials"),
    "new-off": (403, "SERVICE_DISABLED", "Google Drive API has not been used", "PERMISSION_DENIED"),
    "both-off": (403, "SERVICE_DISABLED", "Google Drive API has not been used", "+PERMISSION_DENIED"),
    "new-scope": (403, "ACCESS_TOKEN_SCOPE_INSUFFICIENT", "Insufficient scopes", "PERMISSION_DENIED"),
    "new-billing": (403, "BILLING_DISABLED", "This API method requires billing.", "PERMISSION_DENIED"),
    "new-denied": (403, "", "The caller does not have permission", "PERMISSION_DENIED"),
    "new-unknown": (403, "MOON_IS_FULL", "Come back at dawn", "PERMISSION_DENIED"),
    "new-bad": (400, "", "Precondition check failed.", "FAILED_PRECONDITION"),
    "new-rate": (429, "RATE_LIMIT_EXCEEDED", "Quota exceeded", "RESOURCE_EXHAUSTED"),
    "both-rate": (403, "RATE_LIMIT_EXCEEDED", "Quota exceeded", "+PERMISSION_DENIED"),
    "new-spent": (403, "", "Quota exceeded", "RESOURCE_EXHAUSTED"),
}


class Faults:
    """The faults that are still to come. May be shared by threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []

    def add(self, *faults: Fault) -> None:
        with self._lock:
            self._waiting.extend(faults)

    def next(self, on: str) -> str:
        """The kind of fault that this request meets; empty if none."""
        with self._lock:
            for fault in self._waiting:
                if fault.on not in ("", on):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                if not fault.times:
                    self._waiting.remove(fault)
                return fault.kind
        return ""

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    @property
    def left(self) -> int:
        with self._lock:
            return len(self._waiting)
