"""`doctor --clean`: lists what sessions left on the platforms and no run needs, and removes it if confirmed.

Things that still run, or that belong to a run that this ledger never had, need `--discard`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import asdict

from orchestrator.cli.call import Call, worst
from orchestrator.client.leftovers import Doubt, Leftovers, Orphan, Removal
from orchestrator.core.wording import count_text
from orchestrator.errors import OrchestratorError, remedy

DOUBTS = {
    Doubt.NONE: "",
    Doubt.TRIAL: "a trial is under way, which removes it at its end",
    Doubt.RUNS: "it is still running: `--discard` kills it",
    Doubt.UNKNOWN_RUN: "this ledger does not know its run: `--discard` removes it anyway",
}


def clean(call: Call) -> int:
    """Lists what is left over on all platforms, or on those named; then asks and removes it.

    Without a terminal and without `--yes` it only lists.
    """
    found = call.client.leftovers(call.options.names)
    doomed = [each for each in found.orphans if _may_go(each, discard=call.options.discard)]
    kept = {each: DOUBTS[each.doubt] for each in found.orphans if each not in doomed}
    _show(call, found)
    removal = Removal()
    if doomed and _consents(call, doomed):
        removal = call.client.remove_leftovers(doomed)
    elif doomed:
        kept |= dict.fromkeys(doomed, "not confirmed: `--yes` removes it")
    _tell(call, found, kept, removal)
    return worst(map(remedy, (*found.troubles.values(), *removal.troubles.values())))


def _may_go(orphan: Orphan, *, discard: bool) -> bool:
    return orphan.doubt is Doubt.NONE or (discard and orphan.doubt is not Doubt.TRIAL)


def _show(call: Call, found: Leftovers) -> None:
    rows = [
        (
            each.platform,
            each.leftover.session or "–",
            each.leftover.kind,
            each.leftover.name,
            each.leftover.state,
        )
        for each in found.orphans
    ]
    if rows:
        call.out.table(("PLATFORM", "SESSION", "WHAT", "NAME", "STATE"), rows)
    elif not found.troubles:
        call.out.say("Nothing is left over.")


def _consents(call: Call, doomed: list[Orphan]) -> bool:
    if call.options.yes:
        return True
    if not (call.out.is_terminal and sys.stdin.isatty()):
        return False
    alive = sum(each.leftover.alive for each in doomed)
    warning = f", {alive} of them running" if alive else ""
    try:
        answer = input(f"\nRemove {count_text(len(doomed), 'thing')}{warning}? [y/N] ")
    except EOFError:
        return False
    return answer.strip().lower() in ("y", "yes")


def _tell(call: Call, found: Leftovers, undoomed: Mapping[Orphan, str], removal: Removal) -> None:
    removed = [each.place for each in removal.removed]
    kept = {each.place: why for each, why in (*undoomed.items(), *removal.kept.items())}
    troubles: dict[str, OrchestratorError] = dict(found.troubles)
    troubles |= {each.place: error for each, error in removal.troubles.items()}
    call.out.document({
        "leftovers": [{"platform": each.platform, **asdict(each.leftover)} for each in found.orphans],
        "removed": removed,
        "kept": kept,
        "troubles": {where: str(error) for where, error in troubles.items()},
    })  # fmt: skip
    if found.orphans:
        call.out.say()
    call.out.facts([
        *(("removed", place) for place in removed),
        *(("kept", f"{place}: {why}") for place, why in kept.items()),
        *(("no answer", f"{name}: {error}") for name, error in found.troubles.items()),
    ])  # fmt: skip
