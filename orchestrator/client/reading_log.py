"""Reads the controller's log, also while it is written and rotated. Asks nobody, and changes nothing."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from orchestrator.client.controller_log import BYTES_MAX, Entry, entry_of, older
from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.files import open_own
from orchestrator.home import CONTROLLER_LOG

LOOK_SECONDS = 0.5
FILE_BYTES_MAX = 4 * BYTES_MAX  # of each, from its end
LINE_BYTES_MAX = 1 << 20  # what is longer is cut into several


def entries(
    home: Path, clock: Clock, *, tail: int | None, follow: bool, stop: Callable[[], bool]
) -> Iterator[Entry]:
    """The newest `tail` entries (None: all that are kept), oldest first. With `follow` it waits for more,
    until `stop` returns True between two looks."""
    current = home / CONTROLLER_LOG
    stream = _opened(current)
    kept: deque[Entry] = deque(maxlen=tail)
    for path in reversed(older(home)):
        if not _is(stream, path) and (before := _opened(path)) is not None:  # rotated just now
            with before:
                kept.extend(_lines(before))
    if stream is not None:
        kept.extend(_lines(stream))
    yield from kept
    try:
        while follow and not stop():
            if stream is not None:
                yield from _lines(stream)
            if not _is(stream, current):
                if stream is not None:
                    yield from _lines(stream)  # what came before the file was replaced
                    stream.close()
                if (stream := _opened(current)) is not None:
                    continue
            clock.wait(threading.Event(), LOOK_SECONDS)
    finally:
        if stream is not None:
            stream.close()


def _opened(path: Path) -> IO[bytes] | None:
    """Raises InputError for anything but a file."""
    try:
        stream = open_own(path)
    except FileNotFoundError:
        return None
    except InputError as error:
        raise InputError(f"{error}: move it away, and the controller begins a new one") from None
    stream.seek(
        max(0, os.fstat(stream.fileno()).st_size - FILE_BYTES_MAX)
    )  # a huge one is not the controller's
    return stream


def _is(stream: IO[bytes] | None, path: Path) -> bool:
    """Whether the stream is still the file of this name."""
    if stream is None:
        return False
    try:
        ours, there = os.fstat(stream.fileno()), path.stat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _lines(stream: IO[bytes]) -> Iterator[Entry]:
    """The whole lines from here on. An unfinished one stays for the next look."""
    while line := stream.readline(LINE_BYTES_MAX):
        if not line.endswith(b"\n") and len(line) < LINE_BYTES_MAX:
            stream.seek(-len(line), 1)
            return
        if text := line.decode(errors="replace").strip("\0 \t\r\n"):  # a crash may leave zeros
            yield entry_of(text)
