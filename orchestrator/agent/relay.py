"""The command's own reports on their way out: copied to where they are collected, without the secrets.

Bounded in what it reads at a time and in all; a disk that is full costs lines. Decides nothing, understands
no line: that is `progress`.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.mask import Mask, MaskedStream
from orchestrator.session import files
from orchestrator.session.files import Odd

_READ_BYTES = 1 << 20
# Never through a link, never waiting for the reader of a FIFO: the command may write here, too.
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Relay:
    """Appends what grows in `source` to `target`. A source that was begun anew is read from its beginning."""

    def __init__(self, source: Path, target: Path, mask: Mask) -> None:
        self._source = source
        self._target = target
        self._masked = MaskedStream(mask)
        self._offset = 0
        self._left = bounds.RELAYED_PROGRESS_BYTES_MAX

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
            with files.opened(self._source.parent, self._source.name) as file:
                if file is None:
                    return b""
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read(min(_READ_BYTES, self._left))
        except (OSError, Odd):  # a link, a pipe or a device, which the command may have put there
            return b""
        self._offset += len(data)
        self._left -= len(data)
        return data

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            descriptor = os.open(self._target, _APPEND, 0o644)
            with os.fdopen(descriptor, "ab") as file:
                file.write(data)
        except OSError:
            return
