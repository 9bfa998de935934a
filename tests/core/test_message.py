"""What a receiver gets: words that no chat or terminal acts on, and fields that stay as they are."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.core.job import NoticeKind
from orchestrator.core.message import LISTED_MAX, REASON_CHARACTERS_MAX, digest, message
from orchestrator.core.notice import Notice, Outgoing
from tests.core.runs import NOW, RUN

FAILED = Notice(
    NoticeKind.FAILED, NOW, f"{RUN} failed at step 400 of 1,000", "`orchestrator logs tiny` shows its output",
    "ValueError: no", RUN, "tiny", "kaggle", "T4x2", f"{RUN}-s02", "", 400, 1000,
)  # fmt: skip


def test_a_message_says_what_happened_and_what_to_do_next() -> None:
    told = message("ab" * 16, FAILED)
    assert told.title == f"{RUN} failed at step 400 of 1,000"
    assert told.text == f"{told.title}: ValueError: no.\nNext: `orchestrator logs tiny` shows its output."
    assert told.severity == "failure"


def test_the_fields_are_an_interface() -> None:
    """Others' programs read them: add to them, never change one."""
    told = message("ab" * 16, FAILED)
    assert told.fields == {
        "version": 1, "delivery": "ab" * 16, "kind": "failed", "at": NOW, "time": "2026-09-21T14:13:20Z",
        "title": told.title, "text": told.text, "what": FAILED.what, "next": FAILED.advice,
        "reason": "ValueError: no", "run": RUN, "job": "tiny", "platform": "kaggle", "accelerator": "T4x2",
        "session": f"{RUN}-s02", "schedule": "", "step": 400, "steps": 1000,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("reason", "shown"),
    [
        ("\x1b[31mred\x1b[0m \x1b]0;title\x07end", "red end"),
        ("one\ntwo\r\n\tthree\0", "one two three"),
        ("@everyone and <!channel> <b>bold</b>", "@\u200beveryone and ‹!channel› ‹b›bold‹/b›"),
        ("[free](https://evil) ![x](y) `code`", "[free] (https://evil) ![x] (y) 'code'"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\ud800 alone", "alone"),
    ],
)
def test_hostile_words_are_made_harmless(reason: str, shown: str) -> None:
    told = message("ab" * 16, replace(FAILED, reason=reason))
    assert f": {shown}.\n" in told.text
    assert all(c.isprintable() or c in "\n\u200b" for c in told.text)
    assert json.loads(json.dumps(told.fields))["run"] == RUN
    assert not any(ord(c) < 32 and c != "\n" for c in told.fields["reason"])


def test_a_huge_reason_is_cut() -> None:
    told = message("ab" * 16, replace(FAILED, reason="\x1b" + "x" * 1_000_000))
    assert len(told.text) < 2 * REASON_CHARACTERS_MAX
    assert len(json.dumps(told.fields)) < 4 * REASON_CHARACTERS_MAX


def test_a_time_that_no_calendar_shows_is_null() -> None:
    assert message("ab" * 16, replace(FAILED, at=1e18)).fields["time"] is None


def test_a_digest_counts_all_and_lists_the_first() -> None:
    rows = [Outgoing(f"{n:032x}", "phone", replace(FAILED, run=f"tiny-{n}")) for n in range(999)]
    rows.append(Outgoing("f" * 32, "phone", replace(FAILED, kind=NoticeKind.QUOTA_LOW)))
    identity, one = digest(rows, NOW)
    told = message(identity, one)
    assert told.title == "1,000 notifications: 999 failed, 1 quota low"
    assert told.text.count("\n- ") == LISTED_MAX
    assert "and 980 more" in told.text
    assert told.fields["counts"] == {"failed": 999, "quota_low": 1}
    assert told.fields["more"] == 980
    assert [each["delivery"] for each in told.fields["notices"]] == [row.id for row in rows[:LISTED_MAX]]
    assert (told.kind, told.severity, len(told.text) < 4000) == ("digest", "failure", True)
    assert digest(rows, NOW + 60.0)[0] == identity, "the id depends on the rows alone"
    assert digest(rows[1:], NOW)[0] != identity
