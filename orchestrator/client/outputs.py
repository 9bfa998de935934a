"""Copies the files that a run's sessions left for people into a folder, and verifies them.

Decides which version of a file counts: the newest session's. Older sessions keep theirs in the home store.
Only what the ledger accepted counts, as for checkpoints.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.client import pulling
from orchestrator.client.checkpoints import gone
from orchestrator.client.naming import local_names
from orchestrator.clock import Clock
from orchestrator.core.checkpoint import Accepted, FileEntry, Manifest
from orchestrator.core.run import RunRecord
from orchestrator.core.wording import help_page
from orchestrator.errors import CorruptCheckpoint, InputError, NotFound
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store


@dataclass(frozen=True)
class PulledOutputs:
    """The outputs in `folder`, every byte verified: `files` of them, `size` bytes together.

    `sessions`: the numbers of the sessions that they come from. `older`: files of which an earlier session
    left another version, with its number. `skipped`: sessions whose outputs failed, with the reason.
    `renamed`: files that could not keep their names here, with the new ones.
    """

    run: str
    folder: Path
    files: int
    size: int
    sessions: tuple[int, ...]
    older: tuple[tuple[str, int], ...] = ()
    skipped: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()


def _why_none(record: RunRecord) -> str:
    asked = record.job.outputs
    if asked == ():
        return "its job says `outputs: []`"
    if not record.phase.final:
        more = "" if asked is None else f", if they match {', '.join(map(repr, asked))}"
        return f"they come when a session ends{more}"
    return "its sessions left none" if asked is None else f"nothing matched {', '.join(map(repr, asked))}"


def wanted(record: RunRecord, session: int | None) -> tuple[Accepted, ...]:
    """The outputs of one session, or of all, newest first. Raises InputError if there are none."""
    every = sorted(record.outputs, key=lambda each: each.ref.generation, reverse=True)
    if not every:
        raise InputError(f"{record.run} has no outputs: {_why_none(record)} ({help_page('outputs')})")
    if session is None:
        return tuple(every)
    found = tuple(each for each in every if each.ref.generation == session)
    if not found:
        there = ", ".join(str(each.ref.generation) for each in reversed(every))
        raise InputError(f"session {session} of {record.run} left no outputs; these did: {there}")
    return found


def bring(
    store: Store,
    record: RunRecord,
    wanted: Sequence[Accepted],
    target: Path | None,
    clock: Clock,
    progress: pulling.Progressed | None = None,
) -> PulledOutputs:
    """Copies these outputs, newest first, into `target`, by default `<run>-outputs`.

    A target that already holds exactly these files stays as it is. Raises InputError if it holds anything
    else or cannot be created, and CorruptCheckpoint if the outputs of every session fail.
    """
    manifests, skipped = _read(store, record, wanted)
    chosen, older = _newest(manifests)
    names = local_names(entry.path for each in chosen for entry in each.files)
    here = [
        replace(each, files=tuple(replace(entry, path=names[entry.path]) for entry in each.files))
        for each in chosen
    ]
    folder = pulling.bring_all(store, record.run, here, target or Path(f"{record.run}-outputs"), clock,
                               progress)  # fmt: skip
    return PulledOutputs(
        record.run,
        folder,
        len(names),
        sum(each.size for each in chosen),
        tuple(sorted(each.ref.generation for each in chosen)),
        older,
        skipped,
        tuple((given, name) for given, name in names.items() if given != name),
    )


def _read(
    store: Store, record: RunRecord, wanted: Sequence[Accepted]
) -> tuple[list[Manifest], tuple[str, ...]]:
    """Raises CorruptCheckpoint if none can be used, with a note for each but the first."""
    found: list[Manifest] = []
    skipped: list[str] = []
    errors: list[CorruptCheckpoint] = []
    for each in wanted:
        try:
            found.append(stored.read(store, record.run, each.name, each.sha256))
        except (CorruptCheckpoint, NotFound) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else gone(store)
            skipped.append(f"the outputs of session {each.ref.generation} cannot be used: {reason}")
            errors.append(CorruptCheckpoint(each.name, reason))
    if not found:
        for text in skipped[1:]:
            errors[0].add_note(text)
        raise errors[0]
    return found, tuple(skipped)


def _newest(manifests: Sequence[Manifest]) -> tuple[list[Manifest], tuple[tuple[str, int], ...]]:
    """The manifests, newest first, each with the files of which it has the newest version; and the files of
    which an older one has another version. A path that was a file and is a folder now counts as one too."""
    taken: dict[str, FileEntry] = {}
    chosen: list[Manifest] = []
    older: dict[str, int] = {}
    for manifest in manifests:
        own, ordered = [], sorted(taken)
        for entry in manifest.files:
            if not _is_taken(entry.path, taken, ordered):
                own.append(entry)
            elif taken.get(entry.path) != entry:
                older.setdefault(entry.path, manifest.ref.generation)
        taken |= {entry.path: entry for entry in own}
        if own:
            chosen.append(replace(manifest, files=tuple(own)))
    return chosen, tuple(sorted(older.items()))


def _is_taken(path: str, taken: Mapping[str, FileEntry], ordered: Sequence[str]) -> bool:
    """Whether one of these paths is the same, lies in it, or is a folder of it. `ordered`: they are sorted.
    A session chose the names: keeps no list of their folders, of which there may be very many."""
    if path in taken:
        return True
    after = bisect(ordered, f"{path}/")
    if after < len(ordered) and ordered[after].startswith(f"{path}/"):
        return True
    return bool(taken) and any(path[:at] in taken for at, each in enumerate(path) if each == "/")
