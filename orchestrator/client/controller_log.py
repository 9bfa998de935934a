"""The controller's log: one JSON object a line in `controller.log`, rotated by size while it is written.

Decides what a line holds and when a new file begins. A log that cannot be written never stops the controller.
Must never know what the events mean. docs/operations.md describes the keys.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

from orchestrator.clock import utc_text
from orchestrator.files import make_folder, open_log, rename
from orchestrator.home import CONTROLLER_LOG

BYTES_MAX = 4 * 1024 * 1024  # of one file; a line more
OLDER_MAX = 3  # files that are kept besides the current one
TEXT_MAX = 32_768  # characters of one entry: a traceback has at most 30 frames
STATED = "controller"  # the event of a sentence about the controller itself
OUTPUT = "output"  # the event of a line that is not ours: the interpreter's or a library's
_STANDARD_OUTPUT, _STANDARD_ERROR = 1, 2


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"  # something failed; it is tried again, or a person is asked
    ERROR = "error"  # a run failed, or something happened that nobody foresaw


@dataclass(frozen=True)
class Entry:
    """One line. `at` in unix seconds. `event` is the kind of a run's event, or STATED, or OUTPUT. An empty
    `run`, `session` or `platform`: it concerns none."""

    at: float
    event: str
    text: str
    level: Level = Level.INFO
    run: str = ""
    session: str = ""
    platform: str = ""

    def json(self) -> dict[str, Any]:
        """The keys of a line, always all of them and in this order."""
        return {
            "time": utc_text(self.at).replace(" ", "T"),
            "level": self.level.value,
            "event": self.event,
            "run": self.run or None,
            "session": self.session or None,
            "platform": self.platform or None,
            "text": self.text,
            "at": round(self.at, 3),
        }


def entry_of(line: str) -> Entry:
    """The entry in a line of the log; any other text becomes an entry of the event OUTPUT."""
    try:
        found = json.loads(line)
        at = float(found["at"])
        texts = {key: str(found.get(key) or "") for key in ("run", "session", "platform")}
        return Entry(at, str(found["event"]), str(found["text"]), Level(found["level"]), **texts)
    except (ValueError, TypeError, KeyError, RecursionError, AttributeError):
        return Entry(0.0, OUTPUT, line)


def older(home: Path) -> tuple[Path, ...]:
    """Where the older files are, or would be; the newest first."""
    return tuple(home / f"{CONTROLLER_LOG}.{number}" for number in range(1, OLDER_MAX + 1))


class ControllerLog:
    """Appends entries. Safe to call from any thread.

    Before each line it looks whether the file is still the one of that name, so anybody may move or remove
    it. If the process's standard output or error is the log, which is so in the background, they move to the
    new file with it. On a full disk lines are lost, and later ones are written once there is space.
    """

    def __init__(self, home: Path, bytes_max: int = BYTES_MAX) -> None:
        self._home = home
        self._path = home / CONTROLLER_LOG
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._torn = False  # the last line was written in part
        self.trouble = ""  # why the last line was not written

    @property
    def is_standard_output(self) -> bool:
        """Whether what this process prints ends up in the log anyway."""
        return _same(_STANDARD_OUTPUT, self._path)

    def write(self, entry: Entry) -> None:
        values = {**entry.json(), "text": entry.text[:TEXT_MAX]}
        line = json.dumps(values).replace("\x7f", "\\u007f").encode() + b"\n"
        with self._lock:
            try:
                self._append(line)
                self.trouble = ""
            except OSError as error:
                self.trouble = error.strerror or str(error)

    def _append(self, line: bytes) -> None:
        descriptor = self._opened()
        if os.fstat(descriptor).st_size >= self._bytes_max:
            descriptor = self._rotated(descriptor)
        written = os.write(descriptor, b"\n" + line if self._torn else line)
        self._torn = written < len(line)

    def _opened(self) -> int:
        if self._descriptor is not None and _same(self._descriptor, self._path):
            return self._descriptor
        make_folder(self._home, 0o700)
        return self._use(open_log(self._path))

    def _rotated(self, full: int) -> int:
        """If it cannot be rotated, the file grows on: a long log is better than none."""
        with contextlib.suppress(OSError):
            names = (self._path, *older(self._home))
            for newer, name in reversed(list(pairwise(names))):
                if newer.exists():
                    rename(newer, name)
            return self._use(open_log(self._path))
        return full

    def _use(self, descriptor: int) -> int:
        before, self._descriptor, self._torn = self._descriptor, descriptor, False
        for each in (_STANDARD_OUTPUT, _STANDARD_ERROR):
            if any(_same(each, path) for path in older(self._home)):
                os.dup2(descriptor, each)
        if before is not None:
            os.close(before)
        return descriptor


def _same(descriptor: int, path: Path) -> bool:
    try:
        ours, there = os.fstat(descriptor), path.lstat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
