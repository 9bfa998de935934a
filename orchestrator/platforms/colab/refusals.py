"""What a failed errand means to the caller.

Pure. The command line reports most failures as the same error or not at all, so this goes by the requests
that were sent and what came back (docs/references/colab.md#refusals).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from orchestrator.errors import AccessDenied, BackendError, NoCapacity, QuotaExhausted, Rejected, Transient
from orchestrator.platforms.colab.errand import lacking

ASSIGN = "/tun/m/assign"
Make = Callable[[type[BackendError], str], BackendError]
_OUTCOMES = {1: "the quota is spent", 2: "the usage time is spent"}
_DENYLISTED = 5
_SAID_MAX = 300
_SCOPES = re.compile(r'Scope has changed from "([^"]*)" to "([^"]*)"')
_RIGHTS = {"drive.file": "Drive", "colaboratory": "Colab", "cloud-platform": "Google Cloud"}
_POLICIES = ("admin_policy_enforced", "org_internal")


def meaning(answer: Mapping[str, Any], *, backend: str, operation: str, login: str) -> BackendError:
    """The error for an answer whose kind is not "done". `login` is the command that logs in."""

    def error(kind: type[BackendError], message: str) -> BackendError:
        return kind(message, backend=backend, operation=operation)

    said = str(answer.get("message") or answer.get("error") or "no reason")[:_SAID_MAX]
    version = answer.get("version", "none")
    if answer.get("kind") == "strange":
        return error(Rejected, f"google-colab-cli {version} is not the one this was written for: {said}")
    if answer.get("kind") == "confused":
        return error(Rejected, said)
    requests: Sequence[Mapping[str, Any]] = answer.get("requests") or ()
    # A later answer says nothing about an earlier request that got none.
    unanswered = next((each for each in requests if _is_unanswered(each)), None)
    if unanswered is not None and operation == "new":
        answer_was = "gave no answer" if unanswered.get("error") else f"answered {unanswered['status']}"
        return error(Transient, f"Colab {answer_was} when asked for a machine, and may give one later")
    # After a failure there may be more requests, which look whether it took effect all the same.
    last: Mapping[str, Any] = next((each for each in reversed(requests) if _is_bad(each)), {})
    if answer.get("phase") == "login" or "RefreshError" in answer.get("kinds", ()):
        return _of_login(error, answer, last, login)
    assigned = next((each for each in reversed(requests) if _is_assignment(each)), None)
    if assigned is not None and operation == "new":
        outcome, status = assigned.get("outcome"), assigned.get("status")
        if outcome in _OUTCOMES:
            return error(QuotaExhausted, f"Colab gives no machine: {_OUTCOMES[outcome]} (outcome {outcome})")
        if outcome == _DENYLISTED:
            return error(AccessDenied, "Colab has barred this account from machines (outcome 5)")
        if status == 412:
            return error(
                NoCapacity, "Colab gives no machine: too many are in use, a usage limit, or no capacity"
            )
        if status == 400:
            return error(Rejected, "this account may not have a machine with this accelerator")
    return _of_status(error, answer, last, login, said)


def _is_bad(request: Mapping[str, Any]) -> bool:
    return bool(request.get("error")) or int(request.get("status") or 200) >= 400


def _is_unanswered(request: Mapping[str, Any]) -> bool:
    """Whether it asked for a machine, and may be given one although no answer says so."""
    is_failed = bool(request.get("error")) or int(request.get("status") or 200) >= 500
    return request.get("path") == ASSIGN and request.get("method") == "POST" and is_failed


def _is_assignment(request: Mapping[str, Any]) -> bool:
    """Whether it asked for a machine and was answered with a refusal."""
    return request.get("path") == ASSIGN and (
        request.get("outcome") is not None or int(request.get("status") or 200) >= 400
    )


def _of_login(make: Make, answer: Mapping[str, Any], last: Mapping[str, Any], login: str) -> BackendError:
    """The command line asks for a new login whatever the reason, also if Google did not answer."""
    status = int(last.get("status") or 0)
    if last.get("error") or status == 429 or status >= 500:
        return make(Transient, f"the login at Google cannot be renewed now: {last.get('error') or status}")
    if "InvalidGrantError" in answer.get("kinds", ()):
        return make(
            AccessDenied, f"Google does not take this code: it is wrong or too old; try again: {login}"
        )
    said = str(answer.get("message", ""))
    scopes = _SCOPES.search(said)
    if scopes is not None:
        lacks = [_RIGHTS.get(each, each) for each in lacking(scopes[1].split(), scopes[2].split())]
        if lacks:
            which = ", ".join(lacks)
            text = f"you agreed, but not to everything ({which}): run it again and leave every box ticked"
            return make(AccessDenied, f"{text} ({login})")
    if "access_denied" in said or "AccessDeniedError" in answer.get("kinds", ()):
        return make(AccessDenied, f"you refused: to use Colab, run it again and agree ({login})")
    if any(each in said for each in _POLICIES):
        advice = "ask them, or use another account"
        return make(AccessDenied, f"the administrator of this Google account does not allow it: {advice}")
    if "supply either code" in said:
        return make(AccessDenied, f"no code was pasted: try again: {login}")
    why = "Google refuses the login" if status else "nobody is logged in to Colab"
    if "EOFError" not in answer.get("kinds", ()):
        why = f"{why} ({answer.get('error')})"
    return make(AccessDenied, f"{why}; log in with: {login}")


def _of_status(
    make: Make, answer: Mapping[str, Any], last: Mapping[str, Any], login: str, said: str
) -> BackendError:
    status = int(last.get("status") or 0)
    if last.get("error"):
        return make(Transient, f"no answer from {last.get('host')}: {last['error']}")
    if status in (401, 403) and str(last.get("path", "")).startswith("/tun/"):
        return make(AccessDenied, f"Colab refuses this account ({status}); log in with: {login}")
    if status in (401, 403, 404) and "/api/" in str(last.get("path", "")):
        why = "is gone" if status == 404 else "no longer takes this token; the next call gets another"
        return make(Transient, f"the machine {why} ({status})")
    if status == 429 or status >= 500:
        return make(Transient, f"Colab answered {status}")
    if "JSONDecodeError" in answer.get("kinds", ()):
        return make(Transient, "Colab's answer is not JSON")
    return make(Rejected, f"Colab's command line failed: {said}")
