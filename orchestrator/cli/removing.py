"""`rm`: shows what there is of runs that are over, asks, and removes it.

Without a terminal and without `--yes` it only shows.
"""

from __future__ import annotations

import sys

from orchestrator.cli.call import Call, worst
from orchestrator.client.removing import Doomed, Removed, Removing
from orchestrator.client.removing import plan as plan_of
from orchestrator.core.wording import count_text, size_text
from orchestrator.errors import remedy


def rm(call: Call) -> int:
    """Plans, shows, asks and removes. The exit code reports what could not be removed."""
    plan = plan_of(call.client, call.options.runs, keep_checkpoints=call.options.keep_checkpoints)
    _show(call, plan)
    if call.options.dry_run or not _consents(call, plan):
        _document(call, plan, None)
        call.out.say("\nNothing was removed. Run it with --yes to remove this.")
        return worst(remedy(each.trouble) for each in plan.runs if each.trouble is not None)
    removed = plan.carry_out()
    call.out.done = f"removed {', '.join(removed.runs)}" if removed.runs else ""
    _document(call, plan, removed)
    call.out.say(f"\nRemoved {count_text(len(removed.runs), 'run')}, {size_text(removed.freed)}.")
    call.out.facts([
        *(("kept", note) for note in removed.notes.values()),
        *(("failed", f"{run}: {error}") for run, error in removed.failed.items()),
    ])  # fmt: skip
    return worst(map(remedy, removed.failed.values()))


def _show(call: Call, plan: Removing) -> None:
    headers = ("RUN", "PHASE", "CHECKPOINTS", "IN THE STORE", "LOGS AND SESSIONS")
    rows = [
        (each.run, "unreadable" if each.record is None else each.record.phase.value, _checkpoints_text(each),
         size_text(each.store_bytes),
         size_text(each.home_bytes))
        for each in plan.runs
    ]  # fmt: skip
    call.out.table(headers, rows, right=frozenset({2, 3, 4}), spare=(1,))
    notes = [("kept", f"checkpoints of {each.run}: {each.surplus.trouble}") for each in plan.runs
             if each.surplus is not None and each.surplus.trouble]  # fmt: skip
    notes += [("kept", f"{path}: it has a checkpoint that never reached the store")
              for each in plan.runs for path in each.spared]  # fmt: skip
    notes += [("no answer", f"{each.run}: {each.trouble}") for each in plan.runs if each.trouble is not None]
    if notes:
        call.out.say()
        call.out.facts(notes)


def _checkpoints_text(each: Doomed) -> str:
    if each.trouble is not None:
        return "unknown"
    if each.record is None or each.surplus is None or each.surplus.trouble:
        return "stay"
    outputs = {output.name for output in each.record.outputs}  # the store keeps both in the same way
    return f"{sum(name not in outputs for name in each.surplus.checkpoints):,}"


def _consents(call: Call, plan: Removing) -> bool:
    if call.options.yes:
        return True
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    whose = "its" if len(plan.runs) == 1 else "their"
    what = "" if call.options.keep_checkpoints else f" with {whose} checkpoints"
    try:
        answer = input(f"\nRemove {count_text(len(plan.runs), 'run')}{what} for good? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _document(call: Call, plan: Removing, removed: Removed | None) -> None:
    done = removed or Removed()
    call.out.document({
        "runs": [
            {"run": each.run, "phase": None if each.record is None else each.record.phase,
             "checkpoints": None if each.surplus is None else each.surplus.checkpoints,
             "store_bytes": each.store_bytes, "home_bytes": each.home_bytes,
             "paths": [thing.path for thing in each.things], "spared": each.spared}
            for each in plan.runs
        ],
        "removed": None if removed is None else done.runs,
        "freed": done.freed,
        "kept": done.notes,
        "troubles": {each.run: str(each.trouble) for each in plan.runs if each.trouble is not None}
                    | {run: str(error) for run, error in done.failed.items()},
    })  # fmt: skip
