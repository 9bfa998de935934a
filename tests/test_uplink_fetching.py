"""After which errors an uplink fetches again, and when it says that the session can have no more."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from orchestrator.core.order import Order
from orchestrator.errors import (
    AccessDenied,
    CorruptCheckpoint,
    NotFound,
    OrchestratorError,
    Rejected,
    Transient,
)
from orchestrator.session.layout import Layout
from orchestrator.session.staging import Content
from orchestrator.session.words import Word
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.memory import MemoryStore
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.fetching import LOOKS_MAX, Fetcher
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.pace import Pace, Patience
from orchestrator.uplink.parcel import Parcel
from tests.core.runs import RUN, assigned
from tests.test_perform import bring

ORDER = assigned().order
KEYS = SessionKeys(RUN, ORDER.session)


class Erring(MemoryStore):
    """Raises `error` at each reading of which the key contains `at`, once `well` of those were answered."""

    error: Exception | None = None
    at = ""
    well = 0

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        if self.error is not None and self.at in key:
            if self.well == 0:
                raise self.error
            self.well -= 1
        super().get(key, target, sha256, bytes_max=bytes_max)


class Session:
    """A session that fetches a bundle and resumes at a checkpoint in a plain store."""

    def __init__(self, folder: Path) -> None:
        from dataclasses import replace

        self.store = Erring()
        self.manifest = bring(folder / "brought", 10)
        stored.publish(self.store, RUN, self.manifest, folder / "brought")
        self.order: Order = replace(
            ORDER, resume=self.manifest.name, resume_step=10, resume_sha256=self.manifest.sha256
        )
        self.layout = Layout(folder / "session")
        self.layout.shipping.mkdir(parents=True)
        self.words: list[Word] = []
        self.parcel = parcels.write(self.store, KEYS, [Content("bundle.tar.gz", b"source")])
        self.fetcher = self.new_fetcher()

    def new_fetcher(self) -> Fetcher:
        patience = Patience(Pace(), Random(1), self.words.append)
        return Fetcher(self.store, self.order, self.parcel, self.layout, patience, self.words.append)

    @property
    def fetched(self) -> bool:
        return any(word.fetched for word in self.words)

    @property
    def unfetchable(self) -> list[str]:
        return [word.unfetchable for word in self.words if word.unfetchable]


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_everything_is_in_the_folder_before_the_agent_hears_of_it(session: Session) -> None:
    assert session.fetcher.fetch() is None
    assert session.fetched
    assert session.layout.bundle.read_bytes() == b"source"
    assert (session.layout.staged / "checkpoints" / session.manifest.name / "manifest.json").exists()
    [blob] = session.manifest.blobs()
    assert (session.layout.staged / "blobs" / blob).exists()
    assert sum(word.fetched_bytes for word in session.words) == len(b"source") + session.manifest.size


@pytest.mark.parametrize("at", ["/parcel/", "/blobs/", "/manifest.json"])
def test_a_line_that_is_dead_for_a_while_is_waited_for(session: Session, at: str) -> None:
    session.store.error, session.store.at = Transient("the line is dead"), at
    pauses = [session.fetcher.fetch() for _ in range(20)]
    assert all(pause is not None and 0.5 <= pause <= 60.0 for pause in pauses)
    assert not session.unfetchable
    assert not session.layout.bundle.exists(), "nothing is there before everything is"
    session.store.error = None
    assert session.fetcher.fetch() is None
    assert session.fetched


@pytest.mark.parametrize(
    ("error", "looks"),
    [
        (NotFound("it is gone"), LOOKS_MAX),
        (CorruptCheckpoint("runs/x", "it is altered"), LOOKS_MAX),
        (OSError(errno.EIO, "the disk is broken"), LOOKS_MAX),
        (OSError(errno.ENOSPC, "no space"), 1),
        (AccessDenied("the key is revoked"), 1),
        (Rejected("this bucket is closed"), 1),
    ],
)
def test_what_no_other_try_can_change_ends_it_with_the_reason(
    session: Session, error: OrchestratorError | OSError, looks: int
) -> None:
    session.store.error, session.store.at = error, "/parcel/"
    pauses = [session.fetcher.fetch() for _ in range(looks)]
    assert None not in pauses[:-1]
    assert pauses[-1] is None
    assert not session.fetched
    [reason] = session.unfetchable
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    assert ("disk is full" if full else str(getattr(error, "reason", error))) in reason


def test_a_damaged_checkpoint_names_itself(session: Session) -> None:
    [blob] = session.manifest.blobs()
    session.store.delete(f"runs/{RUN}/blobs/g01-aaaa/{blob}")
    while session.fetcher.fetch() is not None:
        pass
    [reason] = session.unfetchable
    assert session.manifest.name in reason
    assert "is missing" in reason


def test_progress_gives_new_patience(session: Session) -> None:
    """A store that hides new objects for a while, one after the other, is not given up."""
    parts = [Content("bundle.tar.gz", bytes(range(50)))]
    session.parcel = parcels.write(session.store, KEYS, parts, part_bytes=10)
    session.fetcher = session.new_fetcher()
    for _ in session.parcel.parts[:-1]:
        session.store.error, session.store.at, session.store.well = NotFound("late"), "/parcel/", 1
        for _ in range(LOOKS_MAX - 1):
            assert session.fetcher.fetch() is not None
    session.store.error = None
    assert session.fetcher.fetch() is None
    assert session.fetched


def test_an_uplink_that_takes_over_fetches_only_the_rest(session: Session) -> None:
    session.store.error, session.store.at = Transient("the line is dead"), "/blobs/"
    assert session.fetcher.fetch() is not None
    session.words.clear()
    session.store.error = None
    assert session.new_fetcher().fetch() is None
    assert [word.fetched_bytes for word in session.words if word.fetched_bytes] == [session.manifest.size]


def test_a_parcel_of_nothing_is_fetched(session: Session) -> None:
    session.parcel = Parcel(())
    assert session.new_fetcher().fetch() is None
    assert session.fetched
