"""The outbox of a session with an uplink, in its run's home store. It is read like any other outbox.

Shows what the session's one claimant published, and nothing from other generations. Trusts nothing, because
the session can write to the store. Decides nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from orchestrator.core import bounds, wire
from orchestrator.core.checkpoint import CheckpointRef, Manifest
from orchestrator.errors import BackendError, CorruptCheckpoint, NotFound, TooLarge
from orchestrator.files import Odd, append, copy_file, make_folder
from orchestrator.session.layout import INCARNATION, LOG, PROGRESS, RESULT, STATUS, segment_number
from orchestrator.session.mirror import newest_segment
from orchestrator.session.outbox import Growth
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store, content, snapshot
from orchestrator.uplink import registers
from orchestrator.uplink.layout import PIECE_BYTES_MAX, SHA256, SessionKeys

_MOST_BYTES = {PROGRESS: bounds.SESSION_PROGRESS_BYTES_MAX}


class StoreOutbox:
    """Implements `orchestrator.session.outbox.Outbox`. Creating one reads nothing."""

    def __init__(self, store: Store, run: str, session: str, generation: int) -> None:
        self._store = store
        self._keys = SessionKeys(run, session)
        self._generation = generation
        self._ref: CheckpointRef | None = None  # the last manifest that was read: its blobs come next

    def small(self, name: str) -> bytes | None:
        if name == INCARNATION:
            found = registers.claimant(self._store, self._keys)
            return None if found is None else found.encode()
        beats = registers.heartbeat(self._store, self._keys)
        if name == STATUS:
            return None if beats is None else wire.encode(beats.status)
        assert name == RESULT
        if beats is None or beats.result is None:
            return None
        if not SHA256.fullmatch(beats.result):
            raise Odd(f"the heartbeat does not name a {RESULT}")
        return self._object(self._keys.result(beats.result), beats.result, bounds.RESULT_BYTES_MAX)

    def checkpoints(self) -> Iterable[str]:
        return self.published()

    def published(self) -> dict[str, str | None]:
        """Name → the sha256 of its manifest, if the heartbeat knows it, oldest first. Adds what the heartbeat
        names, because a listing may be out of date."""
        incarnation = registers.claimant(self._store, self._keys)
        named = self.named()
        found: dict[str, str | None] = {ref.name: None for ref in stored.names(self._store, self._keys.run)}
        lineage = (self._generation, incarnation)
        refs = {name: CheckpointRef.parse(name) for name in found | named}
        ours = (name for name, ref in refs.items() if ref and (ref.generation, ref.incarnation) == lineage)
        return {name: named.get(name) for name in sorted(ours)}

    def named(self) -> dict[str, str | None]:
        """Name → the sha256 of its manifest, for the checkpoints that the heartbeat names. Anything may be
        in it."""
        beats = registers.heartbeat(self._store, self._keys)
        if beats is None:
            return {}
        newest = {beats.status.checkpoint: None} if beats.status.checkpoint else {}
        return newest | {each.name: each.sha256 for each in beats.published}

    def manifest(self, name: str) -> bytes | None:
        self._ref = CheckpointRef.parse(name)
        found = self.read(name)
        return None if found is None else found.encode()

    def read(self, name: str, sha256: str | None = None) -> Manifest | None:
        """The manifest; None if it is missing. Raises CorruptCheckpoint if it is too large or damaged, or
        does not have this sha256."""
        try:
            return stored.read(self._store, self._keys.run, name, sha256)
        except NotFound:
            return None

    def blob(self, sha256: str, target: Path) -> bool:
        assert self._ref is not None, "a blob is read after its manifest"
        stored.blob(self._store, self._keys.run, self._ref, sha256, target)
        return True

    def growing(self, here: Path, folder: Path) -> Growth:
        """Continues copies of what `here` has. After some progress, an error of the store is not raised. A
        file ends before an altered piece, as before one that is missing."""
        pieces, left = self._pieces(here), bounds.COLLECT_LOG_BYTES_MAX
        brought = 0
        notes: tuple[str, ...] = ()
        for name, found in pieces.items():
            size, most = _size(here / name), _MOST_BYTES.get(name, bounds.LOG_SEGMENT_BYTES_MAX)
            for offset, length, sha256 in sorted(found):
                if offset > size or offset + length <= size or size >= most:
                    continue  # after a gap (a later listing fills it), already here, or too large
                if length > left:
                    return Growth(folder, notes, more=True)
                try:
                    data = self._object(self._keys.piece(name, offset, sha256), sha256, PIECE_BYTES_MAX)
                except BackendError:
                    if brought == 0:
                        raise
                    return Growth(folder, notes, more=True)
                except Odd as odd:
                    notes += (f"{odd}: the rest of {name} was not read",)
                    break
                if data is None:
                    continue
                _append(here / name, folder / name, data[size - offset :])
                size, left, brought = offset + length, left - length, brought + 1
        return Growth(folder, notes)

    def _pieces(self, here: Path) -> dict[str, list[tuple[int, int, str]]]:
        """Offset, size and sha256 of each piece, by name. For the log, only those that `here` may lack."""
        newest, found = newest_segment(here / LOG), defaultdict(list)
        for prefix in (PROGRESS, LOG):
            for stat in islice(self._store.list(f"{self._keys.root}{prefix}/"), bounds.LISTED_MAX):
                piece = self._keys.parse_piece(stat.key)
                if piece is not None and stat.size <= PIECE_BYTES_MAX:
                    name, offset, sha256 = piece
                    if prefix == PROGRESS or segment_number(name.rpartition("/")[2]) >= newest:
                        found[name].append((offset, stat.size, sha256))
        return dict(sorted(found.items()))

    def _object(self, key: str, sha256: str, bytes_max: int) -> bytes | None:
        """The object's verified bytes; None if it is missing. Raises Odd if it is too large or damaged."""
        for _ in range(stored.READINGS_MAX):  # the transport may have damaged one
            try:
                return content(self._store, key, bytes_max, sha256)
            except NotFound:
                return None
            except TooLarge as error:
                name = key.removeprefix(self._keys.root).rpartition("/")[0]
                raise Odd(f"{name} is {error.reason}") from error
            except CorruptCheckpoint:
                continue
        raise Odd(f"{key} is altered")


def opened(store: Store, run: str, session: str, generation: int) -> StoreOutbox:
    """The outbox, for collecting. Raises NotFound if no agent ever claimed the session."""
    if registers.claimant(store, SessionKeys(run, session)) is None:
        raise NotFound(f"{session} left nothing in the store")
    return StoreOutbox(store, run, session, generation)


def remove(store: Store, run: str, session: str) -> None:
    """Removes everything of a closed session except its checkpoints. Idempotent. The fence stays: only the
    fence stops a session that was believed dead from publishing again."""
    keys, own = SessionKeys(run, session), registers.registers_of(store)
    with snapshot(store):  # a session of 12 hours leaves 1,440 pieces
        for stat in list(store.list(keys.root)):
            store.delete(stat.key)
    for key in (keys.heartbeat, keys.claim, keys.pins):
        own.delete(key)


def _append(before: Path, target: Path, data: bytes) -> None:
    """Appends to a copy of the earlier file, which is not changed."""
    make_folder(target.parent)
    if not target.exists() and before.exists():
        copy_file(before, target)
    append(target, data)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
