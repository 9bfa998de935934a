"""The errors of this package, grouped by what the caller does next.

It imports nothing of ours. Deadlines, preemption, out of memory and crashes of the training are not errors
here but observations (`orchestrator.core.order.Outcome`). Bugs are assertions.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum


class OrchestratorError(Exception):
    """Everything this package raises on purpose; `str()` can be shown to a user."""


class InputError(OrchestratorError):
    """The user must edit something and try again (exit code 2)."""


class AmbiguousRun(InputError):
    """Several runs have names that start like this; the message lists them."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file the user wrote: where, what was given, what is valid.

    `path` is the dotted key path (`work.global_batch`), empty for the document. `line` counts from 1; 0 means
    not known.
    """

    file: str
    line: int
    path: str
    message: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.path}: {self.message}" if self.path else f"{place}: {self.message}"


class SpecError(InputError):
    """A job spec or config is wrong; carries every mistake found, in line order."""

    def __init__(self, mistakes: tuple[Mistake, ...]) -> None:
        assert mistakes
        self.mistakes = mistakes
        super().__init__("\n".join(map(str, mistakes)))


class NoRoute(InputError):
    """No offer will ever take this job; the message lists each rejection with its reason."""


class ControllerRunning(InputError):
    """Another controller of this database is running; the message says which, and how to stop it."""


class BackendError(OrchestratorError):
    """A platform or store refused, or did not answer.

    `backend` is its name in the user's config, and `operation` the call that failed.
    """

    def __init__(self, message: str, *, backend: str = "", operation: str = "") -> None:
        super().__init__(message)
        self.backend = backend
        self.operation = operation


class Transient(BackendError):
    """It may work next time. The request may have taken effect.

    Each request is retried in one place: by the wrapper of the protocol, or by the backend itself if it knows
    how long to wait. `retried`: the backend already retried, so the wrapper does not.
    """

    def __init__(
        self, message: str, *, backend: str = "", operation: str = "", retried: bool = False
    ) -> None:
        super().__init__(message, backend=backend, operation=operation)
        self.retried = retried


class Preparing(Transient):
    """What this needs is being installed on this machine. The message says what, and to try again."""


def is_worth_retrying(error: BaseException) -> bool:
    """Whether the wrapper should retry: the error may pass, and nobody has retried yet."""
    return isinstance(error, Transient) and not error.retried


class HostUnknown(Transient):
    """No server of that name is known, so another try may not help."""


class QuotaExhausted(BackendError):
    """No quota, slot or capacity until `until` (unix seconds; None: not known)."""

    def __init__(
        self, message: str, *, backend: str = "", operation: str = "", until: float | None = None
    ) -> None:
        super().__init__(message, backend=backend, operation=operation)
        self.until = until


class Refused(BackendError):
    """The platform refuses this now, for a reason that may pass. Try again after `until` (unix seconds; None:
    not known), and elsewhere meanwhile. Nothing was started."""

    def __init__(
        self, message: str, *, backend: str = "", operation: str = "", until: float | None = None
    ) -> None:
        super().__init__(message, backend=backend, operation=operation)
        self.until = until


class NoCapacity(Refused):
    """There is no room now. As `Refused`, but it says nothing about the request, so it may be repeated for as
    long as it takes."""


class DiskFull(BackendError):
    """This machine's disk is full: a person must free some space. Nothing was changed."""


class NoRoom(BackendError):
    """The disk of a folder that the user named has no room for what is to be copied there. Nothing of it is
    there."""


class AccessDenied(BackendError):
    """Credentials are missing, wrong or too narrow: a person must act (exit code 3)."""


class NoIdentity(AccessDenied):
    """An object is encrypted, and none of the keys at hand decrypts it. It may be intact: a person who has
    the key must put it into the config."""


class WorkWouldBeLost(AccessDenied):
    """Stopping this session now would lose its work so far, because nothing comes home before its end. A
    person may accept that with `discard`. `seconds` of work; `loss` is the message without that advice."""

    def __init__(self, loss: str, *, run: str, session: str, seconds: float) -> None:
        super().__init__(f"{loss}\nTo stop it anyway: discard=True")
        self.loss = loss
        self.run = run
        self.session = session
        self.seconds = seconds


class Rejected(BackendError):
    """The request itself is wrong; never retried."""


class NameTaken(Rejected):
    """A session of this name was started here with another order, for example because an old copy of the home
    was restored. The caller continues with the next name."""


class SourceChanged(Rejected):
    """A file to be stored does not have the sha256 that was given. Nothing was stored."""


class NotFound(Rejected):
    """The store has no such object, or the platform has no outbox of such a session."""


class Conflict(BackendError):
    """The register has another version than the given one: read it again and decide again."""


class Superseded(OrchestratorError):
    """Another session of the run, or another agent of the session, has taken over: stop publishing."""


class CorruptCheckpoint(OrchestratorError):
    """A checkpoint failed its verification; the caller falls back to the previous one."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"checkpoint {name} cannot be used: {reason}")
        self.name = name
        self.reason = reason


class TooLarge(CorruptCheckpoint):
    """An object of a store is larger than its reader accepts. It was not fetched."""


class LedgerConflict(OrchestratorError):
    """Another process appended to this run first: load it again and decide again."""


class Fenced(OrchestratorError):
    """Another controller has taken over this database; this one must stop writing."""


class Remedy(StrEnum):
    """What the caller does next."""

    NONE = "none"  # nothing is wrong
    EDIT = "edit"  # the user edits a file or an argument
    ACT = "act"  # a person must act: log in, install, make room
    RETRY = "retry"  # a platform, store or ledger is unavailable: try again later


_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOLCK})


def remedy(error: OrchestratorError | OSError) -> Remedy:
    """What the caller does about an error of ours, or of this machine's files."""
    if isinstance(error, OSError):
        return Remedy.ACT if error.errno in _NOT_OURS else Remedy.RETRY
    if isinstance(error, InputError):
        return Remedy.EDIT
    return Remedy.ACT if isinstance(error, AccessDenied) else Remedy.RETRY
