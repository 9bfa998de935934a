"""Who is told what: the `notify` of a job, and the targets of the config.

The one place that knows how they are written. Decides nothing about events: `orchestrator.core.notice` does.
No message repeats an address that somebody wrote where only a reference may stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from orchestrator.core.job import NoticeKind, Notify
from orchestrator.core.notice import Target
from orchestrator.spec.document import Path, Problem
from orchestrator.spec.fields import Name, Section, Words

_SECRET: dict[str, JsonValue] = {"writeOnly": True}
_WORDS = "because the address is a secret"
_EVERY = ", ".join(kind.value for kind in NoticeKind)
_OF_A_JOB = ", ".join(kind.value for kind in NoticeKind if kind is not NoticeKind.QUOTA_LOW)
DEFAULT_KINDS = (
    NoticeKind.DONE, NoticeKind.FAILED, NoticeKind.HELD, NoticeKind.WAITING, NoticeKind.QUOTA_LOW,
    NoticeKind.SCHEDULE_MISSED,
)  # fmt: skip

Variable = Annotated[str, Field(pattern=r"^env:[A-Za-z_][A-Za-z0-9_]*$", json_schema_extra=_SECRET)]
Reference = Annotated[
    str, Field(pattern=r"^(env:[A-Za-z_][A-Za-z0-9_]*|file:.+)$", json_schema_extra=_SECRET)
]
JobKind = Annotated[
    Literal["done", "failed", "cancelled", "held", "moved", "waiting", "schedule_missed"],
    Field(description=f"one of {_OF_A_JOB}"),
]
Kind = Annotated[
    Literal["done", "failed", "cancelled", "held", "moved", "waiting", "quota_low", "schedule_missed"],
    Field(description=f"one of {_EVERY}"),
]


class NotifySection(Section):
    """A job's own. It may not name a file: the job could be a stranger's, and the file is looked up later,
    by the controller."""

    on: list[JobKind] = Field(min_length=1, description=f"a list of {_OF_A_JOB}")
    url: Variable = Field(description=f"a reference, env:NAME, {_WORDS}")

    def build(self) -> Notify:
        return Notify(_kinds(self.on), self.url)


class TargetSection(Section):
    """One of the config's."""

    name: Name = Field(description="a name of your choice")
    url: Reference = Field(description=f"a reference, env:NAME or file:PATH, {_WORDS}")
    on: list[Kind] | None = Field(default=None, min_length=1, description=f"a list of {_EVERY}")
    jobs: Words | None = Field(default=None, description="names of jobs, or patterns such as graphmer-*")

    def build(self) -> NotifyTarget:
        on = DEFAULT_KINDS if self.on is None else _kinds(self.on)
        return NotifyTarget(Target(self.name, frozenset(on), tuple(self.jobs or ())), self.url)


@dataclass(frozen=True)
class NotifyTarget:
    """A target and the reference to its address."""

    target: Target
    url: str

    @property
    def name(self) -> str:
        return self.target.name


Targets = list[TargetSection]


def target_problems(given: object, path: Path) -> Iterator[Problem]:
    """Names that are given twice: messages wait for a target by its name."""
    seen: set[str] = set()
    for number, each in enumerate(given if isinstance(given, list) else ()):
        name = each.get("name") if isinstance(each, dict) else None
        if isinstance(name, str):
            if name in seen:
                yield Problem((*path, number, "name"), f"{name!r} is the name of another target")
            seen.add(name)


def _kinds(given: list[JobKind] | list[Kind]) -> tuple[NoticeKind, ...]:
    return tuple(dict.fromkeys(map(NoticeKind, given)))
