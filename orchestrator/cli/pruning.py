"""`prune`: shows what is no longer needed, asks, and removes it.

Without a terminal and without `--yes` it only shows.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping

from orchestrator.cli.call import Call, Exit, worst
from orchestrator.client import grammar, interrupt
from orchestrator.client.pruning import Pruned, PrunePlan, Surplus
from orchestrator.core.wording import count_text, size_text
from orchestrator.errors import InputError, OrchestratorError, Remedy, remedy

STRANGE_SHOWN = 10


def prune(call: Call) -> int:
    """Plans, shows, asks and removes. The exit code reports what could not be checked or removed."""
    plan = _plan(call)
    _show(call, plan)
    wanted = not call.options.dry_run and plan.count > 0
    if not (wanted and _consents(call, plan)):
        _document(call, plan, None)
        if plan.count:
            call.out.say("\nNothing was removed. Run it with --yes to remove this.")
        return _code(plan.troubles)
    with interrupt.noticed() as away, _bar(call, plan.count) as step:
        pruned = call.client.prune(plan, stopped=lambda: away.seen, progress=step)
    _document(call, plan, pruned)
    _tell(call, plan, pruned)
    if pruned.interrupted:
        return Exit.INTERRUPTED
    return _code({**plan.troubles, **pruned.troubles}, failed=bool(pruned.failed))


def _plan(call: Call) -> PrunePlan:
    options = call.options
    if options.keep < 0:
        raise InputError(f"--keep {options.keep}: give a number of runs, 0 or more")
    seconds = _seconds(options.older_than)
    with _status(call) as say:
        return call.client.prune_plan(
            older_than_seconds=seconds,
            keep=options.keep,
            unknown=options.unknown,
            checkpoints=options.checkpoints,
            history=options.history,
            progress=say,
        )


def _seconds(text: str) -> float:
    try:
        return grammar.seconds(text)
    except InputError:
        raise InputError(
            f"--older-than {text!r} is not an age; give 0 or an age such as 90m, 12h, 30d"
        ) from None


# --- Shown, and asked -------------------------------------------------------------------------------------


def _show(call: Call, plan: PrunePlan) -> None:
    rows = [(row.what, f"{row.count:,}", _size(row.size), row.why) for row in plan.goes]
    if rows:
        total = ("total", f"{plan.count:,}", _size(plan.size), "")
        headers = ("WHAT", "COUNT", "SIZE", "WHY IT CAN GO")
        call.out.table(headers, [*rows, total], right=frozenset({1, 2}))
    else:
        call.out.say("Nothing to remove.")
    call.out.say()
    call.out.facts([
        *(("kept", f"{row.what}: {row.count:,}, {_size(row.size)}: {row.why}") for row in plan.stays),
        ("kept", _results_text(plan)),
        *(("kept", f"checkpoints of {each.run}: {each.trouble}") for each in plan.surplus if each.trouble),
        *(("kept", _unknown_text(each)) for each in plan.surplus if each.unknown),
        *(("not ours", f"{path}: {what}") for path, what in _first(plan.strange)),
        *(("no answer", f"{name}: {error}") for name, error in plan.troubles.items()),
    ])  # fmt: skip


def _results_text(plan: PrunePlan) -> str:
    """Says that the checkpoints, the results of runs, stay; and which option removes them."""
    if not plan.finished_runs:
        return ""
    size = plan.finished_bytes - sum(each.size for each in plan.surplus)
    why = "they are the results; --checkpoints removes all but the newest and the best"
    if plan.policy.checkpoints:
        why = "the newest and the best of each run, and all of the runs that ended recently"
    return f"checkpoints of {count_text(plan.finished_runs, 'finished run')}, {_size(size)}: {why}"


def _unknown_text(surplus: Surplus) -> str:
    several = count_text(len(surplus.unknown), "checkpoint")
    return (
        f"{several} of {surplus.run} that this ledger never accepted, such as {surplus.unknown[-1]}: another "
        "copy of this home may have; --unknown removes them"
    )


def _first(strange: Mapping[str, str]) -> list[tuple[str, str]]:
    shown = sorted(strange.items())
    more = len(shown) - STRANGE_SHOWN
    return [*shown[:STRANGE_SHOWN], *([("…", f"{more:,} more")] if more > 0 else [])]


def _consents(call: Call, plan: PrunePlan) -> bool:
    if call.options.yes:
        return True
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    try:
        answer = input(f"\nRemove {count_text(plan.count, 'thing')}, {_size(plan.size)}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


# --- What is said -----------------------------------------------------------------------------------------


def _tell(call: Call, plan: PrunePlan, pruned: Pruned) -> None:
    call.out.say(f"\nFreed {size_text(pruned.freed)}.")
    if pruned.interrupted:
        call.out.say(f"Interrupted: everything else is intact; `{call.command('prune')}` continues.")
    troubles = {**plan.troubles, **pruned.troubles}
    call.out.facts([
        *(("kept", f"{path}: {why}") for path, why in pruned.kept.items() if why != "interrupted"),
        *(("failed", f"{path}: {why}") for path, why in pruned.failed.items()),
        *(("failed", f"{where}: {error}") for where, error in troubles.items()),
    ])  # fmt: skip


def _document(call: Call, plan: PrunePlan, pruned: Pruned | None) -> None:
    done = pruned or Pruned()
    call.out.document({
        "removes": [{"what": row.what, "count": row.count, "bytes": row.size, "why": row.why}
                    for row in plan.goes],
        "things": [{"kind": each.thing.kind, "path": each.thing.path, "run": each.thing.run,
                    "bytes": each.thing.size, "goes": each.goes, "why": each.why} for each in plan.judged],
        "checkpoints": [{"run": each.run, "names": each.checkpoints, "blobs": [b.key for b in each.blobs],
                         "bytes": each.size, "trouble": each.trouble, "unknown": each.unknown}
                        for each in plan.surplus],
        "leftovers": [each.place for each in (*plan.orphans, *plan.images)],
        "uploads": {store: [each.key for each in several] for store, several in plan.uploads.items()},
        "not_ours": plan.strange,
        "total": {"count": plan.count, "bytes": plan.size},
        "removed": None if pruned is None else [thing.path for thing in pruned.removed],
        "kept": done.kept,
        "troubles": {where: str(error) for where, error in {**plan.troubles, **done.troubles}.items()}
                    | dict(done.failed),
    })  # fmt: skip


def _code(troubles: Mapping[str, OrchestratorError], *, failed: bool = False) -> Exit:
    return worst([*map(remedy, troubles.values()), *([Remedy.ACT] if failed else [])])


def _size(size: int | None) -> str:
    return "–" if size is None else size_text(size)


@contextlib.contextmanager
def _status(call: Call) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows what is being done; it prints on a terminal only."""
    if not call.out.is_terminal:
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update


@contextlib.contextmanager
def _bar(call: Call, total: int) -> Iterator[Callable[[int], None]]:
    """Yields a function that is given how many more things were removed; it draws on a terminal only."""
    if not call.out.is_terminal:
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("removing", total=total)
        yield lambda count: bar.advance(task, count)
