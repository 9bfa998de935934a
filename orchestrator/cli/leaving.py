"""Shows what would leave this machine with a job, and where it may go. Decides nothing."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from orchestrator.cli.output import Output
from orchestrator.client import LeftOut, Part, Plan
from orchestrator.core.wording import size_text

NAMES_SHOWN = 6
FILES_SHOWN, RULES_SHOWN, PATHS_SHOWN = 10, 12, 3
FILES_MAX = 1000


def document(plan: Plan) -> dict[str, Any]:
    """The table of `show` as JSON."""
    return {
        "parts": [
            {
                "kind": part.kind, "name": part.name, "files": part.files, "bytes": part.size,
                "largest": [{"path": path, "bytes": size} for path, size in part.largest],
            }
            for part in plan.leaves
        ],
        "source": _contents(plan),
        "fetched": [
            {
                "name": each.name, "from": each.source, "bytes": each.size, "files": each.files,
                "sha256": each.sha256, "cached": each.here,
            }
            for each in plan.fetched
        ],
        "env": [name for name, _ in plan.job.env],
        "secrets": list(plan.job.secrets),
        "secrets_not_set": list(plan.secrets_not_set),
        "notify": plan.job.notify,
        "platforms": list(plan.destinations),
        "opens_store": list(plan.opens_store),
    }  # fmt: skip


def _contents(plan: Plan) -> dict[str, Any]:
    """The source's files, the largest first, its links, and what stays here. Long lists are cut."""
    given = plan.contents
    return {
        "files": [{"path": path, "bytes": size} for path, size in given.files[:FILES_MAX]],
        "links": [{"path": path, "target": target} for path, target in given.links[:FILES_MAX]],
        "count": {"files": len(given.files), "links": len(given.links)},
        "left_out": [
            {"rule": each.rule, "paths": each.paths, "count": each.count, "default": each.default}
            for each in given.left_out
        ],
    }


def show(out: Output, plan: Plan) -> None:
    """Prints what leaves as a table, what of the source does and does not, and where it may go."""
    job = plan.job
    rows = [_row(part) for part in plan.leaves]
    if job.env:
        size = sum(len(value.encode()) for _, value in job.env)
        rows.append(("env", _some(name for name, _ in job.env), "", size_text(size), "shown by `show`"))
    not_set = plan.secrets_not_set
    rows += [("secret", name, "", "", _value_text(name, not_set)) for name in job.secrets]
    if job.notify is not None:
        where = f"to the address in {job.notify.url.removeprefix('env:')}, from the controller"
        rows.append(("notification", _some(job.notify.on), "", "", where))
    if plan.opens_store:
        where = f"only to {', '.join(plan.opens_store)}, to ship checkpoints (`uplink: true`)"
        rows.append(("credential", "of the home store", "", "", where))
    out.say()
    out.table(("LEAVES", "WHAT", "FILES", "SIZE", "LARGEST"), rows, right=frozenset({2, 3}))
    _show_fetched(out, plan)
    _show_source(out, plan)
    out.facts([("may go to", ", ".join(plan.destinations) or "no platform")])


def _show_fetched(out: Output, plan: Plan) -> None:
    """Where inputs come from, and what would have to be fetched for a submit."""
    if not plan.fetched:
        return
    rows = [
        (
            each.name, each.source, f"{each.files:,}",
            "unknown" if each.size is None else size_text(each.size),
            "in the cache" if each.here else "a submit fetches it",
            "not known yet" if each.sha256 is None else each.sha256[:12] + "…",
        )
        for each in plan.fetched
    ]  # fmt: skip
    out.say()
    out.table(("FETCHED", "FROM", "FILES", "SIZE", "NOW", "SHA256"), rows, right=frozenset({2, 3}))


def _show_source(out: Output, plan: Plan) -> None:
    files, links, left_out = plan.contents.files, plan.contents.links, plan.contents.left_out
    if not files and not left_out:
        return
    out.say()
    out.table(
        ("SENT", "SIZE"),
        [(path, size_text(size)) for path, size in files[:FILES_SHOWN]],
        right=frozenset({1}),
    )
    if more := files[FILES_SHOWN:]:
        size = size_text(sum(size for _, size in more))
        out.say(f"… and {len(more):,} more, {size} together; --json lists them")
    if links:
        out.say()
    shown = [f"{path} → {target}" for path, target in links[:FILES_SHOWN]]
    if more_links := len(links) - len(shown):
        shown.append(f"… and {more_links:,} more")
    out.facts([("link" if len(links) == 1 else "links", each) for each in shown])
    if left_out:
        out.say()
        rows = [(_paths(each), each.rule) for each in left_out[:RULES_SHOWN]]
        if more_rules := left_out[RULES_SHOWN:]:
            count = sum(each.count for each in more_rules)
            rows.append((f"{count:,} more", f"{len(more_rules):,} further rules; --json lists them"))
        out.table(("STAYS HERE", "WHICH RULE"), rows)
    out.say()


def _paths(each: LeftOut) -> str:
    more = f" and {each.count - PATHS_SHOWN:,} more" if each.count > PATHS_SHOWN else ""
    return ", ".join(each.paths[:PATHS_SHOWN]) + more


def _value_text(secret: str, not_set: Collection[str]) -> str:
    return (
        "its value, from the environment"
        if secret not in not_set
        else "not set here: export it before `submit`"
    )


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
    """A path relative to the current folder if it lies below it, else unchanged."""
    path = Path(os.path.normpath(name))
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_absolute() and path.is_relative_to(here) else name


def _some(names: Iterable[str]) -> str:
    given = list(names)
    more = f" and {len(given) - NAMES_SHOWN} more" if len(given) > NAMES_SHOWN else ""
    return ", ".join(given[:NAMES_SHOWN]) + more
