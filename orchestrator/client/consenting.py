"""Asks a person once, in their browser, to let this machine use their Google Drive, and takes the token.

This is the flow for installed programs (RFC 8252, with PKCE of RFC 7636): Google sends the browser back to a
port of this machine. If the browser runs elsewhere, as over SSH, the person pastes the address that it was
sent to. Must never write a file or print a secret; what it returns is the caller's to keep.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import select
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, HTTPServer
from secrets import token_urlsafe
from typing import Any

from orchestrator.clock import Clock
from orchestrator.core import bounds
from orchestrator.errors import AccessDenied, InputError, Transient

SCOPE = "https://www.googleapis.com/auth/drive.file"  # only what this program itself has made
AUTHORITY = "https://accounts.google.com/o/oauth2/v2/auth"
TOKENS = "https://oauth2.googleapis.com/token"
CONSOLE = "https://console.cloud.google.com/auth/clients"
AUDIENCE = "https://console.cloud.google.com/auth/audience"
ANSWER_BYTES_MAX = 65536
ANSWER_SECONDS = 30.0
SAID_BYTES_MAX = 200
# What another try does not change (RFC 6749 §5.2, and Google's own). Other refusals pass, as rate limits do.
_FINAL = frozenset({
    "access_denied", "admin_policy_enforced", "deleted_client", "disabled_client", "invalid_client",
    "invalid_grant", "invalid_request", "invalid_scope", "org_internal", "redirect_uri_mismatch",
    "unauthorized_client", "unsupported_grant_type",
})  # fmt: skip
_REQUEST_SECONDS = 2.0  # a browser may open a connection and say nothing
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PAGE = "<!doctype html><meta charset=utf-8><title>orchestrator</title><p>{}"


@dataclass(frozen=True)
class Application:
    """The user's own OAuth client, as Google's console gives it."""

    id: str
    secret: str = field(repr=False)
    authority: str = AUTHORITY
    tokens: str = TOKENS

    @classmethod
    def from_json(cls, text: str, file: str) -> Application:
        """Reads a client_secrets.json. Raises InputError that says which file to get instead."""
        advice = f"make a client of the type `Desktop app` at {CONSOLE} and download its JSON"
        try:
            tree = json.loads(text)
        except ValueError:
            raise InputError(f"{file} is not JSON: {advice}") from None
        if isinstance(tree, dict) and "web" in tree:
            raise InputError(f"{file} is of a web application, which cannot be used here: {advice}")
        if isinstance(tree, dict) and tree.get("type") == "service_account":
            raise InputError(f"{file} is the key of a service account: give it as --service-account")
        found = tree.get("installed") if isinstance(tree, dict) else None
        names = ("client_id", "client_secret")
        if not isinstance(found, dict) or not all(isinstance(found.get(name), str) for name in names):
            raise InputError(f"{file} is not the file of an OAuth client: {advice}")
        made = cls(
            found["client_id"],
            found["client_secret"],
            str(found.get("auth_uri") or AUTHORITY),
            str(found.get("token_uri") or TOKENS),
        )
        for address in (made.authority, made.tokens):
            _check_address(address, file)
        return made


@dataclass(frozen=True)
class Grant:
    """What Google gave. `lasts_seconds`: when the consent ends by itself, as for an app in testing."""

    refresh_token: str = field(repr=False)
    access_token: str = field(repr=False)
    lasts_seconds: float | None = None


class ConsentOver(AccessDenied):
    """The code or the token does not count any more: the person has to agree again."""


def consent(
    application: Application,
    clock: Clock,
    show: Callable[[str], None],
    *,
    seconds: float,
    pasted: int | None = None,
    wrong: Callable[[str], None] = lambda _text: None,
) -> Grant:
    """Waits until the person has agreed. `show` gets the address to open. `pasted`: a file descriptor from
    which the address or the code is read, too; `wrong` is told about lines that are neither. Raises
    AccessDenied if the person or Google refuses."""
    state, verifier = token_urlsafe(24), token_urlsafe(48)
    with _Waiting(state) as waiting:
        show(_question(application, waiting.address, state, verifier))
        code = _code(waiting, clock, seconds, pasted, wrong)
        told = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": waiting.address,
            "code_verifier": verifier,
            "client_id": application.id,
            "client_secret": application.secret,
        }
    return _grant(_asked(application.tokens, told))


def refresh(application: Application, token: str) -> None:
    """Asks for an access token, as the store will. Raises ConsentOver if the person has to agree again, and
    AccessDenied if Google refuses the OAuth client."""
    told = {"grant_type": "refresh_token", "refresh_token": token}
    _asked(application.tokens, {**told, "client_id": application.id, "client_secret": application.secret})


def _check_address(address: str, file: str) -> None:
    parts = urllib.parse.urlsplit(address)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise InputError(f"{file} has an address without https: download it again at {CONSOLE}")


def _question(application: Application, back: str, state: str, verifier: str) -> str:
    digest = hashlib.sha256(verifier.encode()).digest()
    asked = {
        "client_id": application.id,
        "redirect_uri": back,
        "response_type": "code",
        "scope": SCOPE,
        "access_type": "offline",  # so that a refresh token comes
        "prompt": "consent",  # and comes again if this account has agreed before
        "state": state,
        "code_challenge": base64.urlsafe_b64encode(digest).decode().rstrip("="),
        "code_challenge_method": "S256",
    }
    return f"{application.authority}?{urllib.parse.urlencode(asked)}"


class _Waiting:
    """A server on a port of this machine that waits for the browser to come back."""

    def __init__(self, state: str) -> None:
        self.answer: Mapping[str, str] | None = None
        self._state = state
        waiting = self

        class Handler(BaseHTTPRequestHandler):
            timeout = _REQUEST_SECONDS

            def do_GET(self) -> None:
                text, code = waiting.take(urllib.parse.urlsplit(self.path).query)
                data = _PAGE.format(text).encode()
                self.send_response(code)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Connection", "close")
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                """The address holds the code, so nothing is logged."""

        class Server(HTTPServer):
            def handle_error(self, *_: object) -> None:
                """A browser that hangs up is no trouble."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.server.timeout = 0
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> _Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.server_close()

    def take(self, query: str) -> tuple[str, int]:
        """Accepts an answer to this very question, and no other. Returns what to tell the browser."""
        given = dict(urllib.parse.parse_qsl(query))
        if given.get("state") != self._state or not given.keys() & {"code", "error"}:
            return "This is not the answer that is waited for.", 400
        self.answer = self.answer or given
        if "code" in given:
            return "Done. You can close this tab and go back to the terminal.", 200
        return "Access was not given. Go back to the terminal.", 200

    def paste(self, line: bytes) -> str:
        """Takes a pasted address or code. Returns why it is neither, or nothing."""
        text = line.decode("utf-8", "replace").strip().strip("'\"")
        if "?" in text or "code=" in text or "error=" in text:
            query = text.partition("?")[2] or text
            _, code = self.take(query)
            return "" if code == 200 else "that is not the address that Google sent the browser to; try again"
        if not text or any(character.isspace() for character in text):
            return "paste the whole address of the page, or its code"
        self.answer = {"code": urllib.parse.unquote(text)}
        return ""


def _code(
    waiting: _Waiting, clock: Clock, seconds: float, pasted: int | None, wrong: Callable[[str], None]
) -> str:
    ends = clock.monotonic() + seconds
    sources: list[Any] = [waiting.server, *([] if pasted is None else [pasted])]
    typed = b""
    while waiting.answer is None:
        left = ends - clock.monotonic()
        if left <= 0:
            raise AccessDenied(f"nobody agreed within {seconds:.0f} s; try again, with --timeout for longer")
        ready, _, _ = select.select(sources, [], [], left)
        if waiting.server in ready:
            waiting.server.handle_request()
        if pasted is not None and pasted in ready:
            data = os.read(pasted, 4096)
            if not data:
                sources.remove(pasted)
            *lines, typed = (typed + (data or b"\n")).split(b"\n")
            for line in lines:
                if line.strip() and waiting.answer is None and (problem := waiting.paste(line)):
                    wrong(problem)
    return _agreed(waiting.answer)


def _agreed(answer: Mapping[str, str]) -> str:
    error = answer.get("error")
    if error is not None:
        raise _refusal(error)
    return answer["code"]


def _asked(address: str, told: Mapping[str, str]) -> Mapping[str, Any]:
    """Google's answer as JSON. No message repeats what was sent."""
    data = urllib.parse.urlencode(told).encode()
    request = urllib.request.Request(address, data=data, method="POST")
    host = urllib.parse.urlsplit(address).hostname
    try:
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
                code, body = answer.status, answer.read(ANSWER_BYTES_MAX)
        except urllib.error.HTTPError as refusal:
            with refusal:
                code, body = refusal.code, refusal.read(ANSWER_BYTES_MAX)
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise Transient(f"{host} did not answer ({reason}): check the network and try again") from None
    except HTTPException:  # such as a server of another protocol at this port
        raise Transient(f"{host} does not answer as a web server: check the address {address}") from None
    try:
        tree = json.loads(body)
    except ValueError:
        tree = None
    given = tree.get("error") if isinstance(tree, dict) else None
    said = given if isinstance(given, str) else ""
    if not isinstance(tree, dict) or (code >= 400 and said not in _FINAL):
        more = f" ({bounds.text(said, SAID_BYTES_MAX)})" if said else ""
        raise Transient(f"{host} answered {code}{more} without a token: try again later")
    if said:
        raise _refusal(said)
    return tree


def _refusal(error: str) -> AccessDenied:
    match error:
        case "invalid_client" | "unauthorized_client" | "deleted_client" | "disabled_client":
            text = f"Google does not know this OAuth client, or its secret is wrong: download it at {CONSOLE}"
        case "invalid_grant":
            return ConsentOver("the code was used before or is too old: run the command again")
        case "access_denied":
            text = (
                "you refused access to Drive: run the command again and agree. If Google says that the app "
                f"is being tested, add your address as a test user at {AUDIENCE}, or publish the app there"
            )
        case "admin_policy_enforced" | "org_internal":
            text = (
                "the administrator of this Google account does not allow this OAuth client: ask them, use "
                f"another account, or make a client of your own at {CONSOLE}"
            )
        case "redirect_uri_mismatch":
            text = f"the OAuth client is not of the type `Desktop app`: make one at {CONSOLE}"
        case _:
            said = bounds.text(error, SAID_BYTES_MAX)
            text = f"Google refused: {said}; check the OAuth client at {CONSOLE}"
    return AccessDenied(text)


def _grant(tree: Mapping[str, Any]) -> Grant:
    scopes = tree.get("scope")
    if isinstance(scopes, str) and SCOPE not in scopes.split():
        raise AccessDenied(
            "you agreed, but not to everything (Drive): run the command again and leave every box ticked"
        )
    refresh, access = tree.get("refresh_token"), tree.get("access_token")
    if not isinstance(refresh, str) or not refresh or not isinstance(access, str):
        raise AccessDenied(
            "Google gave no token that can be refreshed: remove the app at "
            "https://myaccount.google.com/connections and run the command again"
        )
    lasts = tree.get("refresh_token_expires_in")
    return Grant(refresh, access, float(lasts) if isinstance(lasts, int | float) and lasts > 0 else None)
