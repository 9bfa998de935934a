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
    """An answer in Drive's form of an error (docs/references/drive.md#errors)."""

    def __init__(self, status: int, reason: str, message: str = "") -> None:
        super().__init__(reason)
        self.status = status
        text = message or reason
        errors = [{"domain": "usageLimits", "reason": reason, "message": text}]
        self.body = json.dumps({"error": {"errors": errors, "code": status, "message": text}}).encode()


REFUSALS = {
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
