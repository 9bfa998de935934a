"""The session's log: the output of the command and the agent, in segments, with a size limit and no secrets.

When the log exceeds its limit, the first segments (how it began) and the newest ones stay, and the middle is
dropped. Decides nothing. A full disk costs log lines, but never the training.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import IO

from orchestrator.clock import Clock, utc_text
from orchestrator.core import bounds
from orchestrator.core.mask import Mask, MaskedStream
from orchestrator.files import append, check_room, remove_tree

TAIL_LINES = 50
TAIL_BYTES = 8 * 1024
_KEPT_BYTES = 64 * 1024  # what several processes and their launcher say at their end


class Log:
    """Thread-safe. `written` counts the bytes of the command's output, `lost` those that could not be written
    to disk. `mask` removes the secrets from the agent's own lines and from the command's."""

    def __init__(self, folder: Path, clock: Clock, segment_bytes: int, total_bytes: int) -> None:
        self._folder = folder
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._segments_max = max(2, total_bytes // segment_bytes)
        self._lock = threading.Lock()
        self._masked = MaskedStream(Mask())
        self._end = bytearray()
        self._size = 0
        self._fresh = True
        self._number = 1
        self._kept = [1]
        self.mask = Mask()
        self.written = 0
        self.lost = 0

    def hide(self, mask: Mask) -> None:
        """From now on, secrets appear as `***`. Call this before the command writes anything."""
        with self._lock:
            self.mask = mask
            self._masked = MaskedStream(mask)

    def say(self, text: str) -> None:
        """Writes one line of the agent."""
        with self._lock:
            line = self._own_line(text)
            self._append(line if self._fresh else b"\n" + line)

    def _own_line(self, text: str) -> bytes:
        return f"[agent {utc_text(self._clock.now())}] {self.mask.text(text)}\n".encode(errors="replace")

    def pump(self, output: IO[bytes]) -> None:
        """Copies the command's output until its end. It must never stop reading: the command would block."""
        while data := output.read1(1 << 16):  # type: ignore[attr-defined]
            self.write(data)
        self.write(b"", last=True)

    def write(self, data: bytes, *, last: bool = False) -> None:
        with self._lock:
            self.written += len(data)
            shown = self._masked.feed(data, last=last)
            self._end += shown
            if len(self._end) > 2 * _KEPT_BYTES:
                del self._end[:-_KEPT_BYTES]
            self._append(shown)

    def tail(self) -> str:
        """The end of the command's output, for people: whole lines, within TAIL_LINES and TAIL_BYTES."""
        return "\n".join(self.end(TAIL_BYTES).splitlines()[-TAIL_LINES:])

    def end(self, bytes_max: int = _KEPT_BYTES) -> str:
        """The end of the command's output: whole lines."""
        with self._lock:
            data = bytes(self._end)
        if len(data) > bytes_max:
            data = data[-bytes_max:]
            data = data[data.find(b"\n") + 1 :]
        return data.decode(errors="replace")

    def _append(self, data: bytes) -> None:
        while data:
            room = self._segment_bytes - self._size
            piece = data if len(data) <= room else data[: self._cut(data, room)]
            data = data[len(piece) :]
            if piece:
                self._put(piece)
            if data or self._size >= self._segment_bytes:
                self._rotate()

    def _put(self, piece: bytes) -> None:
        try:
            check_room(self._folder, len(piece), files=0 if self._size else 1)
            append(self._folder / f"{self._number:06d}.log", piece)
        except OSError:
            self.lost += len(piece)
        self._size += len(piece)
        self._fresh = piece.endswith(b"\n")

    def _cut(self, data: bytes, room: int) -> int:
        """Where to end a segment: after the last line that fits. A line longer than a segment is split."""
        newline = data.rfind(b"\n", 0, room)
        return newline + 1 if newline >= 0 or self._size else room

    def _rotate(self) -> None:
        self._number += 1
        self._size = 0
        self._kept.append(self._number)
        if len(self._kept) > self._segments_max:
            limit = bounds.size_text(self._segments_max * self._segment_bytes)
            self._put(self._own_line(f"the log is longer than {limit}: some earlier lines were dropped"))
            dropped = self._kept.pop(max(1, self._segments_max // 8))
            remove_tree(self._folder / f"{dropped:06d}.log")
