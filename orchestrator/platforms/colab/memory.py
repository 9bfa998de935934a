"""What this machine knows of each session on Colab beyond its name: one small file per session. Also what
each kind of machine has cost.

A home that lost these files still finds a session's machine by the session's name. It does not know what
only these files say: that a session was stopped before its start, or that it ran on a machine that has
vanished since.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from orchestrator.core import wire
from orchestrator.files import make_folder, read_small, remove_tree, write_whole
from orchestrator.platforms.colab.values import is_rate

_BYTES_MAX = 1 << 16
T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    """Times in unix seconds. `order`: for which order it was prepared, as a hash; `accelerator`: on what.
    `asked_at`: when a machine was asked for; None: never, or Colab certainly gave none, or has it back.
    `sent`: its cell was sent, so it may have started. `stopped`: it is to be launched no more.
    """

    order: str = ""
    accelerator: str = ""
    asked_at: float | None = None
    sent: bool = False
    stopped: bool = False


@dataclass(frozen=True)
class Rates:
    """Units per hour by kind of machine, as measured."""

    measured: Mapping[str, float] = field(default_factory=dict)


class Memory:
    """The files below `folder`. Safe to use from several threads of one process."""

    def __init__(self, folder: Path) -> None:
        self._sessions = folder / "sessions"
        self._rates = folder / "rates.json"
        self._lock = threading.Lock()

    def of(self, session: str) -> Known:
        return _read(Known, self._path(session))

    def note(self, session: str, **changes: Any) -> Known:
        """Replaces these fields. Writes nothing if they do not change."""
        with self._lock:
            before = self.of(session)
            after = replace(before, **changes)
            if after != before:
                make_folder(self._sessions, 0o700)
                write_whole(self._path(session), wire.encode(after))
            return after

    def sessions(self) -> tuple[str, ...]:
        return tuple(sorted(path.stem for path in self._sessions.glob("*.json")))

    def accelerators(self) -> tuple[str, ...]:
        """Those that a session may be using."""
        return tuple(sorted({self.of(each).accelerator for each in self.sessions()} - {""}))

    def forget(self, session: str) -> None:
        with self._lock:
            remove_tree(self._path(session))

    def rates(self) -> dict[str, float]:
        found = _read(Rates, self._rates).measured
        return {kind: per_hour for kind, per_hour in found.items() if is_rate(per_hour)}

    def measured(self, kind: str, per_hour: float) -> None:
        with self._lock:
            before = self.rates()
            if before.get(kind) != per_hour:
                make_folder(self._rates.parent, 0o700)
                write_whole(self._rates, wire.encode(Rates(before | {kind: per_hour})))

    def _path(self, session: str) -> Path:
        return self._sessions / f"{session}.json"


def _read(kind: type[T], path: Path) -> T:
    data = read_small(path, _BYTES_MAX)
    if data is not None:
        with suppress(ValueError):
            return wire.decode(kind, data)
    return kind()
