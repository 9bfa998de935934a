"""Makes checkpoints of what a script saves by itself, by the job's pattern, in a thread of its own.

Copies what has settled, because the script may write to the same file again, and offers the copy to the
committer. Decides when something is settled and which step it is. Never changes what the script saved, and
never knows how it is resumed.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from orchestrator.agent.candidates import Candidate, Signature, candidates, changed_ns, signed
from orchestrator.agent.folder import Folder
from orchestrator.agent.wholeness import is_being_written, is_whole
from orchestrator.clock import Clock
from orchestrator.core import bounds
from orchestrator.core.save_pattern import Saved, SavePattern
from orchestrator.files import (
    Lack,
    check_room,
    copy_file,
    holes,
    link,
    make_folder,
    opened,
    remove_empty,
    remove_tree,
    rename,
)

# A folder is written file by file, with nothing open in between. Until one has shown which files there are,
# it must not have changed for so many times as long.
_FOLDER_FACTOR = 10
_PAUSE_FACTOR = 10  # after a copy that failed, for so many times as long; doubles with the next one
_PAUSE_SECONDS_MAX = 600.0
_YOUNG_SECONDS = 0.01  # a tick of the kernel's clock: within it, a file may change without a trace
_RESTLESS_FACTOR = 5  # a file that changed for so many times as long without being still
_COPIES_MAX = 5  # of a file that changes while it is copied
_LOOKS_SHARE = 20.0  # a look must take no more than this part of the time: 1 / 20


class Watcher(threading.Thread):
    """`offer` gets the copies, each a folder `step-<n>`. `reached` gives the last step that the command
    reported, and `every` the seconds between two copies; 0: every save is copied. `resumed` is the step that
    the session resumed. `taken` is the step of the newest copy, and when that was saved, in unix seconds.
    `warnings` have one reader, which empties them. `bug` is the exception that ended the thread too early."""

    def __init__(
        self,
        folder: Folder,
        pattern: SavePattern,
        resumed: int | None,
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
        self._resumed = self._newest = resumed
        self._clock = clock
        self._settle = settle_seconds
        self._offer, self._reached, self._every = offer, reached, every
        self._over = threading.Event()
        self._killed = False
        self._seen: dict[str, Candidate] = {}
        self._taken: dict[str, Signature] = {
            each.path: each.signature for each in candidates(self._root, pattern)
        }
        self._steps: dict[int, str] = {}  # numbered ones: what was taken as this step
        self._parts: set[Saved] = set()  # of which there is more than one
        self._refused: set[str] = set()  # what was not taken for a reason that people must hear
        self._count = 0
        self._shape: frozenset[str] | None = None  # the files of the last folder that was taken
        self._taken_at: float | None = None
        self.taken: tuple[int | None, float] = (None, 0.0)
        self._paused_until = 0.0
        self._failures = self._failed_size = 0  # copies in a row that failed, and the size of the last one
        self._told: set[str] = set()
        self.found = 0
        self.behind: int | None = None  # a step that was saved although the session resumed a later one
        self.warnings: deque[str] = deque()
        self.bug: Exception | None = None

    def covers(self, name: str, *, in_checkpoints: bool) -> bool:
        """Whether a file of the checkpoint folder or the working directory belongs to something that matches
        the pattern, and that was not refused."""
        saved = self._pattern.root([name])
        watched = in_checkpoints == self._pattern.in_checkpoints
        return watched and saved is not None and saved not in self._refused

    def finish(self, *, killed: bool) -> None:
        """Ends the thread after a last look. `killed`: the command ended by a signal, so what it wrote last
        may be incomplete."""
        self._killed = killed
        self._over.set()

    def run(self) -> None:
        try:
            took = 0.0
            while not self._clock.wait(self._over, max(self._settle / 3.0, took * _LOOKS_SHARE)):
                began = self._clock.monotonic()
                self._look()
                took = self._clock.monotonic() - began
            self._look_last()
        except Exception as error:  # noqa: BLE001 - the main thread reports it as the agent's own bug
            self.bug = error

    def _look(self) -> None:
        now = self._clock.monotonic()
        new, every = self._new(), self._every()
        if self._taken_at is not None and now - self._taken_at < every:
            return
        if every <= 0.0:
            for number, each in enumerate(new, 1):
                if self._has_settled(each, now, number < len(new)):
                    self._take(each)
            return
        for later, each in enumerate(reversed(new)):
            if self._has_settled(each, now, later > 0) and self._take(each):
                self._pass_over(new[: len(new) - later - 1])
                return

    def _pass_over(self, older: list[Candidate]) -> None:
        """What was saved before the one that was taken is not worth a copy any more."""
        self._taken |= {each.path: each.signature for each in older}

    def _look_last(self) -> None:
        """Nothing is written any more. Something incomplete leaves the one before it."""
        now = self._clock.monotonic()
        for later, each in enumerate(reversed(self._new())):
            if self._has_settled(each, now, later > 0 or not self._killed) and self._take(each):
                return

    def _new(self) -> list[Candidate]:
        """What was not taken yet, oldest first."""
        found = list(candidates(self._root, self._pattern))
        seen_at = self._clock.monotonic()  # a look may take long, and what changed meanwhile is new
        self._seen = {each.path: self._known(each, seen_at) for each in found}
        self.found = max(self.found, len(self._seen))
        for each in self._seen.values():
            if each.odd:
                self._refuse(each, f"is not taken as a checkpoint: {each.odd}")
        fresh = (each for each in self._seen.values() if self._is_fresh(each, each.saved))
        return sorted(fresh, key=lambda each: each.order)

    def _is_fresh(self, each: Candidate, saved: Saved) -> bool:
        return not each.odd and each.saved == saved and self._taken.get(each.path) != each.signature

    def _known(self, each: Candidate, now: float) -> Candidate:
        before = self._seen.get(each.path)
        if before is not None and (before.signature, before.odd) == (each.signature, each.odd):
            return before
        each.since = each.restless = now
        if before is not None and before.signature != self._taken.get(each.path):
            each.restless = before.restless
        each.replaced = (
            before is not None
            and before.is_file
            and each.is_file
            and before.signature[0][-1] != each.signature[0][-1]
        )
        return each

    def _has_settled(self, each: Candidate, now: float, is_left: bool) -> bool:
        """Whether nobody is writing it any more. `is_left`: the script has gone on since, or has ended by
        itself. A single file may also say by itself that it is whole, or have come in one piece."""
        whole = self._wholeness(each)
        if whole is False:
            return False
        at_once = each.is_file and (whole or each.replaced or self._is_restless(each, now))
        if not (is_left or at_once or now - each.since >= self._settle_seconds(each)):
            return False
        return self._over.is_set() or not is_being_written(
            {str((self._root / name).resolve()) for name, *_ in each.signature}
        )

    def _is_restless(self, each: Candidate, now: float) -> bool:
        """Whether it changes too often to be still for long. Then it is taken while nobody has it open."""
        return not self._over.is_set() and now - each.restless >= _RESTLESS_FACTOR * self._settle

    def _settle_seconds(self, each: Candidate) -> float:
        known = each.is_file or _shape(each) == self._shape
        return self._settle if known else _FOLDER_FACTOR * self._settle

    def _wholeness(self, each: Candidate) -> bool | None:
        """False if any of its files is incomplete, True if all are whole."""
        try:
            found = [is_whole(self._root / name) for name, *_ in each.signature]
        except FileNotFoundError:
            return False
        except OSError as error:
            self._refuse(each, f"is not taken as a checkpoint: {error.strerror or error}")
            return False
        return False if False in found else None if None in found else True

    def _take(self, each: Candidate) -> bool:
        step = self._step(each.saved)
        if self._is_part(each, step) or self._is_paused(each):
            return False
        draft = self._copies / ".tmp-copy"
        try:
            if self._is_hollow(each):
                return False
            fits = self._fits(each)
            if not fits and not self._over.is_set():
                return False
            signature = self._copy(each, draft, linked=not fits)
            if not signature:
                return False
            target = self._place() / f"step-{step}"
            rename(draft, target)
        except FileNotFoundError:
            return False  # the script has removed it
        except OSError as error:
            self._failures += 1  # the disk may be full, and each try fills it again
            self._failed_size = each.size
            pause = min(_PAUSE_FACTOR * self._settle * 2.0 ** (self._failures - 1), _PAUSE_SECONDS_MAX)
            self._paused_until = self._clock.monotonic() + max(self._every(), pause)
            self._refuse(each, f"could not be copied: {error.strerror or error}")
            return False
        finally:
            self._drop(draft)
        self._note(each, step, signature)
        self._offer(target)
        return True

    @staticmethod
    def _drop(draft: Path) -> None:
        with suppress(OSError):
            remove_tree(draft)

    def _copy(self, each: Candidate, draft: Path, *, linked: bool) -> Signature:
        """What was copied; empty if it changed meanwhile. Raises OSError. `linked`: the script has ended, and
        there is no room for a copy.

        A script may overwrite its one file more often than anybody can look at it. If the copy says by itself
        that it is whole, then it is, whatever the file was when it was looked at first.
        """
        path = self._root / each.path
        for _ in range(_COPIES_MAX):
            before, odd = signed(self._root, path)
            if odd or not before:
                break
            young = self._clock.now() - changed_ns(before) / 1e9 < _YOUNG_SECONDS
            self._drop(draft)
            try:
                self._fill(draft, before, linked=linked)
            except BlockingIOError:
                continue  # it has grown since
            if before != each.signature and not (each.is_file and is_whole(draft / each.path)):
                break
            if signed(self._root, path) == (before, "") and not (young and self._differs(before, draft)):
                return before
        return ()

    def _fill(self, draft: Path, signature: Signature, *, linked: bool) -> None:
        for name, size, *_ in signature:
            make_folder((draft / name).parent)
            if linked:
                self._link(name, draft / name)
            else:
                copy_file(self._root / name, draft / name, bytes_max=size)

    def _link(self, name: str, target: Path) -> None:
        with opened(self._root, name) as file:
            if file is None or not link(file, target):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    def _differs(self, signature: Signature, draft: Path) -> bool:
        """Whether a copy is not what is there now, although sizes and times are the same."""
        filecmp.clear_cache()  # which goes by sizes and times
        names = (name for name, *_ in signature)
        return not all(filecmp.cmp(self._root / name, draft / name, shallow=False) for name in names)

    def _place(self) -> Path:
        """A new folder for a copy: the one of the same step may be about to be committed."""
        for before in self._copies.iterdir():
            with suppress(OSError):  # it is not empty
                remove_empty(before)
        self._count += 1
        place = self._copies / f"{self._count:06}"
        make_folder(place)
        return place

    def _is_paused(self, each: Candidate) -> bool:
        """Whether a copy as large as this one has just failed."""
        paused = not self._over.is_set() and self._clock.monotonic() < self._paused_until
        return paused and each.size >= self._failed_size

    def _is_hollow(self, each: Candidate) -> bool:
        why = holes(self._root, {name: (self._root / name).lstat() for name, *_ in each.signature})
        if why:
            self._warn(f"{each.path!a} is not taken as a checkpoint: {why}", f"{each.path} is hollow")
        return bool(why)

    def _fits(self, each: Candidate) -> bool:
        """Whether a copy may be begun. Files that are stored in parts take as much again when committed."""
        parted = sum(size for _, size, *_ in each.signature if size > bounds.PART_BYTES_MAX)
        try:
            check_room(self._copies, each.size + parted, 2 * len(each.signature))
        except Lack as lack:
            if not self._over.is_set():
                why = f"is not taken as a checkpoint: {lack.strerror}: free some there, and it is taken"
                self._refuse(each, why, "room")
            return False
        return True

    def _is_part(self, each: Candidate, step: int) -> bool:
        """Whether there is something else of the same step: the checkpoint may need both."""
        if each.saved == Saved(None, None):
            return False
        fresh = {other.path for other in self._seen.values() if self._is_fresh(other, each.saved)}
        rivals = (fresh | {self._steps.get(step, each.path)}) - {each.path}
        if not rivals and each.saved not in self._parts:
            return False
        if each.saved not in self._parts:
            both = " and ".join(ascii(name) for name in sorted((each.path, min(rivals))))
            self._warn(
                f"{both} are both step {step}, so neither may be all of it: save a step's files into one "
                "folder, and watch that"
            )
        self._parts.add(each.saved)
        self._refused.add(each.path)
        self._taken[each.path] = each.signature
        return True

    def _note(self, each: Candidate, step: int, signature: Signature) -> None:
        self._taken[each.path] = signature
        self._refused.discard(each.path)
        self._taken_at, self._failures = self._clock.monotonic(), 0
        self.taken = step, changed_ns(signature) / 1e9
        if each.saved != Saved(None, None):
            self._steps[step] = each.path
        if not each.is_file:
            self._shape = _shape(each)
        if self._resumed is not None and step < self._resumed:
            self.behind = step
        self._newest = step

    def _step(self, saved: Saved) -> int:
        """The script's own count. Without one, the last step that it reported, and always a later one. The
        first is 1: a checkpoint at step 0 is no progress."""
        if saved.step is not None:
            return saved.step
        if saved.epoch is not None:
            return saved.epoch
        return max((self._newest or 0) + 1, self._reached() or 0)

    def _refuse(self, each: Candidate, why: str, key: str = "") -> None:
        self._refused.add(each.path)
        self._warn(f"{each.path!a} {why}", f"{each.path} {key}" if key else "")

    def _warn(self, text: str, key: str = "") -> None:
        """Once. `key`: what stays the same while the text changes."""
        if (key or text) not in self._told and len(self._told) < bounds.WARNINGS_MAX:
            self._told.add(key or text)
            self.warnings.append(text)


def _shape(each: Candidate) -> frozenset[str]:
    """The names of its files, the same for every step."""
    return frozenset(re.sub(r"\d+", "#", name) for name, *_ in each.signature)
