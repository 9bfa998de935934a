"""The errors of this package, arranged by what the caller does next.

A leaf: it imports nothing of ours. Deadlines, preemption, out of memory and crashes of the training are
no errors here; they are observations (`orchestrator.core.job.Outcome`). Bugs are assertions.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from enum import StrEnum


class OrchestratorError(Exception):
    """Everything this package raises on purpose; `str()` is fit to be shown to a user."""


class InputError(OrchestratorError):
    """The user edits something and tries again (exit code 2)."""


@dataclass(frozen=True)
class Mistake:
    """One mistake in a file the user wrote: where, what was given, what is valid.

    `path` is the dotted key path (`work.global_batch`), empty for the document; `line` counts from 1,
    0 where no line is known.
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
    """Another controller of this database lives; the message says which and how to end it."""


class BackendError(OrchestratorError):
    """A platform or store said no, or said nothing.

    `backend` is its name in the user's config, `operation` the verb that failed.
    """

    def __init__(self, message: str, *, backend: str = "", operation: str = "") -> None:
        super().__init__(message)
        self.backend = backend
        self.operation = operation


class Transient(BackendError):
    """It may work the next time. The request may have taken effect.

    Each request is retried in one place: by the wrapper of the protocol, or by the backend itself, which
    knows how long it was told to wait. `retried`: the backend did, so no wrapper tries again.
    """

    def __init__(
        self, message: str, *, backend: str = "", operation: str = "", retried: bool = False
    ) -> None:
        super().__init__(message, backend=backend, operation=operation)
        self.retried = retried


def is_worth_retrying(error: BaseException) -> bool:
    """Whether the wrapper that retries should: it may pass, and nobody has tried it again yet."""
    return isinstance(error, Transient) and not error.retried


class QuotaExhausted(BackendError):
    """No quota, slot or capacity until `until` (unix seconds; None when nobody knows)."""

    def __init__(
        self, message: str, *, backend: str = "", operation: str = "", until: float | None = None
    ) -> None:
        super().__init__(message, backend=backend, operation=operation)
        self.until = until


class DiskFull(BackendError):
    """This machine's disk takes nothing more: a human frees some space. Nothing was changed."""


class AccessDenied(BackendError):
    """Credentials are missing, wrong or too narrow: a human must act (exit code 3)."""


class WorkWouldBeLost(AccessDenied):
    """To stop this session now would lose what it has done so far, as it brings nothing before its end. A
    person may agree to that: `discard`. `seconds` of work; `loss` is the message without the way out."""

    def __init__(self, loss: str, *, run: str, session: str, seconds: float) -> None:
        super().__init__(f"{loss}\nTo lose it nevertheless: discard=True")
        self.loss = loss
        self.run = run
        self.session = session
        self.seconds = seconds


class Rejected(BackendError):
    """The request itself is wrong; never retried."""


class NameTaken(Rejected):
    """A session of this name was started here with another order, as after an old copy of the home was
    restored: the caller goes on to the next name."""


class NotFound(Rejected):
    """The store holds no such object; the platform knows no such session's outbox."""


class Conflict(BackendError):
    """The register has another version than the one given: read it again, and decide anew."""


class Superseded(OrchestratorError):
    """Another session of the run, or another agent of the session, has the word: who publishes must stop."""


class CorruptCheckpoint(OrchestratorError):
    """A checkpoint failed its verification; the caller falls back to the one before."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"checkpoint {name} cannot be used: {reason}")
        self.name = name
        self.reason = reason


class LedgerConflict(OrchestratorError):
    """Somebody else appended to this run first: load it again and decide anew."""


class Fenced(OrchestratorError):
    """Another controller has taken over this database; this one must stop writing."""


class Remedy(StrEnum):
    """What the caller does next."""

    NONE = "none"  # nothing is wrong
    EDIT = "edit"  # the user edits a file or an argument
    ACT = "act"  # a person must act: log in, install, make room
    RETRY = "retry"  # a platform, store or ledger is unavailable: try again later


_NOT_OURS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def remedy(error: OrchestratorError | OSError) -> Remedy:
    """What the caller does about an error, of ours or of this machine's files."""
    if isinstance(error, OSError):
        return Remedy.ACT if error.errno in _NOT_OURS else Remedy.RETRY
    if isinstance(error, InputError):
        return Remedy.EDIT
    return Remedy.ACT if isinstance(error, AccessDenied) else Remedy.RETRY
