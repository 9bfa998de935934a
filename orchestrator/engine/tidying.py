"""Removes what a crash left in this home, in its store and on its platforms, when a controller starts.

Decides what nobody needs any more: drafts, checkpoints staged for ended sessions, and blobs of partly
published checkpoints. Must never touch what a session made and is not stored yet, nor what a live session or
another process uses. Does not remove things because they are old.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.order import run_of
from orchestrator.core.run import RunRecord
from orchestrator.core.session import StopReply
from orchestrator.engine.collecting import is_unpublished
from orchestrator.engine.perform import Backends
from orchestrator.errors import OrchestratorError, Superseded
from orchestrator.files import PREFIX, remove_tree, sweep
from orchestrator.home import BUNDLES, IMAGES, INPUTS, RESULTS, RUNS, STAGED, Folders
from orchestrator.ledger import LedgerReader
from orchestrator.platforms.platform import Cleaning, Platform, Tidying
from orchestrator.session.layout import BLOBS
from orchestrator.stores import checkpoints as stored
from orchestrator.unforeseen import Unforeseen

SECONDS_MAX = 60.0  # limit for sweeping a large store; the next start continues
_DRAFT = (
    ".tmp-",
    ".pull-",
)  # the first covers PREFIX; older versions used both, without locks
CLOSED_PAUSE_SECONDS = 60.0
DRAFT_SECONDS = 3600.0  # a draft without a write for this long has no writer


def begin(
    backends: Backends,
    records: Iterable[RunRecord],
    runs: Iterable[str],
    clock: Clock,
    say: Callable[[str], None],
) -> threading.Thread:
    """Call this right after taking over the ledger, before the first tick. What to remove from the home is
    listed before this returns, so that it cannot include this controller's own files. The rest runs in a
    thread.

    `records`: every run with anything on a platform, and other runs whose store should be swept. `runs`: the
    names of all runs in the ledger. Other runs may belong to another ledger and are not touched.
    """
    known = tuple(records)
    live = frozenset(name for record in known for name in _there(record))
    doomed = tuple(of_sessions_over(backends.folders, frozenset(runs), live))

    def tidy() -> None:
        for path in doomed:
            with contextlib.suppress(OSError):
                remove_tree(path)
        sweep_drafts(backends.folders, clock.now())
        if not any(map(backends.ownership.elsewhere, backends.stores)):  # a copy's sessions may be another's
            tidy_platforms(backends, say)
        sweep_store(backends, known, clock, say)

    thread = threading.Thread(target=tidy, name="tidying", daemon=True)
    thread.start()
    return thread


def _there(record: RunRecord) -> list[str]:
    """The run's sessions that may still exist."""
    strays = [stray.session for stray in record.strays]
    return strays if record.session is None else [*strays, record.session.name]


def of_sessions_over(folders: Folders, runs: frozenset[str], live: frozenset[str]) -> Iterator[Path]:
    """What this home holds for ended sessions of these runs: checkpoints staged for them, blobs collected
    from them, and drafts next to those. Only a controller writes these. If a checkpoint was collected but not
    published, its blobs may be the only copy, so they stay."""
    for staged in _entries(folders.home / STAGED):
        if staged.name not in live and run_of(staged.name) in runs:
            yield staged
    for run in _entries(folders.home / RUNS):
        if run.name not in runs:
            continue
        for each in _entries(run):
            if each.name.startswith(_DRAFT):
                yield each
            elif each.name not in live:
                for brought in _entries(each):
                    if brought.name.startswith(_DRAFT):
                        yield brought
                    elif brought.name == BLOBS:
                        kept = is_unpublished(each)
                        blobs = _entries(brought)
                        yield from (blob for blob in blobs if not kept or blob.name.startswith(_DRAFT))


def sweep_drafts(folders: Folders, now: float) -> None:
    """Removes drafts without a writer. Drafts of `orchestrator.files` stay as long as their writer has the
    lock, however old they are. Young drafts of an older version stay too: it may be writing them now."""
    home = folders.home
    named = (home / name for name in (BUNDLES, IMAGES, INPUTS, STAGED))
    for folder in (home, *named, *_entries(home / RESULTS)):
        with contextlib.suppress(OSError):
            sweep(folder)
        for each in _entries(folder):
            if each.name.startswith(_DRAFT) and not each.name.startswith(PREFIX) and _is_stale(each, now):
                with contextlib.suppress(OSError):
                    remove_tree(each)


def tidy_platforms(backends: Backends, say: Callable[[str], None]) -> None:
    """Lets each platform remove what crashes left there: processes of ended sessions, staging drafts."""
    for platform in backends.platforms.values():
        try:
            if isinstance(platform, Tidying):
                platform.tidy()
        except (OrchestratorError, OSError) as error:
            say(f"{platform.name} could not be cleaned up; the next start tries again: {error}")
        except Exception as error:  # noqa: BLE001 - the barrier: logged, and the others still get their turn
            backends.unforeseen(f"tidying {platform.name}", error)


@contextlib.contextmanager
def ending_closed(
    platforms: Mapping[str, Platform],
    ledger: LedgerReader,
    clock: Clock,
    say: Callable[[str], None],
    unforeseen: Unforeseen,
) -> Iterator[None]:
    """While the context is open, stops sessions on these platforms, which are this machine's own, that the
    controller of another machine has given up. They would hold their accelerator for nothing."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            for name, platform in platforms.items():
                try:
                    end_closed(platform, ledger, say)
                except (OrchestratorError, OSError) as error:
                    say(f"sessions on {name} that were given up are not stopped yet: {error}")
                except Exception as error:  # noqa: BLE001 the barrier: told, and the others get their turn
                    unforeseen(f"stopping what was given up on {name}", error)
            clock.wait(over, CLOSED_PAUSE_SECONDS)

    threading.Thread(target=work, name="ending closed sessions", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def end_closed(platform: Platform, ledger: LedgerReader, say: Callable[[str], None]) -> None:
    """What they made stays. Sessions that the ledger does not know are left alone: it may be an old copy."""
    found = platform.leftovers() if isinstance(platform, Cleaning) else ()
    there = {each.session: each.run for each in found if each.alive and not each.in_trial}
    records = {record.run: record for record in ledger.records(sorted(set(there.values())))}
    for session, run in there.items():
        record = records.get(run)
        if record is None or session in _there(record) or not _is_closed(record, session):
            continue
        if platform.stop(session) is StopReply.REQUESTED:
            say(f"{session} was given up by another machine's controller: asked it to stop")


def _is_closed(record: RunRecord, session: str) -> bool:
    number = session.rpartition("-s")[2]
    return number.isdecimal() and int(number) <= record.generation


def sweep_store(
    backends: Backends, records: Iterable[RunRecord], clock: Clock, say: Callable[[str], None]
) -> None:
    """Removes blobs in the runs' home stores that no manifest names, for generations in which nothing can be
    published any more. Stops after SECONDS_MAX."""
    ends = clock.monotonic() + SECONDS_MAX
    gone = 0
    failed: set[str] = set()
    for record in records:
        if clock.monotonic() > ends:
            break
        if record.store in failed:
            continue
        keep = [each.name for each in record.stored]
        try:
            store = backends.store(record.store)
            backends.ownership.check(record.store or backends.home_store)
            ours = backends.ownership.made(record.run).has_lineage
            gone += stored.sweep_orphans(store, record.run, keep, _closed_below(record), ours)
        except Superseded:
            failed.add(record.store)
        except (OrchestratorError, OSError) as error:
            say(f"the home store could not be cleaned up; the next start tries again: {error}")
            failed.add(record.store)
    if gone:
        say(f"removed {gone} unused blobs from home stores")


def _closed_below(record: RunRecord) -> int:
    """The generation below which nothing can be published any more: the oldest one that may still exist,
    or one after the last. The run's next session begins a new generation."""
    numbers = (name.rpartition("-s")[2] for name in _there(record))
    return min((int(n) if n.isdecimal() else 0 for n in numbers), default=record.generation + 1)


def _entries(folder: Path) -> list[Path]:
    """The entries of a folder; empty if it is not a folder or is a link."""
    try:
        return sorted(folder.iterdir()) if stat.S_ISDIR(folder.lstat().st_mode) else []
    except OSError:
        return []


def _is_stale(path: Path, now: float) -> bool:
    """Whether nothing in it was written for a long time. Looks at every file, because a folder's own time
    does not change while files in it grow."""
    try:
        newest = path.lstat().st_mtime
        for here, folders, names in os.walk(path):
            newest = max([newest, *(Path(here, name).lstat().st_mtime for name in folders + names)])
    except OSError:
        return False
    return now - newest > DRAFT_SECONDS
