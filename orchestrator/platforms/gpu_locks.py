"""Which process uses a GPU of this machine: one lock file for each GPU and user, held by the session's agent.

All homes and controllers of a user share the files, so that no two of them use one GPU. A lock ends with the
process that holds it, however that ends. What is left of a training then still holds the GPU. Decides nothing
(docs/decisions/032-gpu-locks-per-user.md, 038-what-outlives-a-gpu-lock.md).
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator import processes, user
from orchestrator.clock import Clock
from orchestrator.core.wording import count_text
from orchestrator.errors import Rejected
from orchestrator.files import flock, guard, make_folder, open_file, write_whole

_WHO_BYTES_MAX = 4096
_PIDS_TOLD_MAX = 8
_TRIES, _PAUSE_SECONDS = 100, 0.02  # somebody may look at a lock while we take it
_ELSEWHERE = "XDG_CACHE_HOME"
_NAME = re.compile(r"[0-9A-Za-z-]{1,80}")


def folder() -> Path:
    """Where the locks are: in the user's cache, which outlives a login."""
    return user.cache("orchestrator") / "gpus"


@dataclass(frozen=True)
class Holder:
    """Who holds a GPU, as its lock says: the session's folder. Empty if that is not known.

    `pids`: processes of the session that have outlived its lock, and `program` what the first of them runs.
    """

    session: str
    pids: tuple[int, ...] = ()
    program: str = ""

    def outlived(self, gpu: str) -> str:
        """What there is to say of a process that outlived the lock; empty if none did."""
        if not self.pids:
            return ""
        what = f"process {self.pids[0]}" + (f" ({self.program})" if self.program else "")
        if more := len(self.pids) - 1:
            what += f" and {count_text(more, 'other')}"
        listed = " ".join(map(str, self.pids[:_PIDS_TOLD_MAX]))
        ended = f"{_PIDS_TOLD_MAX} of them" if more >= _PIDS_TOLD_MAX else "them" if more else "it"
        session = Path(self.session)
        return (
            f"{gpu} is held by {what}, which outlived session {session.name} of {session.parent}: "
            f"`kill -9 {listed}` ends {ended}"
        )


class GpuLocks:
    """The locks in a folder, which is made when the first is taken."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = guard(folder)
        self._clock = clock

    def holders(self, uuids: Iterable[str]) -> dict[str, Holder]:
        """Who holds which of these GPUs. Those that nobody holds are left out."""
        outlived = _Outlived()
        found = ((uuid, self._holder(uuid, outlived)) for uuid in uuids)
        return {uuid: holder for uuid, holder in found if holder is not None}

    def _holder(self, uuid: str, outlived: _Outlived) -> Holder | None:
        try:
            descriptor = open_file(self._path(uuid), os.O_RDONLY)
        except FileNotFoundError:
            return None
        except OSError:  # somebody put something else there
            return Holder("")
        try:
            # Shared, so that those who only look do not keep each other away.
            if not flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB, self._path(uuid), _ELSEWHERE):
                return Holder(self._who(uuid))
        finally:
            os.close(descriptor)
        return outlived.of(self._who(uuid))

    def any_held(self) -> bool:
        """Whether anybody holds any of them."""
        names = (path.stem for path in self._folder.glob("*.lock"))
        return bool(self.holders(name for name in names if _NAME.fullmatch(name)))

    @contextmanager
    def taken(
        self, uuids: Iterable[str], count: int, session: str
    ) -> Iterator[tuple[dict[str, int], dict[str, Holder]]]:
        """Takes the first `count` of these GPUs that are free.

        Gives their descriptors by GPU, and who holds the others that it came across. A child that inherits a
        descriptor keeps the lock; ours are closed at the end. No descriptors if fewer are free.
        """
        held: dict[str, int] = {}
        others: dict[str, Holder] = {}
        outlived = _Outlived()
        try:
            for uuid in uuids:
                if len(held) == count:
                    break
                descriptor = self._take(uuid)
                if descriptor is None:
                    others[uuid] = Holder(self._who(uuid))
                    continue
                if (left := outlived.of(self._who(uuid))) is not None:
                    os.close(descriptor)
                    others[uuid] = left
                    continue
                held[uuid] = descriptor
                self._note(uuid, session)
            yield (held if len(held) == count else {}), others
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    def _take(self, uuid: str) -> int | None:
        try:
            make_folder(self._folder, 0o700)
            descriptor = open_file(self._path(uuid), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise Rejected(
                f"the lock of a GPU, {self._path(uuid)}, cannot be opened: {error.strerror}"
            ) from error
        for _ in range(_TRIES):
            if flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path(uuid), _ELSEWHERE):
                return descriptor
            if not _is_only_looked_at(descriptor):
                break
            self._clock.wait(threading.Event(), _PAUSE_SECONDS)
        os.close(descriptor)
        return None

    def _path(self, uuid: str) -> Path:
        assert _NAME.fullmatch(uuid), uuid
        return self._folder / f"{uuid}.lock"

    def _note(self, uuid: str, session: str) -> None:
        """For people, for counting, and to find what outlives the lock."""
        with suppress(OSError):
            write_whole(self._folder / f"{uuid}.session", session.encode())

    def _who(self, uuid: str) -> str:
        try:
            descriptor = open_file(self._folder / f"{uuid}.session", os.O_RDONLY)
        except OSError:
            return ""
        try:
            return os.read(descriptor, _WHO_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)


class _Outlived:
    """What is left of sessions that hold no lock any more, because their agent and its guardian were killed.
    Looks through the processes at most once."""

    @cached_property
    def _bearers(self) -> dict[str, list[int]]:
        return processes.bearers(processes.SESSION)

    def of(self, session: str) -> Holder | None:
        pids = self._bearers.get(session) if session else None
        return Holder(session, tuple(pids), processes.program(pids[0])) if pids else None


def _is_only_looked_at(descriptor: int) -> bool:
    """Whether those who keep us from a lock only look at it: they share it for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
