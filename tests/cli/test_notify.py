"""A user is told what happens, and can see what they were not told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import CONFIG, Caller, caller
from tests.leaks import Leaks
from tests.receivers import webhook
from tests.waiting import wait_until

SECRET = "T0KEN-9f8e7d6c5b4a"
TARGETS = """
notify:
  - {name: phone, url: env:PHONE_URL, on: [done, failed]}
  - {name: chat, url: file:chat.txt, on: [failed]}
"""


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config(CONFIG + TARGETS)
        yield found


def test_a_user_is_told_of_the_end_of_a_run_whatever_the_receivers_do(user: Caller) -> None:
    with webhook(200, 500) as phone, webhook() as mine:
        given = {"PHONE_URL": f"{phone.url}?key={SECRET}", "MINE": f"{mine.url}?key={SECRET}"}
        answer = user("notify", "test", "phone", **given)  # type: ignore[arg-type]
        assert "phone: delivered after" in answer.out
        job = user.job(total=4)
        with (user.folder / job).open("a") as spec:
            spec.write("notify: {on: [done], url: env:MINE}\n")
        child = user.start("submit", job, "--follow", **given)  # type: ignore[arg-type]
        out, err = child.communicate(timeout=240.0)
        assert child.returncode == 0, err
        assert "to the address in MINE, from the controller" in out
        wait_until(
            lambda: len(phone.got) == 3 and mine.got, lambda: f"both to be told: {phone.ids} {mine.ids}"
        )
        wait_until(lambda: user.owner() is None, "the controller to leave when all are told")
    told = phone.got[-1]
    assert (told.fields["kind"], told.fields["step"], told.fields["steps"]) == ("done", 4, 4)
    assert phone.ids[1] == phone.ids[2] == told.fields["delivery"] != mine.ids[0]
    listed = user("notify", "list", "--all", "--json").json["notifications"]
    assert sorted((each["target"], each["state"], each["attempts"]) for each in listed) == [
        ("env:MINE", "sent", 1), ("phone", "sent", 2),
    ]  # fmt: skip
    leaks = Leaks({"address": SECRET})
    assert leaks.in_folder(user.home) == []
    assert leaks.in_text("said", out + err + answer.out + answer.err) == []


def test_what_is_not_delivered_is_said(user: Caller) -> None:
    """The address in a file is wrong, and the other is nowhere."""
    (user.home / "chat.txt").write_text(f"http://127.0.0.1:1/{SECRET}\n")
    answer = user("notify", "test", code=4)
    assert "chat: not delivered" in answer.out
    assert "its host refuses the connection" in answer.out
    assert "PHONE_URL is not set" in answer.out
    found = user("doctor", "--json", code=3).json["findings"]
    states = {each["what"]: each["state"] for each in found}
    assert (states["notify phone"], states["notify chat"]) == ("missing", "ok")
    assert user("notify", "list").out == "no notification waits, and none was given up\n"
    assert "0 notifications" in user("notify", "retry", "--all").out
    assert "ids" in user("notify", "retry", code=2).err
    assert "valid: phone, chat" in user("notify", "test", "fone", code=2).err
    assert SECRET not in answer.out + answer.err


def test_a_job_of_a_stranger_reaches_no_address_that_it_may_not_have(user: Caller) -> None:
    job = user.job()
    with (user.folder / job).open("a") as spec:
        spec.write("notify: {on: [done], url: env:AWS_SECRET_ACCESS_KEY}\n")
    refused = user("submit", job, code=2, AWS_SECRET_ACCESS_KEY=SECRET)
    assert "looks like your own login" in refused.err
    assert SECRET not in refused.err
