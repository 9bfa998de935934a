"""A notice in the words and fields that a receiver gets: one notice, or a digest of many.

Decides what a message says, how long it may be, and what is made harmless: reasons come from sessions and
platforms, and a chat would act on some of their characters. Pure; must never know a service or an address.
The fields are an interface that docs/notifications.md describes: add to them, never change one.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from orchestrator.core.bounds import moment
from orchestrator.core.job import NoticeKind
from orchestrator.core.notice import Notice, Outgoing, delivery_id
from orchestrator.core.wording import count_text

VERSION = 1
DIGEST = "digest"
TEST = "test"
LISTED_MAX = 20  # notices in a digest, in full; the others are counted
REASON_CHARACTERS_MAX = 500
_BAD_NEWS = frozenset({NoticeKind.FAILED, NoticeKind.HELD, NoticeKind.SCHEDULE_MISSED})
_WARNINGS = frozenset({NoticeKind.WAITING, NoticeKind.QUOTA_LOW, NoticeKind.CANCELLED})
_TERMINAL = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)?|[ -/]*[0-~])")
_MENTION = re.compile(r"@(?=\w)")
# What makes a chat call somebody, link a text elsewhere, or end a quotation.
_QUOTED = str.maketrans({"<": "‹", ">": "›", "`": "'"})
_LINK = re.compile(r"\](?=[(\[])")


@dataclass(frozen=True)
class Digest:
    """Several notices in one message, because more came at once than anybody would read one by one.

    `listed` are the first ones, and the ids of their own rows; `counts` has all of them by kind.
    """

    at: float
    listed: tuple[Notice, ...]
    ids: tuple[str, ...]
    counts: tuple[tuple[str, int], ...]

    @property
    def count(self) -> int:
        return sum(number for _, number in self.counts)


@dataclass(frozen=True)
class Message:
    """What is sent. `text` is for people; `fields` are the body that programs get. `severity` is success,
    info, warning or failure. `id` is the same in every attempt."""

    id: str
    kind: str
    title: str
    text: str
    severity: str
    fields: dict[str, Any]


def digest(rows: Sequence[Outgoing], now: float) -> tuple[str, Digest]:
    """One message for all these rows, and its delivery id, which depends on the rows alone."""
    counts = Counter(row.notice.kind.value for row in rows)
    listed = rows[:LISTED_MAX]
    identity = delivery_id(DIGEST, *(row.id for row in rows))
    notices, ids = tuple(row.notice for row in listed), tuple(row.id for row in listed)
    return identity, Digest(now, notices, ids, tuple(sorted(counts.items())))


def message(identity: str, told: Notice | Digest) -> Message:
    """The message with this delivery id."""
    return _one(identity, told) if isinstance(told, Notice) else _many(identity, told)


def test_message(identity: str, target: str, now: float) -> Message:
    """What `notify test` sends."""
    what = f"A test of the target {target}: it works if you read this"
    fields = _head(identity, TEST, now, what, what)
    return Message(identity, TEST, what, what, "info", fields)


def _one(identity: str, notice: Notice) -> Message:
    reason = " ".join(harmless(notice.reason).split())
    title = quoted(notice.what)
    text = title + (f": {quoted(reason)}" if reason else "") + "."
    if notice.advice:
        text += f"\nNext: {notice.advice}."
    fields = _head(identity, notice.kind.value, notice.at, title, text) | _facts(notice)
    return Message(identity, notice.kind.value, title, text, _severity((notice.kind,)), fields)


def _many(identity: str, told: Digest) -> Message:
    counted = ", ".join(f"{number:,} {kind.replace('_', ' ')}" for kind, number in told.counts)
    title = f"{count_text(told.count, 'notification')}: {counted}"
    more = told.count - len(told.listed)
    lines = [f"- {quoted(notice.what)}" for notice in told.listed]
    lines += [f"and {more:,} more"] if more else []
    text = "\n".join([title, *lines, "Next: `orchestrator ps --all` lists the runs."])
    fields = _head(identity, DIGEST, told.at, title, text)
    fields["counts"] = dict(told.counts)
    fields["more"] = more
    fields["notices"] = [
        {"delivery": own, "kind": notice.kind.value} | _time(notice.at) | _facts(notice)
        for own, notice in zip(told.ids, told.listed, strict=True)
    ]
    return Message(identity, DIGEST, title, text, _severity([n.kind for n in told.listed]), fields)


def _head(identity: str, kind: str, at: float, title: str, text: str) -> dict[str, Any]:
    return {"version": VERSION, "delivery": identity, "kind": kind, **_time(at), "title": title, "text": text}


def _time(at: float) -> dict[str, Any]:
    known = moment(at)
    shown = None if known is None else datetime.fromtimestamp(known, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"at": known, "time": shown}


def _facts(notice: Notice) -> dict[str, Any]:
    """The fields are left in the words of their origin, but without characters that control anything."""
    return {
        "what": harmless(notice.what),
        "next": notice.advice,
        "reason": harmless(notice.reason),
        "run": notice.run,
        "job": notice.job,
        "platform": notice.platform,
        "accelerator": notice.accelerator,
        "session": notice.session,
        "schedule": notice.schedule,
        "step": notice.step,
        "steps": notice.steps,
    }


def _severity(kinds: Sequence[NoticeKind]) -> str:
    if _BAD_NEWS.intersection(kinds):
        return "failure"
    if _WARNINGS.intersection(kinds):
        return "warning"
    return "success" if NoticeKind.DONE in kinds else "info"


def harmless(text: str, characters_max: int = REASON_CHARACTERS_MAX) -> str:
    """The text on few characters, all of them printable: no terminal acts on it, and nothing in it reverses
    or hides what follows."""
    text = _TERMINAL.sub("", text[: 4 * characters_max])
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return shown if len(shown) <= characters_max else shown[: characters_max - 1] + "…"


def quoted(text: str) -> str:
    """The text on one line, as a chat may show it: it calls nobody, links nowhere and is no markup."""
    line = " ".join(harmless(text).split())
    return _LINK.sub("] ", _MENTION.sub("@\u200b", line.translate(_QUOTED)))
