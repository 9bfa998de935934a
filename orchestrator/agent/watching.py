"""Makes checkpoints of what a script saves by itself, by the job's pattern, in a thread of its own.

Copies what has settled, because the script may write to the same file again, and offers the copy to the
committer. Decides when something is settled and which step it is. Never changes what the script saved, and
never knows how it is resumed.
"""

from __future__ import annotations

import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from orchestrator.agent.folder import Folder
from orchestrator.agent.wholeness import is_being_written, is_whole
from orchestrator.clock import Clock
from orchestrator.core import bounds
from orchestrator.core.save_pattern import Saved, SavePattern
from orchestrator.files import copy_file

_STILL_SECONDS_MAX = 120.0
_COPIES_MAX = 5  # of a file that changes while it is copied

Signature = tuple[tuple[str, int, int, int], ...]  # of each file: path, size, when written (ns), inode


@dataclass
class _Candidate:
    """Something that matches the pattern, as it was last seen; it has been so since `since`. This save of it
    began at `began`."""

    path: str
    saved: Saved
    signature: Signature
    since: float
    began: float
    order: tuple[int, int] = field(init=False)

    def __post_init__(self) -> None:
        number = self.saved.step if self.saved.step is not None else self.saved.epoch
        self.order = (-1 if number is None else number, max(at for _, _, at, _ in self.signature))


class Watcher(threading.Thread):
    """`offer` gets the copies, each a folder `step-<n>`. `reached` gives the last step that the command
    reported, and `every` the seconds between two copies. `newest` is the step that the session resumed.
    `bug` is the exception that ended the thread too early, `trouble` why the last copy failed."""

    def __init__(
        self,
        folder: Folder,
        pattern: SavePattern,
        newest: int | None,
        clock: Clock,
        settle_seconds: float,
        offer: Callable[[Path], None],
        reached: Callable[[], int | None],
        every: Callable[[], float],
    ) -> None:
        super().__init__(name="watcher", daemon=True)
        self._root = folder.checkpoints if pattern.in_checkpoints else folder.source
        self._copies = folder.watched
        self._pattern = pattern
        self._resumed = self._newest = newest
        self._clock = clock
        self._settle = settle_seconds
        self._offer, self._reached, self._every = offer, reached, every
        self._over = threading.Event()
        self._killed = False
        self._seen: dict[str, _Candidate] = {}
        self._taken: dict[str, Signature] = {each.path: each.signature for each in self._find(0.0)}
        self._taken_at: float | None = None
        self.found = 0
        self.behind: int | None = None  # a step that was saved although the session resumed a later one
        self.trouble = ""
        self.bug: Exception | None = None

    def covers(self, name: str) -> bool:
        """Whether a file of the working directory belongs to something that matches the pattern."""
        return not self._pattern.in_checkpoints and self._pattern.covers(name)

    def finish(self, *, killed: bool) -> None:
        """Ends the thread after a last look. `killed`: the command ended by a signal, so what it wrote last
        may be incomplete."""
        self._killed = killed
        self._over.set()

    def run(self) -> None:
        try:
            while not self._clock.wait(self._over, self._settle / 3.0):
                self._look()
            self._look_last()
        except Exception as error:  # noqa: BLE001 - the main thread reports it as the agent's own bug
            self.bug = error

    def _look(self) -> None:
        now = self._clock.monotonic()
        new = self._new(now)
        if self._taken_at is not None and now - self._taken_at < self._every():
            return
        for later, each in enumerate(reversed(new)):
            if self._has_settled(each, now, later > 0) and self._take(each):
                self._pass_over(new[: len(new) - later - 1])
                return

    def _look_last(self) -> None:
        """Nothing is written any more. Something incomplete leaves the one before it."""
        now = self._clock.monotonic()
        for later, each in enumerate(reversed(self._new(now))):
            if self._has_settled(each, now, later > 0 or not self._killed) and self._take(each):
                return

    def _pass_over(self, older: list[_Candidate]) -> None:
        """What was saved before the one that was taken is not worth a copy any more."""
        self._taken |= {each.path: each.signature for each in older}

    def _new(self, now: float) -> list[_Candidate]:
        """What was not taken yet, oldest first."""
        self._seen = {each.path: self._known(each) for each in self._find(now)}
        self.found = max(self.found, len(self._seen))
        fresh = (each for each in self._seen.values() if self._taken.get(each.path) != each.signature)
        return sorted(fresh, key=lambda each: each.order)

    def _known(self, each: _Candidate) -> _Candidate:
        before = self._seen.get(each.path)
        if before is None or before.signature == self._taken.get(each.path):
            return each
        if before.signature != each.signature:
            each.began = before.began
            return each
        return before

    def _find(self, now: float) -> Iterator[_Candidate]:
        for path in self._matching(self._root, 0):
            name = path.relative_to(self._root).as_posix()
            saved, signature = self._pattern.match(name), self._signature(path)
            if saved is not None and signature:
                yield _Candidate(name, saved, signature, now, now)

    def _matching(self, folder: Path, depth: int) -> Iterator[Path]:
        """What matches the pattern below a folder. Follows no link."""
        try:
            entries = list(islice(folder.iterdir(), bounds.LISTED_MAX))
        except OSError:
            return
        for entry in entries:
            if entry.is_symlink() or not self._pattern.pieces[depth].fullmatch(entry.name):
                continue
            if depth + 1 == len(self._pattern.pieces):
                yield entry
            elif entry.is_dir():
                yield from self._matching(entry, depth + 1)

    def _has_settled(self, each: _Candidate, now: float, is_left: bool) -> bool:
        """Whether nobody is writing it any more. `is_left`: the script has gone on since, or has ended by
        itself. A single file may also say by itself that it is whole. A folder may get its next file after a
        while, in which nothing is open: it must be still for as long as it took so far."""
        whole = self._wholeness(each)
        alone = [name for name, *_ in each.signature] == [each.path]
        still = max(self._settle, 0.0 if alone else min(each.since - each.began, _STILL_SECONDS_MAX))
        if whole is False or not (is_left or now - each.since >= still or (alone and whole)):
            return False
        return not is_being_written({str((self._root / name).resolve()) for name, *_ in each.signature})

    def _wholeness(self, each: _Candidate) -> bool | None:
        """False if any of its files is incomplete, True if all are whole."""
        try:
            found = [is_whole(self._root / name) for name, *_ in each.signature]
        except OSError:
            return False
        return False if False in found else None if None in found else True

    def _take(self, each: _Candidate) -> bool:
        step = self._step(each.saved)
        draft, target = self._copies / ".tmp-copy", self._copies / f"step-{step}"
        try:
            signature = self._copy(each, draft)
            if not signature:
                return False
            shutil.rmtree(target, ignore_errors=True)
            draft.rename(target)
        except FileNotFoundError:
            return False  # the script has removed it
        except OSError as error:
            self.trouble = f"{each.path} could not be copied: {error.strerror or error}"
            return False
        self._taken[each.path] = signature
        self._taken_at, self.trouble = self._clock.monotonic(), ""
        if self._resumed is not None and step < self._resumed:
            self.behind = step
        self._newest = step
        self._offer(target)
        return True

    def _copy(self, each: _Candidate, draft: Path) -> Signature:
        """What was copied; empty if it changed meanwhile.

        A script may overwrite its one file more often than anybody can look at it. If the copy says by itself
        that it is whole, then it is, whatever the file was when it was looked at first.
        """
        for _ in range(_COPIES_MAX):
            before = self._signature(self._root / each.path)
            shutil.rmtree(draft, ignore_errors=True)
            for name, *_ in before:
                (draft / name).parent.mkdir(parents=True, exist_ok=True)
                copy_file(self._root / name, draft / name)
            told = [name for name, *_ in before] == [each.path] and is_whole(draft / each.path)
            if not told and before != each.signature:
                break
            if self._signature(self._root / each.path) == before:
                return before
        return ()

    def _step(self, saved: Saved) -> int:
        """The script's own count. Without one, the last step that it reported, and always a later one. The
        first is 1: a checkpoint at step 0 is no progress."""
        if saved.step is not None:
            return saved.step
        if saved.epoch is not None:
            return saved.epoch
        return max((self._newest or 0) + 1, self._reached() or 0)

    def _signature(self, path: Path) -> Signature:
        """All plain files of what was saved; empty if there are none, or it is gone."""
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                return (self._stamp(path),)
            inside = sorted(islice(path.rglob("*"), bounds.FILES_MAX))
            return tuple(self._stamp(each) for each in inside if stat.S_ISREG(each.lstat().st_mode))
        except OSError:
            return ()

    def _stamp(self, path: Path) -> tuple[str, int, int, int]:
        found = path.lstat()
        return path.relative_to(self._root).as_posix(), found.st_size, found.st_mtime_ns, found.st_ino
