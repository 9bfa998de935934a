"""What this machine knows of each session on Kaggle beyond its name: one small file per session.

A home that lost these files still finds its kernels in the account's own list. It does not know what only
these files say: that a session was stopped before its start, that a push got no answer a moment ago, that an
agent worked whose log and output are gone, and which datasets are a session's. So it may launch or upload a
session once more, give up output that never comes after `publish_seconds`, and leave a dataset for `doctor`.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from orchestrator.core import wire
from orchestrator.files import make_folder, read_small, remove_tree, write_whole

_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class Known:
    """`datasets`: the slugs of all that were made for the session, the newest last; `files` are in that one,
    and `whole` says that all of them were seen there. `unfound`: how many pushes did not find it.
    `credential`: the slug of the dataset with what opens the home store, and `credential_file` is in it; both
    are empty once that is deleted. `mounts`: names of inputs that are in none of them, because the kernel
    mounts their own data sets. `ships`: the session has an uplink; `shipped`: by what it said last, all
    but its last minutes are in the home store. `over`: it was seen to have ended.

    `kernel`: the slug that Kaggle gave the kernel, and `kernel_id` the number. `attempt`: how many kernels
    were pushed, all but the last of them deleted. `pushed_at`: when, in unix seconds; `accepted`: Kaggle said
    that the push succeeded. `seen`: the kernel was seen. `worked`: its agent was. `session_id`: what the
    kernel says Kaggle calls its session. `reads_from`: the kernel whose output it mounts. `stopped`: it is to
    be launched no more. `checkpoints`: how many its output had when its end was seen. `said`: what a person
    should know.
    """

    datasets: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    whole: bool = False
    unfound: int = 0
    ships: bool = False
    shipped: bool = False
    over: bool = False
    credential: str = ""
    credential_file: str = ""
    mounts: tuple[str, ...] = ()
    kernel: str = ""
    kernel_id: int = 0
    attempt: int = 0
    pushed_at: float | None = None
    accepted: bool = False
    seen: bool = False
    worked: bool = False
    session_id: int | None = None
    reads_from: str = ""
    stopped: bool = False
    checkpoints: int = 0
    said: tuple[str, ...] = ()

    @property
    def dataset(self) -> str:
        return self.datasets[-1] if self.datasets else ""

    @property
    def mounted(self) -> dict[str, tuple[str, ...]]:
        """The datasets that the session's kernel reads, and the files in each."""
        found = {self.dataset: self.files, self.credential: (self.credential_file,)}
        return {name: files for name, files in found.items() if name}


class Memory:
    """The files below `folder`. Safe to use from several threads of one process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def of(self, session: str) -> Known:
        data = read_small(self._path(session), _BYTES_MAX)
        if data is not None:
            with suppress(ValueError):
                return wire.decode(Known, data)
        return Known()

    def note(self, session: str, **changes: Any) -> Known:
        """Replaces these fields. Writes nothing if they do not change."""
        with self._lock:
            before = self.of(session)
            after = replace(before, **changes)
            if after != before:
                make_folder(self._folder)
                write_whole(self._path(session), wire.encode(after))
            return after

    def tell(self, session: str, text: str) -> None:
        """Adds to what a person should know of the session."""
        said = self.of(session).said
        if text not in said:
            self.note(session, said=(*said, text))

    def sessions(self) -> tuple[str, ...]:
        return tuple(path.stem for path in self._folder.glob("*.json"))

    def reader_of(self, kernel: str) -> str | None:
        """The session that mounts this kernel's output, if there is one."""
        return next((each for each in self.sessions() if self.of(each).reads_from == kernel), None)

    def forget(self, session: str) -> None:
        with self._lock:
            remove_tree(self._path(session))

    def _path(self, session: str) -> Path:
        return self._folder / f"{session}.json"
