"""Copies the command's progress reports into the outbox, without the secrets.

Limits how much it reads at a time and in total, and waits for room on the disk. Decides nothing, and does not
parse the lines: `progress` does.
"""

from __future__ import annotations

from pathlib import Path

from orchestrator import files
from orchestrator.core import bounds
from orchestrator.core.mask import Mask, MaskedStream
from orchestrator.files import Odd

_READ_BYTES = 1 << 20


class Relay:
    """Copies new data from `source` to `target`. A source that starts again is read from its beginning."""

    def __init__(self, source: Path, target: Path, mask: Mask) -> None:
        self._source = source
        self._target = target
        self._masked = MaskedStream(mask)
        self._offset = 0
        self._left = bounds.RELAYED_PROGRESS_BYTES_MAX

    def copy(self) -> bool:
        """Copies a piece of what is new, and returns whether there may be more."""
        data = self._read()
        self._write(self._masked.feed(data))
        return len(data) == _READ_BYTES

    def finish(self) -> None:
        """Copies everything that is left, once the command has ended."""
        while self.copy():
            pass
        self._write(self._masked.feed(b"", last=True))

    def _read(self) -> bytes:
        try:
            with files.opened(self._source.parent, self._source.name) as file:
                if file is None:
                    return b""
                size = file.seek(0, 2)
                if size < self._offset:
                    self._offset = 0
                wanted = min(size - self._offset, _READ_BYTES, self._left)
                files.check_room(self._target.parent, wanted)
                file.seek(self._offset)
                data = file.read(wanted)
        except (OSError, Odd):  # no room; or a link, a pipe or a device, which the command may have put there
            return b""
        self._offset += len(data)
        self._left -= len(data)
        return data

    def _write(self, data: bytes) -> None:
        if not data:
            return
        try:
            files.append(self._target, data)
        except OSError:
            return
