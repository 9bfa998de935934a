"""`checkpoints` and `pull`: what is kept of a run, and one of it brought into a folder, verified.

What counts is what the ledger accepted, by the sha256 of its manifest, not what lies in the store. Talks to
the ledger and the home store alone: works while the run runs, and long after its controller has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.cli.call import Call, Exit
from orchestrator.cli.naming import local_names
from orchestrator.cli.output import number_text, size_text
from orchestrator.core.checkpoint import Accepted, FileEntry, Grade, Manifest, grade, newest
from orchestrator.core.run import RunRecord
from orchestrator.errors import CorruptCheckpoint, InputError, NotFound
from orchestrator.files import draft_folder
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store

SHOW_PROGRESS_BYTES = 64 * 1000 * 1000
PROGRESS_SECONDS = 0.2
_HASH_BYTES = 1 << 20
MISSING = "missing in the store"
NOT_PROVED = "not authenticated"


@dataclass(frozen=True)
class Pulled:
    """A checkpoint as it lies in a folder now. `skipped`: newer ones that failed, with the reason. `renamed`:
    the files that could not keep their name here, with the one they got."""

    checkpoint: Accepted
    folder: Path
    skipped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


# --- checkpoints ------------------------------------------------------------------------------------------


def checkpoints(call: Call) -> int:
    """Lists the accepted checkpoints, oldest first, with what the store's manifests say of them.

    With --verify it fails, with the code of a store, where one of them is not whole.
    """
    wired = call.wired()
    with call.home.runs() as ledger:
        record = ledger.record(ledger.find(call.options.run))
    store = wired.store(record.store)
    rows = sorted(record.accepted, key=lambda c: (c.ref.step, c.ref.generation))
    look = stored.verify if call.options.verify else stored.read
    manifests = {c.name: _manifest(store, record.run, c, look) for c in rows}
    marks = {c.name: _marks(record, c) for c in rows}
    grades = {c.name: _grade(manifests, c.name) for c in rows}
    call.out.document({"run": record.run, "checkpoints": [
        {"name": c.name, "step": c.ref.step, "generation": c.ref.generation, "size": c.size,
         "metrics": found.metrics if isinstance(found := manifests[c.name], Manifest) else dict(c.metrics),
         "marks": marks[c.name], "resumed": grades[c.name],
         "trouble": found if isinstance(found, str) else None}
        for c in rows
    ]})  # fmt: skip
    if not rows:
        call.out.say(f"{record.run} has no checkpoint yet")
        return Exit.OK
    table = []
    for c in rows:
        found = manifests[c.name]
        metrics = found.metrics if isinstance(found, Manifest) else c.metrics
        shown = "  ".join(f"{name} {number_text(value)}" for name, value in sorted(metrics.items()))
        trouble = [found.partition(":")[0]] if isinstance(found, str) else []
        notes = ", ".join([*marks[c.name], *trouble])
        table.append(
            (
                f"{c.ref.step:,}",
                f"s{c.ref.generation:02d}",
                size_text(c.size),
                grades[c.name] or "–",
                notes,
                shown,
            )
        )
    call.out.table(("STEP", "BY", "SIZE", "RESUMED", "", "METRICS"), table, right=frozenset({0, 2}))
    return _tell_whole(call, store, rows, manifests)


def _tell_whole(
    call: Call, store: Store, rows: Sequence[Accepted], manifests: Mapping[str, Manifest | str]
) -> Exit:
    """What is behind the notes, below the table; and what --verify found."""
    troubles = [(c, found) for c in rows if isinstance(found := manifests[c.name], str)]
    for c, found in troubles:
        why = _gone(store) if found == MISSING else found
        call.out.remark(f"step {c.ref.step:,} ({c.name}) cannot be used: {why}")
    if any(not c.sha256 for c in rows):
        call.out.remark(f"{NOT_PROVED}: an older version accepted it and kept no sha256 of its manifest")
    if not call.options.verify:
        return Exit.OK
    call.out.say(f"verified: {len(rows) - len(troubles)} of {len(rows)} whole")
    return Exit.UNAVAILABLE if troubles else Exit.OK


def _manifest(
    store: Store, run: str, checkpoint: Accepted, look: Callable[..., Manifest] = stored.read
) -> Manifest | str:
    """What the store holds, or in words why not. `look`: `stored.verify` reads every blob, too."""
    try:
        return look(store, run, checkpoint.name, checkpoint.sha256)
    except NotFound:
        return MISSING
    except CorruptCheckpoint as error:
        return f"corrupt: {error.reason}"


def _marks(record: RunRecord, checkpoint: Accepted) -> list[str]:
    marks = ["newest"] if checkpoint == newest(record.accepted) else []
    if checkpoint == _best(record):
        marks.append("best")
    if record.session is not None and record.session.order.resume == checkpoint.name:
        marks.append("resume point")
    if not checkpoint.sha256:
        marks.append(NOT_PROVED)
    return marks


def _grade(manifests: dict[str, Manifest | str], name: str) -> Grade | None:
    """How exactly the session that wrote it had gone on, where its parent is of another and still there."""
    manifest = manifests[name]
    if not isinstance(manifest, Manifest) or manifest.parent is None:
        return None
    parent = manifests.get(manifest.parent)
    if not isinstance(parent, Manifest) or parent.ref.generation == manifest.ref.generation:
        return None
    return grade(parent, manifest.environment)


def _best(record: RunRecord) -> Accepted | None:
    """By the job's own metric; None where it names none, or none was reported."""
    best = record.job.checkpoint.keep.best
    scored = [c for c in record.accepted if best is not None and best.metric in c.metrics]
    if best is None or not scored:
        return None
    sign = 1.0 if best.mode == "max" else -1.0
    return max(scored, key=lambda c: (sign * c.metrics[best.metric], c.ref.step))


# --- pull -------------------------------------------------------------------------------------------------


def pull(call: Call) -> int:
    """Brings the checkpoint asked for, by default the newest that is whole."""
    wired = call.wired()
    with call.home.runs() as ledger:
        record = ledger.record(ledger.find(call.options.run))
    store = wired.store(record.store)
    wanted = _wanted(call, record)
    target = Path(call.options.output) if call.options.output else None
    pulled = bring(call, store, record, wanted, target)
    call.out.document({
        "run": record.run, "checkpoint": pulled.checkpoint.name, "step": pulled.checkpoint.ref.step,
        "folder": str(pulled.folder), "skipped": pulled.skipped, "renamed": dict(pulled.renamed),
    })  # fmt: skip
    if not pulled.checkpoint.sha256:
        call.out.remark("an older version accepted it and kept no sha256: whole, but not authenticated")
    call.out.say(f"{pulled.folder}: step {pulled.checkpoint.ref.step:,} of {record.run}, verified")
    return Exit.OK


def _wanted(call: Call, record: RunRecord) -> Accepted | None:
    """The checkpoint that the options name; None: the newest that is whole."""
    if call.options.best:
        best = record.job.checkpoint.keep.best
        if best is None:
            raise InputError(f"{record.run} keeps no best checkpoint: its job has no checkpoint.keep.best")
        found = _best(record)
        if found is None:
            raise InputError(f"no checkpoint of {record.run} has the metric {best.metric!r} (yet)")
        return found
    if call.options.step is None:
        return None
    there = {c.ref.step: c for c in sorted(record.accepted, key=lambda c: c.ref.generation)}
    if call.options.step not in there:
        steps = ", ".join(str(step) for step in sorted(there)) or "none"
        raise InputError(f"{record.run} has no checkpoint at step {call.options.step}; there are: {steps}")
    return there[call.options.step]


def bring(
    call: Call, store: Store, record: RunRecord, wanted: Accepted | None, target: Path | None
) -> Pulled:
    """Lays a checkpoint out in `target`, every byte verified; `wanted` None: the newest that is whole.

    A target that holds exactly that already is left as it is. Raises InputError where it holds anything
    else, or where there is no checkpoint; CorruptCheckpoint where the wanted one, or every one, fails.
    """
    ordered = sorted(record.accepted, key=lambda c: (c.ref.step, c.ref.generation, c.name), reverse=True)
    candidates = [wanted] if wanted is not None else ordered
    if not candidates:
        raise InputError(f"{record.run} has no checkpoint yet")
    skipped: list[str] = []
    for candidate in candidates:
        folder = (target or Path(f"{record.run}-step-{candidate.ref.step}")).expanduser().absolute()
        try:
            manifest = _bring_one(call, store, record.run, candidate, folder)
        except (CorruptCheckpoint, NotFound) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else _gone(store)
            skipped.append(f"step {candidate.ref.step:,} ({candidate.name}) cannot be used: {reason}")
            if candidate is candidates[-1]:
                raise _nothing_whole(store, record, candidate, reason) from error
            call.out.remark(f"{skipped[-1]}; falling back to the one before")
        else:
            renamed = _renamed(manifest)
            for given, name in renamed:
                call.out.remark(
                    f"{given!a} is called {name} here: its own name is too long, or could mislead"
                )
            return Pulled(candidate, folder, tuple(skipped), renamed)
    raise AssertionError("the last candidate is brought, or raises")


def _gone(store: Store) -> str:
    empty = next(iter(store.list("")), None) is None
    return "it is gone from the home store" + (", which is empty: is its disk there?" if empty else "")


def _nothing_whole(store: Store, record: RunRecord, tried: Accepted, reason: str) -> CorruptCheckpoint:
    """The error, with the steps whose manifests at least are there and right."""
    there = (c for c in record.accepted if isinstance(_manifest(store, record.run, c), Manifest))
    steps = ", ".join(str(step) for step in sorted({c.ref.step for c in there} - {tried.ref.step}))
    return CorruptCheckpoint(tried.name, f"{reason}; other steps in the store: {steps or 'none'}")


def _bring_one(call: Call, store: Store, run: str, wanted: Accepted, folder: Path) -> Manifest:
    """The manifest of what lies in the folder now."""
    if folder.exists():
        manifest = stored.read(store, run, wanted.name, wanted.sha256)
        if _is_same(folder, _here(manifest)):
            return manifest
        raise InputError(
            f"{folder} exists and holds something else; name another folder with -o, or move it away"
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        draft_folder(folder.parent, mode=0o700) as parts,
        _shown(call, parts, wanted.size),
    ):
        manifest = stored.fetch(store, run, wanted.name, parts, wanted.sha256)
        stored.restore(parts, _here(manifest), folder)
    return manifest


def _here(manifest: Manifest) -> Manifest:
    """With the names that its files have on this machine."""
    names = local_names(entry.path for entry in manifest.files)
    return replace(manifest, files=tuple(replace(each, path=names[each.path]) for each in manifest.files))


def _renamed(manifest: Manifest) -> tuple[tuple[str, str], ...]:
    names = local_names(entry.path for entry in manifest.files)
    return tuple((given, name) for given, name in names.items() if given != name)


def _is_same(folder: Path, manifest: Manifest) -> bool:
    """Whether the folder holds exactly the checkpoint's files."""
    if not folder.is_dir():
        return False
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    if set(found) != {entry.path for entry in manifest.files}:
        return False
    return all(_holds(found[entry.path], entry) for entry in manifest.files)


def _holds(path: Path, entry: FileEntry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as stream:
        for part in entry.parts:
            digest, left = hashlib.sha256(), part.size
            while left and (data := stream.read(min(left, _HASH_BYTES))):
                digest.update(data)
                left -= len(data)
            if digest.hexdigest() != part.sha256:
                return False
    return True


@contextlib.contextmanager
def _shown(call: Call, parts: Path, size: int) -> Iterator[None]:
    """A bar on a terminal, for what takes a while."""
    if size < SHOW_PROGRESS_BYTES or not call.out.is_terminal:
        yield
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    over = threading.Event()
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("bringing", total=size)

        def look() -> None:
            while not call.clock.wait(over, PROGRESS_SECONDS):
                bar.update(task, completed=_bytes_in(parts / "blobs"))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()


def _bytes_in(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return sum(entry.stat().st_size for entry in folder.iterdir())
    return 0
