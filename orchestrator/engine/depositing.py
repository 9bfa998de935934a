"""Tells each run's home store what another machine needs to know of the run, after it is journalled.

Decides when a store is told, in a thread of its own. A store that does not answer delays no run: it is told
later, by the next controller at the latest. Must never decide anything about a run, nor be waited for by the
engine.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.clock import Clock
from orchestrator.core import bounds, wire
from orchestrator.core.deposit import Deposit, archives, deposit_of
from orchestrator.core.event import Event
from orchestrator.core.job import frozen_image
from orchestrator.core.run import RunRecord
from orchestrator.engine import bringing
from orchestrator.engine.perform import Backends
from orchestrator.errors import (
    CorruptCheckpoint,
    NotFound,
    OrchestratorError,
    Rejected,
    Superseded,
    Transient,
)
from orchestrator.files import make_folder, read_small, write_whole
from orchestrator.freeze import inputs, packing
from orchestrator.home import DEPOSITED, Folders
from orchestrator.ledger import LedgerReader, RunSummary
from orchestrator.stores import checkpoints, deposits
from orchestrator.stores.store import Store

PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX = 15.0, 900.0  # before a store that failed is told again
LEAVE_SECONDS = 10.0  # for what is left to tell when the controller leaves
_NOTHING = "0 - -"  # the note of a run whose store was never told


class NothingThere(Transient):
    """The store has none of a run's checkpoints. It may be the wrong disk, or they were deleted."""


def deposit(store: Store, name: str, record: RunRecord, folders: Folders) -> tuple[str, ...]:
    """Tells the store of this `name` about the run, unless it knows. Returns what could not be stored, in
    words. Idempotent.

    Raises the store's errors, NothingThere if it has none of the run's checkpoints, and Superseded if another
    ledger has adopted the run.
    """
    said = deposit_of(record)
    note = folders.run(record.run) / DEPOSITED
    told = f"{record.version} {_digest(said)} {name}"
    before = _read(note)
    if before.split(" ")[1:] == told.split(" ")[1:]:
        if before != told:
            _write(note, told)
        return ()
    if not before:
        _write(note, _NOTHING)  # from now on, a controller that starts looks again
    if record.accepted and not _has_any(store, record):
        raise NothingThere(f"it has none of the checkpoints of {record.run}: is its disk there?")
    # What an adopted run needs came from its store: what that lacks, this machine gives to nobody unasked.
    lacking = () if record.adoptions else materials(store, record, folders)
    deposits.write(store, said)
    _write(note, told)
    return lacking


def materials(store: Store, record: RunRecord, folders: Folders) -> tuple[str, ...]:
    """Puts what the run's sessions need into its store: its archives, and its inputs if they are staged here.
    Returns what could not be stored, in words. Idempotent. `record` may stand for the runs to come of a
    schedule (`deposits.of_schedule`)."""
    return (*_put_archives(store, record, folders), *_put_inputs(store, record, folders))


def untold(ledger: LedgerReader, folders: Folders) -> tuple[RunRecord, ...]:
    """The runs whose stores may not know all of them: those under way, and those that ended while their
    store did not answer. Runs that ended before stores were told anything are left alone."""
    wanted = [each.run for each in ledger.summaries() if _may_be_untold(each, folders)]
    return tuple(ledger.records(wanted))


def _may_be_untold(summary: RunSummary, folders: Folders) -> bool:
    if summary.unreadable:
        return False
    note = _read(folders.run(summary.run) / DEPOSITED)
    return note.partition(" ")[0] != str(summary.version) and (bool(note) or not summary.phase.final)


def _put_archives(store: Store, record: RunRecord, folders: Folders) -> tuple[str, ...]:
    lacking = []
    image = frozen_image(record.job.image)
    for sha256 in archives(record.job):
        path = folders.image(sha256) if sha256 == image else folders.bundle(sha256)
        try:
            _put_archive(store, record, sha256, path)
        except (FileNotFoundError, Rejected) as error:  # adopted without it, its checkpoints stay usable
            lacking.append(f"{record.run}: its archive {sha256[:12]}… cannot be stored: {error}")
    return tuple(lacking)


def _put_archive(store: Store, record: RunRecord, sha256: str, path: Path) -> None:
    """If it is not here, another machine has put it into the store for the runs of its schedule."""
    try:
        deposits.put_material(store, record.run, sha256, path)
    except FileNotFoundError:
        if not record.schedule:
            raise
        with contextlib.suppress(NotFound, CorruptCheckpoint):
            bringing.fetch(store, deposits.of_schedule(record.schedule), sha256, path)
        deposits.put_material(store, record.run, sha256, path)


def _put_inputs(store: Store, record: RunRecord, folders: Folders) -> tuple[str, ...]:
    """Stores the inputs once they are staged here, unless they are large or there. Their content was verified
    when they were staged, and is again when it comes out of the store."""
    staged = folders.inputs / inputs.key(record.job.inputs)
    if not record.job.inputs or not staged.is_dir():
        return ()
    if sum(packing.size(staged / each.name) for each in record.job.inputs) > bounds.INPUTS_BYTES_MAX:
        limit = bounds.size_text(bounds.INPUTS_BYTES_MAX)
        return (f"the inputs of {record.run} are larger than {limit}, so its store has only their sha256",)
    for each in record.job.inputs:
        assert each.sha256 is not None, "a submit pins every input"
        if store.stat(deposits.input_key(record.run, each.sha256)) is None:
            with TemporaryDirectory(prefix="orchestrator-") as folder:
                archive = Path(folder) / "input.tar"
                packing.pack(staged / each.name, archive)
                deposits.put_input(store, record.run, each.sha256, archive)
    return ()


def _has_any(store: Store, record: RunRecord) -> bool:
    """Whether it looks like the run's home store. Nothing is written to what may be an unmounted disk."""
    newest_first = (each.name for each in reversed(record.accepted))
    return any(checkpoints.present(store, record.run, [name]) for name in newest_first)


def _digest(said: Deposit) -> str:
    return hashlib.sha256(wire.encode(replace(said, version=0))).hexdigest()


def _read(note: Path) -> str:
    found = read_small(note)
    return "" if found is None else found.decode("utf-8", "replace")


def _write(note: Path, text: str) -> None:
    """On a full disk the store is told twice, which does no harm."""
    with contextlib.suppress(OSError):
        make_folder(note.parent)
        write_whole(note, text.encode(), sync=False)


@dataclass
class _Pause:
    """A store, or a run of which its store has nothing, that is left alone for a while."""

    until: float
    seconds: float


class Depositor:
    """The thread that tells the stores. `told` may be called from any thread and never blocks."""

    def __init__(self, backends: Backends, clock: Clock, say: Callable[[str], None]) -> None:
        self._backends = backends
        self._clock = clock
        self._say = say
        self._lock = threading.Lock()
        self._news: dict[str, RunRecord] = {}
        self._pauses: dict[tuple[str, str], _Pause] = {}  # by store, and run or "" for the whole store
        self._superseded: set[str] = set()
        self._lacking: set[str] = set()  # said before
        self._wake = threading.Event()
        self._leaving = False
        self._thread = threading.Thread(target=self._work, name="depositing", daemon=True)

    @contextlib.contextmanager
    def at_work(self, records: Iterable[RunRecord]) -> Iterator[None]:
        """Begins with these runs, which their stores may not know. At the end, tells what is left to stores
        that answer, for LEAVE_SECONDS at most."""
        for record in records:
            self._news.setdefault(record.run, record)
        self._thread.start()
        try:
            yield
        finally:
            self._leaving = True
            self._wake.set()
            self._thread.join(LEAVE_SECONDS)

    def told(self, record: RunRecord, _event: Event) -> None:
        """An event of this run was journalled."""
        with self._lock:
            self._news[record.run] = record
        self._wake.set()

    def _work(self) -> None:
        while True:
            self._wake.clear()
            record = self._next()
            if record is not None:
                self._tell(record)
            elif self._leaving:
                return
            else:
                self._clock.wait(self._wake, PAUSE_SECONDS_MIN)

    def _next(self) -> RunRecord | None:
        """A run that has not failed lately, in a store that has not."""
        with self._lock:
            for run, record in self._news.items():
                if not self._rests(self._store_of(record), "") and not self._rests(
                    self._store_of(record), run
                ):
                    return self._news.pop(run)
        return None

    def _rests(self, store: str, run: str) -> bool:
        pause = self._pauses.get((store, run))
        return pause is not None and (self._leaving or pause.until > self._clock.monotonic())

    def _tell(self, record: RunRecord) -> None:
        name = self._store_of(record)
        if record.run in self._superseded or name not in self._backends.stores:
            return  # without its store in the config, the run is held; the next controller looks again
        try:
            self._backends.ownership.check(name)
            lacking = deposit(self._backends.stores[name], name, record, self._backends.folders)
        except Superseded as error:
            self._superseded.add(record.run)
            if not self._backends.ownership.elsewhere(name):  # else it was said, once for all its runs
                self._say(f"{error}: what happens to it here is no longer told to the store {name}")
        except NothingThere as error:  # the other runs of the store may be well
            self._failed((name, record.run), record, str(error))
        except (OrchestratorError, OSError) as error:
            self._failed((name, ""), record, str(error))
        except Exception as error:  # noqa: BLE001 the barrier: told, and the runs go on
            self._backends.unforeseen(f"telling the store {name} of {record.run}", error)
        else:
            self._pauses.pop((name, ""), None)
            self._pauses.pop((name, record.run), None)
            for each in lacking:
                if each not in self._lacking:
                    self._lacking.add(each)
                    self._say(each)

    def _failed(self, what: tuple[str, str], record: RunRecord, reason: str) -> None:
        with self._lock:
            self._news.setdefault(record.run, record)  # unless there is something newer
        before = self._pauses.get(what)
        if before is None:
            self._say(f"the store {what[0]} could not be told of {record.run}, trying again later: {reason}")
        seconds = PAUSE_SECONDS_MIN if before is None else min(PAUSE_SECONDS_MAX, 2 * before.seconds)
        self._pauses[what] = _Pause(self._clock.monotonic() + seconds, seconds)

    def _store_of(self, record: RunRecord) -> str:
        return record.store or self._backends.home_store
