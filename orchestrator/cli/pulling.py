"""`checkpoints` and `pull`: lists a run's checkpoints, and copies one into a folder, verified."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from orchestrator.cli.call import Call, Exit
from orchestrator.client import Checkpoint, Pulled, Run, StoredRun
from orchestrator.client.pulling import Progressed, Wanted
from orchestrator.core.wording import count_text, number_text, size_text
from orchestrator.errors import AmbiguousRun, CorruptCheckpoint, InputError, SpecError

SHOW_PROGRESS_BYTES = 64 * 1000 * 1000
OLDER_SHOWN = 8
NOT_PROVED = "not authenticated"


# --- checkpoints ------------------------------------------------------------------------------------------


def checkpoints(call: Call) -> int:
    """Lists the accepted checkpoints, oldest first, with what the store's manifests say about them.

    With --verify it exits with 4 if one of them is not intact.
    """
    run = _found(call)
    name = run.name if isinstance(run, Run) else run.run
    found = run.checkpoints(verify=call.options.verify)
    call.out.document({"run": name, "store": None if isinstance(run, Run) else run.store, "checkpoints": [
        {"name": each.name, "step": each.step, "generation": each.generation, "size": each.size,
         "metrics": each.metrics, "marks": _marks(each), "resumed": each.resumed,
         "trouble": each.trouble or None}
        for each in found
    ]})  # fmt: skip
    if not found:
        call.out.say(f"{name} has no checkpoint yet")
        return Exit.OK
    headers = ("STEP", "BY", "SIZE", "RESUMED", "", "METRICS")
    call.out.table(headers, [_row(each) for each in found], right=frozenset({0, 2}))
    return _tell_whole(call, found, _why_not_proved(run))


def _found(call: Call) -> Run | StoredRun:
    """The run in the ledger, or else in a store. With --store the ledger is not asked."""
    given, store = call.options.run, call.options.store
    if store is None:
        try:
            return call.client.run(given)
        except AmbiguousRun:
            raise
        except InputError as error:
            unknown = error
        try:
            found = call.client.stores.run(given)
        except InputError as error:
            if isinstance(error, SpecError):
                raise unknown from error
            raise InputError(f"{unknown}\nIn the stores: {error}") from error
    else:
        found = call.client.stores.run(given, store)
    word = f", which says that it is {found.phase.value}" if found.phase is not None else ""
    call.out.remark(f"{found.run} is not in this ledger; found in the store {found.store}{word}"
                    if store is None else f"{found.run} in the store {found.store}{word}")  # fmt: skip
    for trouble in found.troubles:
        call.out.remark(f"ignored what the store was told: {trouble}")
    return found


def _why_not_proved(run: Run | StoredRun) -> str:
    """Why a checkpoint of this run may be not authenticated."""
    if isinstance(run, Run):
        return "an older version accepted it without recording its manifest's sha256"
    if not run.told:
        return "the store does not say what was accepted; its own manifest alone vouches for it"
    return "the store does not say that it was accepted; its own manifest alone vouches for it"


def _row(each: Checkpoint) -> tuple[str, ...]:
    metrics = "  ".join(f"{name} {number_text(value)}" for name, value in sorted(each.metrics.items()))
    trouble = [each.trouble.partition(":")[0]] if each.trouble else []
    return (
        number_text(each.step),
        f"s{each.generation:02d}",
        size_text(each.size),
        each.resumed or "–",
        ", ".join([*_marks(each), *trouble]),
        metrics,
    )


def _marks(each: Checkpoint) -> list[str]:
    marks = (
        (each.newest, "newest"),
        (each.best, "best"),
        (each.resume_point, "resume point"),
        (not each.authenticated, NOT_PROVED),
    )
    return [mark for holds, mark in marks if holds]


def _tell_whole(call: Call, found: Sequence[Checkpoint], why_not_proved: str) -> Exit:
    """Explains the table's notes below it, and says what --verify found."""
    troubles = [each for each in found if each.trouble]
    for each in troubles:
        call.out.remark(f"step {number_text(each.step)} ({each.name}) cannot be used: {each.advice}")
    if any(not each.authenticated for each in found):
        call.out.remark(f"{NOT_PROVED}: {why_not_proved}")
    if not call.options.verify:
        return Exit.OK
    call.out.say(f"verified: {len(found) - len(troubles)} of {len(found)} intact")
    return Exit.UNAVAILABLE if troubles else Exit.OK


# --- pull -------------------------------------------------------------------------------------------------


def pull(call: Call) -> int:
    """Copies the requested checkpoint, by default the newest intact one, or the outputs."""
    if call.options.outputs:
        return _pull_outputs(call)
    if call.options.session is not None:
        raise InputError("--session goes with --outputs")
    run, step = _found(call), call.options.step
    wanted: Wanted = "best" if call.options.best else "latest" if step is None else step
    pulled = bring(call, run, call.options.output or None, wanted)
    call.out.document({
        "run": pulled.run, "checkpoint": pulled.checkpoint, "step": pulled.step,
        "folder": str(pulled.folder), "skipped": pulled.skipped, "renamed": dict(pulled.renamed),
        "store": None if isinstance(run, Run) else run.store, "authenticated": pulled.authenticated,
    })  # fmt: skip
    if not pulled.authenticated:
        call.out.remark(f"intact, but {NOT_PROVED}: {_why_not_proved(run)}")
    call.out.say(f"{pulled.folder}: step {number_text(pulled.step)} of {pulled.run}, verified")
    return Exit.OK


def _pull_outputs(call: Call) -> int:
    run = _found(call)
    with _shown(call) as progress:
        pulled = run.outputs.pull(call.options.output, session=call.options.session, progress=progress)
    call.out.document({
        "run": pulled.run, "folder": str(pulled.folder), "files": pulled.files, "size": pulled.size,
        "sessions": pulled.sessions, "older": dict(pulled.older), "skipped": pulled.skipped,
        "renamed": dict(pulled.renamed),
    })  # fmt: skip
    for each in pulled.skipped:
        call.out.remark(each)
    _tell_renamed(call, pulled.renamed)
    if pulled.older:
        told = ", ".join(f"{name!a} (s{session:02d})" for name, session in pulled.older[:OLDER_SHOWN])
        more = f" and {count_text(len(pulled.older) - OLDER_SHOWN, 'other file')}"
        told += more if len(pulled.older) > OLDER_SHOWN else ""
        call.out.remark(f"earlier sessions left other versions, which --session N copies: {told}")
    files = count_text(pulled.files, "file")
    call.out.say(f"{pulled.folder}: {files} of {pulled.run}, {size_text(pulled.size)}, verified")
    return Exit.OK


def _tell_renamed(call: Call, renamed: Sequence[tuple[str, str]]) -> None:
    for given, name in renamed:
        call.out.remark(f"{given!a} is called {name} here: its own name is too long or could mislead")


def bring(call: Call, run: Run | StoredRun, target: str | None, step: Wanted = "latest") -> Pulled:
    """Pulls with a progress bar, and says what was skipped or renamed."""
    try:
        with _shown(call) as progress:
            pulled = run.pull(target, step=step, progress=progress)
    except CorruptCheckpoint as error:
        _tell_skipped(call, getattr(error, "__notes__", ()))
        raise
    _tell_skipped(call, pulled.skipped)
    _tell_renamed(call, pulled.renamed)
    return pulled


def _tell_skipped(call: Call, skipped: Sequence[str]) -> None:
    for each in skipped:
        call.out.remark(f"{each}; falling back to the one before")


@contextlib.contextmanager
def _shown(call: Call) -> Iterator[Progressed | None]:
    """Yields a function that draws a bar for a large checkpoint; None if there is no terminal."""
    if not call.out.is_terminal:
        yield None
        return
    with contextlib.ExitStack() as stack:
        update: Callable[[int, int], None] | None = None

        def progress(done: int, size: int) -> None:
            nonlocal update
            if size >= SHOW_PROGRESS_BYTES:
                update = update or _bar(stack)
                update(done, size)

        yield progress


def _bar(stack: contextlib.ExitStack) -> Callable[[int, int], None]:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = stack.enter_context(Progress(*columns, transient=True))
    task = bar.add_task("pulling")
    return lambda done, size: bar.update(task, completed=done, total=size)
