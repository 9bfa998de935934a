"""What a crash left in this home, its store and on its platforms: ended and removed when a controller starts.

Decides what nobody can want any more: drafts, checkpoints on their way into sessions that are over, blobs
of runs that published them in part. Must never touch what a session made and nobody has taken over, nor
what a live session or another process uses. What is merely old is not its business.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.order import run_of
from orchestrator.core.run import RunRecord
from orchestrator.engine.perform import Backends, is_unpublished
from orchestrator.errors import OrchestratorError
from orchestrator.files import PREFIX, remove_tree, sweep
from orchestrator.home import BUNDLES, IMAGES, INPUTS, RESULTS, RUNS, STAGED, Folders
from orchestrator.platforms.platform import Tidying
from orchestrator.session.layout import BLOBS
from orchestrator.stores import checkpoints as stored

SECONDS_MAX = 60.0  # of the part that a large store may make long; the next start goes on
_DRAFT = (
    ".tmp-",
    ".pull-",
)  # PREFIX, which begins so, and what older versions named otherwise and did not lock
DRAFT_SECONDS = 3600.0  # nobody writes one file for so long without a byte


def begin(
    backends: Backends,
    records: Iterable[RunRecord],
    runs: Iterable[str],
    clock: Clock,
    say: Callable[[str], None],
) -> threading.Thread:
    """To be called by who has just taken over the ledger, before its first tick. What is doomed in the home
    is listed before this returns, so that nothing of this controller's is; the rest goes on in a thread.

    `records`: every run with anything on a platform, and of the others those whose store is to be swept.
    `runs`: the names of all in the ledger; of others, which may be another ledger's, nothing is touched.
    """
    known = tuple(records)
    live = frozenset(name for record in known for name in _there(record))
    doomed = tuple(of_sessions_over(backends.folders, frozenset(runs), live))

    def tidy() -> None:
        for path in doomed:
            with contextlib.suppress(OSError):
                remove_tree(path)
        sweep_drafts(backends.folders, clock.now())
        tidy_platforms(backends, say)
        sweep_store(backends, known, clock, say)

    thread = threading.Thread(target=tidy, name="tidying", daemon=True)
    thread.start()
    return thread


def _there(record: RunRecord) -> list[str]:
    """The run's sessions that may still be somewhere."""
    strays = [stray.session for stray in record.strays]
    return strays if record.session is None else [*strays, record.session.name]


def of_sessions_over(folders: Folders, runs: frozenset[str], live: frozenset[str]) -> Iterator[Path]:
    """What this home holds for sessions of these runs that are over: checkpoints staged for them, blobs
    brought of them, and drafts beside what was brought. Of all this a controller is the only writer. Where a
    checkpoint was brought and not published, its blobs may be the only copy: they stay."""
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
    """Drafts that nobody holds. Those of `orchestrator.files` stay while their writer locks them, however
    old; of those that an older version left, the young stay: it may be writing them now."""
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
    """Each platform's own leavings: processes of sessions that are over, what was being staged."""
    for platform in backends.platforms.values():
        try:
            if isinstance(platform, Tidying):
                platform.tidy()
        except (OrchestratorError, OSError) as error:
            say(f"{platform.name} could not be tidied, the next start tries again: {error}")
        except Exception as error:  # noqa: BLE001 - the barrier: told, and the others are tidied all the same
            backends.unforeseen(f"tidying {platform.name}", error)


def sweep_store(
    backends: Backends, records: Iterable[RunRecord], clock: Clock, say: Callable[[str], None]
) -> None:
    """Blobs in the runs' home stores that no manifest names, of generations that nobody publishes any more;
    for as long as SECONDS_MAX."""
    ends = clock.monotonic() + SECONDS_MAX
    gone = 0
    failed: set[str] = set()
    for record in records:
        if clock.monotonic() > ends:
            break
        if record.store in failed:
            continue
        keep = [checkpoint.name for checkpoint in record.accepted]
        try:
            store = backends.store(record.store)
            gone += stored.sweep_orphans(store, record.run, keep, _closed_below(record))
        except (OrchestratorError, OSError) as error:
            say(f"the home store could not be tidied, the next start tries again: {error}")
            failed.add(record.store)
    if gone:
        say(f"removed {gone} blobs from home stores that no checkpoint names")


def _closed_below(record: RunRecord) -> int:
    """Of what generations nothing is published any more: those before the first that may still be somewhere,
    else all there were. The run's next session begins another."""
    numbers = (name.rpartition("-s")[2] for name in _there(record))
    return min((int(n) if n.isdecimal() else 0 for n in numbers), default=record.generation + 1)


def _entries(folder: Path) -> list[Path]:
    """What a folder holds; nothing where it is none, or a link to one."""
    try:
        return sorted(folder.iterdir()) if stat.S_ISDIR(folder.lstat().st_mode) else []
    except OSError:
        return []


def _is_stale(path: Path, now: float) -> bool:
    """Whether nothing of it was written for long: a folder itself stays old while the files in it grow."""
    try:
        newest = path.lstat().st_mtime
        for here, folders, names in os.walk(path):
            newest = max([newest, *(Path(here, name).lstat().st_mtime for name in folders + names)])
    except OSError:
        return False
    return now - newest > DRAFT_SECONDS
