"""Asking for access to Drive: a browser that comes back, a person who pastes, and everybody who disturbs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from orchestrator.client.consenting import SCOPE, Application, ConsentOver, Grant, consent, refresh
from orchestrator.clock import SystemClock
from orchestrator.errors import AccessDenied, InputError, OrchestratorError, Transient
from tests.stand_ins.no_web import no_web_server
from tests.waiting import PATIENCE

GIVEN = {"access_token": "ya29.a", "refresh_token": "1//r", "expires_in": 3599, "scope": SCOPE}
SECRET = "GOCSPX-not-a-real-one"


@dataclass
class Google:
    """The token endpoint: what it will answer, and what it was asked."""

    address: str = ""
    code: int = 200
    answer: object = field(default_factory=lambda: dict(GIVEN))
    asked: list[dict[str, str]] = field(default_factory=list)

    @property
    def application(self) -> Application:
        told = {"installed": {"client_id": "me", "client_secret": SECRET, "token_uri": self.address}}
        return Application.from_json(json.dumps(told), "client_secrets.json")

    def grant(
        self, act: Callable[[str], object], seconds: float = PATIENCE, pasted: int | None = None
    ) -> Grant:
        """Asks for consent while `act` does, in another thread, what the browser or the person does."""
        threads: list[Thread] = []

        def show(address: str) -> None:
            threads.append(Thread(target=act, args=(address,)))
            threads[0].start()

        try:
            return consent(self.application, SystemClock(), show, seconds=seconds, pasted=pasted)
        finally:
            for thread in threads:
                thread.join()


@pytest.fixture
def google() -> Iterator[Google]:
    made = Google()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            made.asked.append(dict(urllib.parse.parse_qsl(body)))
            data = made.answer.encode() if isinstance(made.answer, str) else json.dumps(made.answer).encode()
            self.send_response(made.code)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        made.address = f"http://127.0.0.1:{server.server_port}/token"
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield made
        server.shutdown()


def question(address: str) -> dict[str, str]:
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))


def come_back(address: str, **answer: str) -> int:
    """The browser follows Google's redirect. Returns the status that it gets."""
    asked = question(address)
    told = {"state": asked["state"], "code": "4/0Aabc", **answer}
    try:
        with urllib.request.urlopen(f"{asked['redirect_uri']}/?{urllib.parse.urlencode(told)}") as page:
            return int(page.status)
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code


def test_the_browser_comes_back_and_the_token_is_exchanged(google: Google) -> None:
    asked: list[dict[str, str]] = []

    def agree(address: str) -> None:
        asked.append(question(address))
        come_back(address)

    grant = google.grant(agree)
    assert (grant.refresh_token, grant.lasts_seconds) == ("1//r", None)
    assert "1//r" not in repr(grant)
    [told] = asked
    assert (told["scope"], told["access_type"], told["code_challenge_method"]) == (SCOPE, "offline", "S256")
    assert SECRET not in json.dumps(told)
    [exchange] = google.asked
    digest = hashlib.sha256(exchange["code_verifier"].encode()).digest()
    assert told["code_challenge"] == base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert exchange["code"] == "4/0Aabc"
    assert exchange["redirect_uri"] == told["redirect_uri"]
    assert exchange["client_secret"] == SECRET


def test_nobody_else_can_answer(google: Google) -> None:
    """A page or program that knows the port, a browser that asks for an icon, and one that says nothing."""
    codes: list[int] = []

    def disturb(address: str) -> None:
        back = urllib.parse.urlsplit(question(address)["redirect_uri"])
        assert back.port is not None
        silent = socket.create_connection((str(back.hostname), back.port))
        with silent:
            codes.append(come_back(address, state="guessed", code="theirs"))
        codes.append(come_back(address, state="", code="theirs"))
        with pytest.raises(urllib.error.HTTPError) as refusal:
            urllib.request.urlopen(f"{back.geturl()}/favicon.ico")
        refusal.value.close()
        codes.append(come_back(address))

    google.grant(disturb)
    assert codes == [400, 400, 200]
    assert [each["code"] for each in google.asked] == ["4/0Aabc"]


@pytest.mark.parametrize(
    "paste",
    [
        lambda told: f"{told['redirect_uri']}/?state={told['state']}&code=4%2F0Apasted&scope=x\n",
        lambda _told: "4/0Apasted\n",
        lambda _told: "4%2F0Apasted\n",
        lambda told: (
            f"\nhttp://127.0.0.1:1/?state=old&code=x\n  {told['redirect_uri']}/?state={told['state']}"
            "&code=4/0Apasted  \n"
        ),
        lambda _told: "4/0Apasted",  # the end of the input ends the line
    ],
)
def test_over_ssh_the_address_or_the_code_is_pasted(
    google: Google, paste: Callable[[dict[str, str]], str]
) -> None:
    reads, writes = os.pipe()

    def act(address: str) -> None:
        os.write(writes, paste(question(address)).encode())
        os.close(writes)

    google.grant(act, pasted=reads)
    os.close(reads)
    assert [each["code"] for each in google.asked] == ["4/0Apasted"]


def test_without_an_input_the_browser_is_waited_for(google: Google) -> None:
    reads, writes = os.pipe()
    os.close(writes)
    assert google.grant(come_back, pasted=reads).refresh_token == "1//r"
    os.close(reads)


def test_nobody_agrees_in_time(google: Google) -> None:
    with pytest.raises(AccessDenied, match="nobody agreed within"):
        google.grant(lambda _address: None, seconds=0.2)
    assert google.asked == []


def test_a_person_who_refuses_is_told_what_to_do(google: Google) -> None:
    with pytest.raises(AccessDenied, match="test user"):
        google.grant(lambda address: come_back(address, error="access_denied"))
    assert google.asked == []


REFUSALS: dict[str, tuple[int, object, type[OrchestratorError], str]] = {
    "wrong secret": (401, {"error": "invalid_client"}, AccessDenied, "does not know this OAuth client"),
    "old code": (400, {"error": "invalid_grant"}, AccessDenied, "used before or is too old"),
    "other type": (400, {"error": "redirect_uri_mismatch"}, AccessDenied, "Desktop app"),
    "a page": (502, "<html>bad gateway</html>", Transient, "answered 502"),
    "nothing": (200, "", Transient, "without a token"),
    "an error as JSON": (503, {"error": "backendError"}, Transient, "answered 503"),
    "no refresh": (
        200,
        {"access_token": "a", "scope": SCOPE},
        AccessDenied,
        "no token that can be refreshed",
    ),
    "box not ticked": (200, {**GIVEN, "scope": "openid"}, AccessDenied, "every box ticked"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_what_google_refuses_is_told_without_secrets(
    google: Google, refusal: tuple[int, object, type[OrchestratorError], str]
) -> None:
    google.code, google.answer, error, text = refusal
    with pytest.raises(error, match=text) as told:
        google.grant(come_back)
    assert SECRET not in str(told.value)
    assert "4/0Aabc" not in str(told.value)


def test_an_app_in_testing_is_recognised(google: Google) -> None:
    google.answer = {**GIVEN, "refresh_token_expires_in": 604799}
    assert google.grant(come_back).lasts_seconds == 604799


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        (400, {"error": "invalid_grant"}, ConsentOver),
        (401, {"error": "invalid_client"}, AccessDenied),
        (429, {"error": "rate_limit_exceeded"}, Transient),
        (403, {"error": {"code": 403, "message": "quota"}}, Transient),
        (403, {"error": "quota"}, Transient),
        (408, {}, Transient),
    ],
)
def test_only_an_ended_consent_asks_the_person_again(
    google: Google, code: int, answer: object, error: type[OrchestratorError]
) -> None:
    google.code, google.answer = code, answer
    with pytest.raises(error) as told:
        refresh(google.application, "1//r")
    assert type(told.value) is error


def test_a_server_of_another_protocol_is_told() -> None:
    with no_web_server() as address, pytest.raises(Transient, match="does not answer as a web server"):
        refresh(Application("me", SECRET, tokens=f"{address}/token"), "1//r")


def test_google_that_cannot_be_reached_is_told(google: Google) -> None:
    google.address = "http://127.0.0.1:9/token"
    with pytest.raises(Transient, match=r"127\.0\.0\.1 did not answer"):
        google.grant(come_back)


FILES: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "is not JSON"),
    "a list": ("[]", "is not the file of an OAuth client"),
    "web": ('{"web": {"client_id": "a", "client_secret": "b"}}', "web application"),
    "service account": ('{"type": "service_account"}', "--service-account"),
    "no secret": ('{"installed": {"client_id": "a"}}', "is not the file of an OAuth client"),
    "not encrypted": (
        '{"installed": {"client_id": "a", "client_secret": "b", "token_uri": "http://example.org/token"}}',
        "without https",
    ),
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES)
def test_another_file_is_refused_with_the_one_to_get(file: tuple[str, str]) -> None:
    text, told = file
    with pytest.raises(InputError, match=told):
        Application.from_json(text, "client_secrets.json")
