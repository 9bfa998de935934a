"""Which process uses a GPU of this machine: one lock file for each GPU and user, held by the session's agent.

All homes and controllers of a user share the files, so that no two of them use one GPU. A lock ends with the
process that holds it, however that ends. Decides nothing (docs/decisions/032-gpu-locks-per-user.md).
"""

from __future__ import annotations

import fcntl
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.errors import Rejected
from orchestrator.files import write_whole

_PLAIN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_WHO_BYTES_MAX = 4096
_TRIES, _PAUSE_SECONDS = 100, 0.02  # somebody may look at a lock while we take it
_NAME = re.compile(r"[0-9A-Za-z-]{1,80}")


def folder() -> Path:
    """Where the locks are: in the user's cache, which outlives a login."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = cache if cache.is_absolute() else Path.home() / ".cache"
    return base / "orchestrator" / "gpus"


@dataclass(frozen=True)
class Holder:
    """Who holds a GPU, as its lock says: the session's folder. Empty if that is not known."""

    session: str


class GpuLocks:
    """The locks in a folder, which is made when the first is taken."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def holder(self, uuid: str) -> Holder | None:
        """Who holds the GPU; None if nobody does."""
        try:
            descriptor = os.open(self._path(uuid), os.O_RDONLY | _PLAIN)
        except FileNotFoundError:
            return None
        except OSError:  # somebody put something else there
            return Holder("")
        try:
            # Shared, so that those who only look do not keep each other away.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return Holder(self._who(uuid))
        finally:
            os.close(descriptor)
        return None

    def any_held(self) -> bool:
        """Whether anybody holds any of them."""
        names = (path.stem for path in self._folder.glob("*.lock"))
        return any(self.holder(name) is not None for name in names if _NAME.fullmatch(name))

    @contextmanager
    def taken(
        self, uuids: Iterable[str], count: int, session: str
    ) -> Iterator[tuple[dict[str, int], dict[str, str]]]:
        """Takes the first `count` of these GPUs that are free.

        Gives their descriptors by GPU, and who holds the others that it came across. A child that inherits a
        descriptor keeps the lock; ours are closed at the end. No descriptors if fewer are free.
        """
        held: dict[str, int] = {}
        others: dict[str, str] = {}
        try:
            for uuid in uuids:
                if len(held) == count:
                    break
                descriptor = self._take(uuid)
                if descriptor is None:
                    others[uuid] = self._who(uuid)
                    continue
                held[uuid] = descriptor
                self._note(uuid, session)
            yield (held if len(held) == count else {}), others
        finally:
            for descriptor in held.values():
                os.close(descriptor)

    def _take(self, uuid: str) -> int | None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._path(uuid), os.O_RDWR | os.O_CREAT | _PLAIN, 0o600)
        except OSError as error:
            raise Rejected(
                f"the lock of a GPU, {self._path(uuid)}, cannot be opened: {error.strerror}"
            ) from error
        for _ in range(_TRIES):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if not _is_only_looked_at(descriptor):
                    break
            self._clock.wait(threading.Event(), _PAUSE_SECONDS)
        os.close(descriptor)
        return None

    def _path(self, uuid: str) -> Path:
        assert _NAME.fullmatch(uuid), uuid
        return self._folder / f"{uuid}.lock"

    def _note(self, uuid: str, session: str) -> None:
        """Only for people and for counting; the lock is what counts."""
        with suppress(OSError):
            write_whole(self._folder / f"{uuid}.session", session.encode())

    def _who(self, uuid: str) -> str:
        try:
            descriptor = os.open(self._folder / f"{uuid}.session", os.O_RDONLY | _PLAIN)
        except OSError:
            return ""
        try:
            return os.read(descriptor, _WHO_BYTES_MAX).decode(errors="replace")
        except OSError:
            return ""
        finally:
            os.close(descriptor)


def _is_only_looked_at(descriptor: int) -> bool:
    """Whether those who keep us from a lock only look at it: they share it for a moment."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return True
