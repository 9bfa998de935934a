"""The uplink's part before the training: it brings what the session needs from the home store.

Decides after which errors it tries again. Verifies every byte, and puts nothing into the session's folder
that is not whole. Knows no clock: its driver says when. Must never write to the store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.order import Order
from orchestrator.errors import (
    AccessDenied,
    CorruptCheckpoint,
    InputError,
    NotFound,
    OrchestratorError,
    Rejected,
)
from orchestrator.files import NO_ROOM, Lack, shortage
from orchestrator.session.layout import STAGED, Layout
from orchestrator.session.words import Word
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.pace import Patience
from orchestrator.uplink.parcel import Parcel

LOOKS_MAX = 4  # for what is missing or damaged: the store's answers may be out of date
_FULL = NO_ROOM


@dataclass
class Looks:
    """Failed tries in a row to fetch something."""

    count: int = 0

    def are_enough(self, error: Exception, *, progressed: bool = False) -> bool:
        """Whether to give up after this error. A try that `progressed` is the first to fail again."""
        self.count = 1 if progressed else self.count + 1
        return _is_final(error) or (_is_doubtful(error) and self.count >= LOOKS_MAX)


@dataclass
class Fetcher:
    """Fetches the parcel, and the checkpoint to resume unless that is in it. `tell` hears how it goes."""

    store: Store
    order: Order
    parcel: Parcel
    layout: Layout
    patience: Patience
    tell: Callable[[Word], None]
    _looks: Looks = field(default_factory=Looks)
    _came: bool = False

    def fetch(self) -> float | None:
        """Goes on where it stopped. Returns the seconds until the next try; None if there is nothing more to
        try."""
        self._came = False
        try:
            self._fetch()
        except (OrchestratorError, OSError) as error:
            return self._after(error)
        self.patience.over()
        self.tell(Word("fetched what the session needs from the home store", fetched=True))
        return None

    def _fetch(self) -> None:
        order, scratch = self.order, self.layout.shipping / "parcel"
        keys = SessionKeys(order.run, order.session)
        content = parcels.fetch(self.store, keys, self.parcel, scratch, self._heard)
        if order.resume is not None and not any(e.path.startswith(STAGED) for e in self.parcel.entries):
            stored.fetch(
                self.store, order.run, order.resume, self.layout.staged, order.resume_sha256, self._heard,
                spare=True,
            )  # fmt: skip
        parcels.move(self.parcel, content, self.layout.root)

    def _heard(self, size: int) -> None:
        self._came = True
        self.tell(Word(fetched_bytes=size))

    def _after(self, error: OrchestratorError | OSError) -> float | None:
        if self._looks.are_enough(error, progressed=self._came):
            self.tell(Word(unfetchable=bounds.text(reason(error), bounds.MESSAGE_BYTES_MAX)))
            return None
        return self.patience.after(error, progressed=self._came)


def _is_final(error: Exception) -> bool:
    """Another try would end in the same way, and the machine's time is worth more."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, AccessDenied | Rejected | InputError) and not isinstance(error, NotFound)


def _is_doubtful(error: Exception) -> bool:
    return isinstance(error, NotFound | CorruptCheckpoint | OSError)


def reason(error: Exception) -> str:
    """Why it could not be fetched."""
    match error:
        case CorruptCheckpoint():
            return f"{error.name}: {error.reason}"
        case Lack():
            return str(error.strerror)
        case OSError(errno=number) if number in _FULL:
            return shortage(Path(str(error.filename)))[0] if error.filename else "the session's disk is full"
    return str(error)
