"""`adopt` and `copy` in words: runs that come from a store, and runs that move to another."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.listing import say_no_runs
from orchestrator.client import Adoption, Came
from orchestrator.core.lifecycle import Phase
from orchestrator.core.wording import count_text, number_text
from orchestrator.errors import InputError

_HEADERS = ("RUN", "", "PHASE", "STEP", "CHECKPOINTS")
_RIGHT = frozenset({3, 4})


def adopt(call: Call) -> int:
    """Records the runs of a store. Exits with 3 if what the store says of one cannot be decrypted, or with 4
    if it cannot be believed."""
    options = call.options
    if options.take_over:
        return _take_over(call)
    if not options.store:
        raise InputError(f"adopt needs the name of a store: {call.command('adopt', 'STORE')}")
    found = call.client.stores.adopt(
        options.store, options.runs, dry_run=options.dry_run, inputs=_inputs(options.input),
        progress=lambda run: call.out.remark(f"{run} …") if call.out.is_terminal else None,
    )  # fmt: skip
    call.out.document(
        {"store": options.store, "dry_run": options.dry_run, "runs": [vars(each) for each in found]}
    )
    if not found:
        say_no_runs(call, options.store)
        return Exit.OK
    call.out.table(_HEADERS, [_row(each) for each in found], right=_RIGHT)
    for each in found:
        for note in each.notes:
            call.out.remark(f"{each.run}: {note}")
    _tell_next(call, found)
    came = {each.came for each in found}
    if Came.ENCRYPTED in came:
        return Exit.HUMAN
    return Exit.UNAVAILABLE if Came.DAMAGED in came else Exit.OK


def _take_over(call: Call) -> int:
    options = call.options
    if options.runs or options.input:
        raise InputError("--take-over takes all runs of the store, as they are: give no run and no --input")
    found = call.client.stores.take_over(
        options.store, dry_run=options.dry_run,
        progress=lambda run: call.out.remark(f"{run} …") if call.out.is_terminal else None,
    )  # fmt: skip
    call.out.document(
        {"store": options.store, "dry_run": options.dry_run, "runs": [vars(each) for each in found]}
    )
    if not found:
        call.out.say("nothing to take over: no other copy of this home uses its stores")
        return Exit.OK
    call.out.table(_HEADERS, [_row(each) for each in found], right=_RIGHT)
    for each in found:
        for note in each.notes:
            call.out.remark(f"{each.run}: {note}")
    if options.dry_run:
        call.out.say(f"{count_text(len(found), 'run')} would be taken over; nothing was changed")
        return Exit.OK
    call.out.say(f"{count_text(len(found), 'run')} taken over; the other copy of this home stops using them")
    if held := [each.run for each in found if each.phase is Phase.HELD]:
        call.out.say(f"{count_text(len(held), 'run')} held before: {call.command('release', held[0])}")
    return Exit.OK


def _inputs(given: Sequence[str]) -> dict[str, str]:
    """The paths by the names of inputs, from NAME=PATH."""
    pairs = [each.partition("=") for each in given]
    for each, (name, _, path) in zip(given, pairs, strict=True):
        if not name or not path:
            raise InputError(f"--input {each}: give NAME=PATH, such as --input corpus=data/corpus")
    return {name: path for name, _, path in pairs}


def _row(each: Adoption) -> tuple[str, ...]:
    return (
        each.run,
        each.came.value,
        "–" if each.phase is None else each.phase.value,
        "–" if each.step is None else number_text(each.step),
        number_text(each.checkpoints_count),
    )


def _tell_next(call: Call, found: Sequence[Adoption]) -> None:
    came = [each for each in found if each.came in (Came.ADOPTED, Came.BACK)]
    held = [each for each in came if each.phase is Phase.HELD]
    if call.options.dry_run:
        call.out.say(f"{count_text(len(came), 'run')} would be adopted; nothing was changed")
        return
    call.out.say(f"{count_text(len(came), 'run')} adopted")
    if held:
        command = call.command("release", held[0].run)
        call.out.say(f"{count_text(len(held), 'run')} held: stop the old controller, then: {command}")


def copy(call: Call) -> int:
    """Copies a run to another store. Exits with 4 if a checkpoint could not be copied."""
    run = call.client.run(call.options.run)
    said = call.out.remark if call.out.is_terminal else None
    done = run.copy(
        call.options.to,
        delete_source=call.options.delete_source,
        progress=said and (lambda name, number, count: said(f"checkpoint {number} of {count}: {name}")),
    )
    call.out.document(vars(done))
    for each in done.left:
        call.out.remark(f"not copied: {each}")
    for note in done.notes:
        call.out.remark(note)
    if done.moved:
        copied = count_text(len(done.copied), "checkpoint")
        call.out.say(
            f"{run.name} has its home in {done.to} now: {copied} copied from {done.source} and verified"
        )
    else:
        call.out.say(f"{run.name} has its home in {done.to} already")
    if done.deleted:
        call.out.say(f"its copy in {done.source} is removed")
    elif done.moved and not call.options.delete_source:
        command = call.command("copy", run.name, "--to", done.to, "--delete-source")
        call.out.say(f"its copy in {done.source} stays; to remove it: {command}")
    return Exit.UNAVAILABLE if done.left else Exit.OK
