"""The command's own reports on their way out: copied to where they are collected, without the secrets.

Bounded in what it reads at a time and in all; a disk that is full costs lines. Decides nothing, understands
no line: that is `progress`.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from orchestrator.core.mask import Mask, MaskedStream

TOTAL_BYTES_MAX = 64 << 20
_READ_BYTES = 1 << 20


class Relay:
    """Appends what grows in `source` to `target`. A source that was begun anew is read from its beginning."""

    def __init__(self, source: Path, target: Path, mask: Mask) -> None:
        self._source = source
        self._target = target
        self._masked = MaskedStream(mask)
        self._offset = 0
        self._left = TOTAL_BYTES_MAX

    def copy(self) -> bool:
        """Takes a piece of what is new; returns whether there may be more."""
        data = self._read()
        self._write(self._masked.feed(data))
        return len(data) == _READ_BYTES

    def finish(self) -> None:
        """The command is gone: everything that is left."""
        while self.copy():
            pass
        self._write(self._masked.feed(b"", last=True))

    def _read(self) -> bytes:
        try:
            with _regular(self._source, os.O_RDONLY) as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(min(_READ_BYTES, self._left))
        except OSError:
            return b""
        self._offset += len(data)
        self._left -= len(data)
        return data

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            with _regular(self._target, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
                file.write(data)
        except OSError:
            return


def _regular(path: Path, how: int) -> BinaryIO:
    """Opens the file; raises OSError for a link, a pipe or a device, which the command may have put there."""
    descriptor = os.open(path, how | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file")
    return os.fdopen(descriptor, "rb" if how == os.O_RDONLY else "ab")
