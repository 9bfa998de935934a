"""One attempt to send, to real receivers on loopback: which answers count, and that no word of the address
gets out."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from orchestrator import sending
from orchestrator.core.delivery import Answer
from orchestrator.core.job import NoticeKind
from orchestrator.core.message import Message, message
from orchestrator.core.notice import Notice
from orchestrator.installation import found
from orchestrator.sending import services, webhook
from tests.core.runs import NOW, RUN
from tests.leaks import Leaks
from tests.receivers import DRIP, HANG, LOSE, Item, mail_server
from tests.receivers import webhook as receiver
from tests.waiting import wait_until

# apprise imports it where Python has it.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr' is deprecated:DeprecationWarning")
SECRET = "T0KEN-9f8e7d6c5b4a"
ID = "ab" * 16
HOSTILE = "\x1b[31m <b>no</b> @everyone"


def told() -> Message:
    notice = Notice(NoticeKind.FAILED, NOW, f"{RUN} failed", "look at it", HOSTILE, RUN, "tiny")
    return message(ID, notice)


@pytest.mark.parametrize(
    ("item", "answer", "words"),
    [
        (200, Answer.SENT, "200 OK"),
        (204, Answer.SENT, "204"),
        (500, Answer.LATER, "500 Internal Server Error"),
        (503, Answer.LATER, "503"),
        (429, Answer.LATER, "429"),
        (408, Answer.LATER, "408"),
        (404, Answer.NEVER, "404 Not Found; check the address"),
        (410, Answer.NEVER, "410"),
        (401, Answer.NEVER, "401"),
        (599, Answer.LATER, "599"),
        (LOSE, Answer.LATER, "may have arrived"),
    ],
)
def test_a_webhooks_answer_is_judged_by_its_status(item: Item, answer: Answer, words: str) -> None:
    with receiver(item) as server:
        found = sending.send(f"{server.url}?key={SECRET}", told())
    assert (found.answer, words in found.said) == (answer, True), found
    assert SECRET not in found.said
    [got] = server.got
    assert got.id == got.fields["delivery"] == ID
    assert got.path == f"/hook?key={SECRET}"
    assert got.fields == told().fields


def test_a_webhook_may_need_a_login() -> None:
    with receiver() as server:
        found = sending.send(server.url.replace("://", "://me:p%40ss@"), told())
    assert found.answer is Answer.SENT
    assert server.got[0].headers["Authorization"] == "Basic bWU6cEBzcw=="


@pytest.mark.parametrize(("scheme", "answer"), [("http", Answer.NEVER), ("json", Answer.LATER)])
def test_a_redirect_is_not_followed(scheme: str, answer: Answer) -> None:
    with receiver() as elsewhere, receiver((307, {"Location": elsewhere.url})) as server:
        found = sending.send(server.url.replace("http", scheme, 1), told())
    assert found.answer is answer
    assert elsewhere.got == []


@pytest.mark.parametrize(
    ("text", "seconds"), [("120", 120.0), ("soon", None), ("-1", -1.0), ("1e999", None), ("nan", None)]
)
def test_a_receiver_may_ask_for_a_pause(text: str, seconds: float | None) -> None:
    with receiver((429, {"Retry-After": text})) as server:
        assert sending.send(server.url, told()).wait_seconds == seconds


def test_a_receiver_may_ask_for_a_date() -> None:
    with receiver((503, {"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"})) as server:
        asked = sending.send(server.url, told()).wait_seconds
    assert asked is not None
    assert asked > 1e9


@pytest.mark.parametrize("item", [HANG, DRIP])
def test_a_receiver_that_does_not_come_to_an_end_is_left(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook, "WHOLE_SECONDS", 0.5)
    with receiver(item) as server:
        found = sending.send(server.url, told())
    assert found.answer is Answer.LATER
    assert "may have arrived" in found.said


@pytest.mark.parametrize(
    "address",
    ["", SECRET, "http://", "http://[", f"http://h:99999/{SECRET}", f"http://a b/{SECRET}",
     f"https://h/{SECRET}\r\nX: y", f"nosuch://{SECRET}", f"http://127.0.0.1:1/{SECRET}",
     f"https://127.0.0.1:1/{SECRET}", f"json://127.0.0.1:1/{SECRET}", f"slack://{SECRET}",
     f"https://hooks.slack.com/{SECRET}", f"mailto://me:{SECRET}@127.0.0.1:1?to=a@example.org&mode=insecure"],
)  # fmt: skip
def test_a_wrong_address_is_said_without_repeating_it(
    address: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    found = sending.send(address, told())
    assert found.answer is Answer.LATER
    assert found.said
    leaks = Leaks({"address": SECRET})
    said = (found.said, caplog.text, *capfd.readouterr())
    assert [leak for text in said for leak in leaks.in_text("said", text)] == []


@pytest.mark.parametrize(
    ("address", "apprise"),
    [("https://example.org/hook", False), ("http://10.0.0.1:8080/", False), ("HTTPS://example.org", False),
     ("https://hooks.slack.com/services/a/b/c", True), ("https://discord.com/api/webhooks/1/x", True),
     ("https://canary.discord.com/api/webhooks/1/x", True), ("https://ntfy.sh/topic", True),
     ("https://x.webhook.office.com/y", True), ("mailto://a@b", True), ("ntfy://topic", True),
     ("https://example.org/hooks.slack.com/", False), ("https://hooks.slack.com.example.org/", False)],
)  # fmt: skip
def test_the_address_says_who_carries_it(address: str, apprise: bool) -> None:
    assert sending.needs_apprise(address) is apprise


@pytest.mark.parametrize("code", [404, 429, 500])
def test_through_apprise_every_failure_may_pass(code: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver(code) as server:
        found = sending.send(f"json://127.0.0.1:{server.port}/{SECRET}", told())
    assert (found.answer, str(code) in found.said) == (Answer.LATER, True)
    assert server.ids == [ID]
    assert SECRET not in found.said + caplog.text


def test_apprise_puts_the_id_into_header_and_body(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver() as server:
        assert sending.send(f"json://127.0.0.1:{server.port}/{SECRET}", told()).answer is Answer.SENT
    [got] = server.got
    assert (got.id, got.fields["delivery"], got.fields["type"]) == (ID, ID, "failure")
    assert f"delivery {ID}" in got.fields["message"]
    assert SECRET not in caplog.text
    assert "\x1b" not in got.fields["message"]


def test_apprise_sends_mail() -> None:
    with mail_server("451 later") as server:
        first, second = (sending.send(server.url, told()) for _ in range(2))
    assert (first.answer, second.answer) == (Answer.LATER, Answer.SENT)
    assert [mail["X-Delivery-Id"] for mail in server.got] == [ID, ID]
    assert f"{RUN} failed" in str(server.got[1]["Subject"])
    text = server.got[1].as_string()
    assert "<b>no</b>" not in text


def test_two_targets_are_sent_to_at_a_time() -> None:
    """apprise sends in our threads, not in a pool of its own that a hanging receiver could fill."""
    with receiver(HANG) as slow, receiver() as quick:
        hanging = threading.Thread(
            target=sending.send, args=(f"json://127.0.0.1:{slow.port}/?rto=60", told()), daemon=True
        )
        before = set(threading.enumerate())
        hanging.start()
        wait_until(lambda: slow.got, "the message to arrive")
        assert sending.send(f"json://127.0.0.1:{quick.port}/", told()).answer is Answer.SENT
        assert hanging.is_alive()
        threads = {each.name for each in set(threading.enumerate()) - before}
        assert not [name for name in threads if name.startswith("ThreadPoolExecutor")]


def test_without_apprise_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    for attempt in (lambda: sending.trouble("slack://x"), lambda: sending.send("slack://x", told()).said):
        said: Callable[[], str] = attempt
        assert said() == f"needs the package apprise: {found().adding('notify')}"
    assert sending.trouble("https://example.org/hook") == ""


@pytest.mark.parametrize(
    ("address", "carried"),
    [
        ("json://h/x", "json://h/x?+X-Delivery-Id=ab&:delivery=ab&cto=10&rto=20"),
        ("json://h/x?method=put", "json://h/x?method=put&+X-Delivery-Id=ab&:delivery=ab&cto=10&rto=20"),
        ("mailto://h?to=a@b&RTO=5", "mailto://h?to=a@b&RTO=5&+X-Delivery-Id=ab&cto=10"),
        ("ntfy://topic", "ntfy://topic?cto=10&rto=20"),
        ("https://hooks.slack.com/services/x", "https://hooks.slack.com/services/x"),
    ],
)
def test_the_id_goes_where_the_service_has_a_place_for_it(address: str, carried: str) -> None:
    assert services.with_delivery_id(address, "ab").replace("%2B", "+") == carried
