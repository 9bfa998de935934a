"""Shows what leaves with a job and where it may go, before it does. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from orchestrator.cli.output import Output, size_text
from orchestrator.core.job import Job
from orchestrator.core.offer import Route, UntilKind
from orchestrator.freeze.leaving import Part

NAMES_SHOWN = 6


def document(job: Job, parts: Iterable[Part], route: Route) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "parts": [
            {
                "kind": part.kind, "name": part.name, "files": part.files, "bytes": part.size,
                "largest": [{"path": path, "bytes": size} for path, size in part.largest],
            }
            for part in parts
        ],
        "env": [name for name, _ in job.env],
        "secrets": list(job.secrets),
        "secrets_not_set": [name for name in job.secrets if name not in os.environ],
        "platforms": destinations(route),
    }  # fmt: skip


def destinations(route: Route) -> list[str]:
    """The platforms that may ever be given the job, the chosen one first."""
    taken = [choice.offer.platform for choice in (route.chosen, *route.others) if choice is not None]
    later = [each.platform for each in route.rejections if each.until.kind is not UntilKind.NEVER]
    return list(dict.fromkeys([*taken, *later]))


def show(out: Output, job: Job, parts: Iterable[Part], route: Route) -> None:
    """The table, and where it goes."""
    rows = [_row(part) for part in parts]
    if job.env:
        size = sum(len(value.encode()) for _, value in job.env)
        rows.append(("env", _some(name for name, _ in job.env), "", size_text(size), "shown by `show`"))
    rows += [("secret", name, "", "", _value_text(name)) for name in job.secrets]
    out.say()
    out.table(("LEAVES", "WHAT", "FILES", "SIZE", "LARGEST"), rows, right=frozenset({2, 3}))
    out.facts([("may go to", ", ".join(destinations(route)) or "no platform")])


def _value_text(secret: str) -> str:
    there = secret in os.environ
    return "its value, from the environment" if there else "not set here: export it before `submit`"


def _row(part: Part) -> tuple[str, str, str, str, str]:
    largest = [f"{path} {size_text(size)}" for path, size in part.largest]
    one = part.files == 1 and part.largest[0][0].endswith(part.name)
    return (
        part.kind,
        _near(part.name),
        f"{part.files:,}",
        size_text(part.size),
        "" if one else ", ".join(largest),
    )


def _near(name: str) -> str:
    """A path below this folder as one types it here."""
    path = Path(os.path.normpath(name))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else name


def _some(names: Iterable[str]) -> str:
    given = list(names)
    more = f" and {len(given) - NAMES_SHOWN} more" if len(given) > NAMES_SHOWN else ""
    return ", ".join(given[:NAMES_SHOWN]) + more
