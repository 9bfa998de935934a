"""Lists the home: every file and folder whose name belongs to our layout, with its age and size.

Follows no link and opens no file. Things that are not ours are listed, but never judged. Must never know what
is needed. `orchestrator.home` defines the layout.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.engine.collecting import is_unpublished
from orchestrator.files import PREFIX, is_locked
from orchestrator.home import BUNDLES, DEPOSITED, IMAGES, INPUTS, LIVE, PREPARING, RUNS, STAGED
from orchestrator.pruning.rules import Kind, Thing

SET_ASIDE = ".pruned"  # the ending of a thing that prune has renamed and not deleted yet
_ARCHIVE = re.compile(r"([0-9a-f]{64})\.(?:tar\.gz|left-out\.json)")
_CONTENT = re.compile(r"([0-9a-f]{64})")
# As in `orchestrator.files`. Older versions named and locked drafts of archives and of the agent differently.
_DRAFT = re.compile(rf"{re.escape(PREFIX)}[0-9a-f]{{16}}")
_OLDER_DRAFT = re.compile(r"\.tmp-([A-Za-z0-9_]+\.tar\.gz|agent\.pyz-[0-9]+-[0-9]+)")
_RUN = re.compile(r"[a-z0-9][a-z0-9-]*")
_SESSION = re.compile(r"(?P<run>[a-z0-9][a-z0-9-]*)-s[0-9]{2,9}")
_OF_A_RUN = frozenset({LIVE, PREPARING, DEPOSITED})
_BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system's own

Enough = Callable[[], bool]


@dataclass
class Listing:
    """`strange`: paths that are not ours, and what they are. `complete` is False if it was cut short; then
    sizes and counts cover only what was seen."""

    things: list[Thing] = field(default_factory=list)
    strange: dict[str, str] = field(default_factory=dict)
    complete: bool = True


def look(home: Path, *, measure: bool = True, enough: Enough = lambda: False) -> Listing:
    """Lists the home. Without `measure` it does not walk through folders, and their size is 0. Stops as soon
    as `enough` returns True."""
    return _Look(home, measure, enough).listing


def disk_bytes(folder: Path, enough: Enough = lambda: False) -> tuple[int, bool]:
    """The bytes that a folder uses on the disk, and whether all of it was counted. Links are not followed,
    and entries that cannot be read count as 0."""
    total, waiting = 0, [folder]
    while waiting:
        if enough():
            return total, False
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    total += entry.stat(follow_symlinks=False).st_blocks * _BLOCK_BYTES
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
    return total, True


class _Look:
    """One walk over the home."""

    def __init__(self, home: Path, measure: bool, enough: Enough) -> None:
        self._home = home
        self._measure = measure
        self._enough = enough
        self.listing = Listing()
        self._archives(BUNDLES, Kind.SOURCE)
        self._archives(IMAGES, Kind.IMAGE)
        self._inputs()
        self._staged()
        self._runs()
        self._drafts()

    # --- The folders, one by one ------------------------------------------------------------------------

    def _archives(self, folder: str, kind: Kind) -> None:
        for name, found, aside in self._entries(folder):
            path = f"{folder}/{name}"
            match = _ARCHIVE.fullmatch(name)
            if match is not None and stat.S_ISREG(found.st_mode):
                self._add(kind, path, found, aside, key=match[1])
            elif not self._draft(path, name, found, aside):
                self._not_ours(path, found)

    def _inputs(self) -> None:
        for name, found, aside in self._entries(INPUTS):
            path = f"{INPUTS}/{name}"
            match = _CONTENT.fullmatch(name)
            if match is not None and stat.S_ISDIR(found.st_mode):
                self._add(Kind.INPUT, path, found, aside, key=match[1])
            elif not self._draft(path, name, found, aside):
                self._not_ours(path, found)

    def _staged(self) -> None:
        for name, found, aside in self._entries(STAGED):
            match = _SESSION.fullmatch(name)
            if match is not None and stat.S_ISDIR(found.st_mode):
                self._add(Kind.RESUME, f"{STAGED}/{name}", found, aside, run=match["run"])
            else:
                self._not_ours(f"{STAGED}/{name}", found)

    def _runs(self) -> None:
        for run, found, aside in self._entries(RUNS):
            if not _RUN.fullmatch(run) or not stat.S_ISDIR(found.st_mode):
                self._not_ours(f"{RUNS}/{run}", found)
            elif aside:
                self._add(Kind.LOG, f"{RUNS}/{run}", found, aside, run=run)
            else:
                self._run(run, found)

    def _run(self, run: str, folder: os.stat_result) -> None:
        """Lists each entry of a run's folder separately, so that files which somebody else put there stay. An
        empty folder is listed itself."""
        empty = True
        for name, found, aside in self._entries(f"{RUNS}/{run}"):
            empty = False
            path = f"{RUNS}/{run}/{name}"
            match = _SESSION.fullmatch(name)
            if match is not None and match["run"] == run and stat.S_ISDIR(found.st_mode):
                unpublished = is_unpublished(self._home / (path + SET_ASIDE * aside))
                self._add(Kind.LOG, path, found, aside, run=run, unpublished=unpublished)
            elif name in _OF_A_RUN and stat.S_ISREG(found.st_mode):
                self._add(Kind.LOG, path, found, aside, run=run)
            elif not self._draft(path, name, found, aside):
                self._not_ours(path, found)
        if empty:
            self._add(Kind.LOG, f"{RUNS}/{run}", folder, False, run=run)

    def _drafts(self) -> None:
        for name, found, aside in self._entries("."):
            self._draft(name, name, found, aside)

    def _draft(self, path: str, name: str, found: os.stat_result, aside: bool) -> bool:
        """Lists it if it is a draft; returns whether it is one."""
        plain = stat.S_ISREG(found.st_mode)
        if _DRAFT.fullmatch(name) and (plain or stat.S_ISDIR(found.st_mode)):
            self._add(Kind.DRAFT, path, found, aside, in_use=not aside and is_locked(self._home / path))
        elif _OLDER_DRAFT.fullmatch(name) and plain:
            self._add(Kind.DRAFT, path, found, aside)
        else:
            return False
        return True

    # --- One entry --------------------------------------------------------------------------------------

    def _entries(self, folder: str) -> Iterator[tuple[str, os.stat_result, bool]]:
        """(name without the mark SET_ASIDE, its stat, whether it had the mark), sorted by name."""
        try:
            there = os.lstat(self._home / folder)
        except OSError:
            return
        if not stat.S_ISDIR(there.st_mode):
            self._not_ours(folder, there)
            return
        try:
            names = sorted(path.name for path in (self._home / folder).iterdir())
        except OSError as error:
            self.listing.strange[folder] = f"cannot be read ({error.strerror})"
            return
        for name in names:
            if self._enough():
                self.listing.complete = False
                return
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = os.lstat(self._home / folder / name)
                aside = name.endswith(SET_ASIDE)
                yield name.removesuffix(SET_ASIDE), found, aside

    def _add(
        self,
        kind: Kind,
        path: str,
        found: os.stat_result,
        aside: bool,
        *,
        run: str = "",
        key: str = "",
        in_use: bool = False,
        unpublished: bool = False,
    ) -> None:
        size = found.st_blocks * _BLOCK_BYTES
        if self._measure and stat.S_ISDIR(found.st_mode):
            inside, all_of_it = disk_bytes(self._home / (path + SET_ASIDE * aside), self._enough)
            size += inside
            self.listing.complete &= all_of_it
        identity = (found.st_dev, found.st_ino)
        self.listing.things.append(
            Thing(kind, path, size, found.st_mtime, run, key, identity, aside, in_use, unpublished)
        )

    def _not_ours(self, path: str, found: os.stat_result) -> None:
        what = (
            "a link"
            if stat.S_ISLNK(found.st_mode)
            else "a folder"
            if stat.S_ISDIR(found.st_mode)
            else "a file"
        )
        self.listing.strange[path] = what
