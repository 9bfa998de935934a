"""The uplink: ships one agent's outbox to its run's home store, as long as the agent may publish.

It reads the outbox as carefully as the engine does, because the training can write there, and copies it
before it ships anything. It deletes only checkpoints of its own that newer ones supersede. Knows no clock and
no platform: its driver says when, retries after the store's errors, and stops it for good after `Superseded`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.core import bounds, wire
from orchestrator.core.checkpoint import Accepted, CheckpointRef, Manifest, superseded_while_open
from orchestrator.core.order import Order
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import Odd, remove_tree, write_whole
from orchestrator.session import saying
from orchestrator.session.layout import BLOBS, CHECKPOINTS, LOG, PROGRESS, RESULT, STATUS
from orchestrator.session.outbox import Outbox, collect, refuse
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from orchestrator.uplink import registers
from orchestrator.uplink.layout import PIECE_BYTES_MAX, SessionKeys

TOLD_MAX = 8  # publications that a heartbeat names


class Uplink:
    """The uplink of one incarnation, whose `outbox` is on this machine. `scratch` is a folder of its own.

    `beat` and `ship` may run in two threads, so that a long upload does not stop the heartbeat. Both raise
    Superseded once somebody else may publish. After the store's errors they may be called again.
    """

    def __init__(self, store: Store, order: Order, incarnation: str, outbox: Outbox, scratch: Path) -> None:
        self._store = store
        self._order = order
        self._keys = SessionKeys(order.run, order.session)
        self._incarnation = incarnation
        self._outbox = outbox
        self._scratch = scratch
        self._claimed = False
        self._published: dict[str, Accepted] = {}  # what it has put into the store and not deleted
        self._result: str | None = None  # its sha256, once it is in the store
        self._shipped: dict[str, int] = {}  # bytes of log and progress, by name
        self.done = False  # the result is in the store, and its heartbeat says so

    def beat(self) -> None:
        """Ships the agent's status if it has changed. It names only a checkpoint that is in the store."""
        self._check()
        try:
            status = saying.status(self._outbox.small(STATUS))
        except Odd:
            return
        if status is None or status.incarnation != self._incarnation:
            return
        published = [self._published[name] for name in sorted(self._published)]
        newest = published[-1] if published else None
        shown = replace(status, checkpoint=None if newest is None else newest.name,
                        checkpoint_step=None if newest is None else newest.ref.step)  # fmt: skip
        told = tuple(registers.Published(each.name, each.sha256) for each in published[-TOLD_MAX:])
        beats = registers.Heartbeat(shown, self._result, told)
        if len(wire.encode(beats)) > bounds.REGISTER_BYTES_MAX:
            beats = replace(beats, status=replace(shown, warnings=()))
        registers.beat(self._store, self._keys, beats)

    def ship(self) -> Iterator[None]:
        """Ships a page of what is new, and the result once there is nothing else; before the result, deletes
        what is superseded. Yields between each check of the fence and the write that it allows: time may pass
        there."""
        self._check()
        over = (self._scratch / RESULT).exists()  # then nothing new is committed
        brought = collect(self._outbox, self._scratch, last=over, sync=False)
        more = brought.more
        for manifest in brought.manifests:
            if self._is_ours(manifest):
                self._check()
                yield
                more |= not self._publish(manifest)
        for path in (self._scratch / BLOBS).iterdir():
            remove_tree(path)  # a blob, or the draft folder of an uplink that was killed
        self._ship_growth()
        if over and not more:
            self._check()
            yield
            self._result = self._put(self._keys.result, (self._scratch / RESULT).read_bytes())
            self.beat()
            self.done = True
        elif not over and self._superseded(frozenset()):
            self._check()
            yield
            self._retire()

    def _check(self) -> None:
        """Raises Superseded if somebody else may publish."""
        registers.check_fence(self._store, self._order.run, self._order.generation)
        if not self._claimed:
            registers.claim(self._store, self._keys, self._incarnation)
            self._claimed = True

    def _is_ours(self, manifest: Manifest) -> bool:
        ours = (self._order.run, self._order.generation, self._incarnation)
        return (manifest.run, manifest.ref.generation, manifest.ref.incarnation) == ours

    def _publish(self, manifest: Manifest) -> bool:
        try:
            stored.publish(self._store, self._order.run, manifest, self._scratch)
        except CorruptCheckpoint:  # the copy was damaged: copy it again
            refuse(self._scratch / CHECKPOINTS / manifest.name)
            return False
        self._published[manifest.name] = Accepted(
            manifest.ref, manifest.size, manifest.metrics, manifest.created_at, manifest.sha256
        )
        return True

    def _superseded(self, pinned: frozenset[str]) -> tuple[Accepted, ...]:
        keep = self._order.keep
        best = None if keep.best is None else (keep.best.metric, keep.best.mode)
        return superseded_while_open(self._published.values(), last=keep.last, best=best, pinned=pinned)

    def _retire(self) -> None:
        """Deletes its own superseded checkpoints, except those that the engine relies on."""
        pins = registers.pinned(self._store, self._keys)
        gone = {each.name for each in self._superseded(pins)}
        keep = (self._published.keys() | self._own(pins)) - gone
        if gone:
            stored.retire(self._store, self._order.run, gone, keep, older=False)
        self._published = {name: each for name, each in self._published.items() if name not in gone}

    def _own(self, names: Iterable[str]) -> set[str]:
        """Those of its own lineage."""
        lineage = (self._order.generation, self._incarnation)
        refs = (CheckpointRef.parse(name) for name in names)
        return {ref.name for ref in refs if ref is not None and (ref.generation, ref.incarnation) == lineage}

    def _ship_growth(self) -> None:
        for path in (self._scratch / PROGRESS, *sorted((self._scratch / LOG).glob("*.log"))):
            name = path.relative_to(self._scratch).as_posix()
            while data := _read(path, self._shipped.get(name, 0)):
                offset = self._shipped.get(name, 0)
                self._put(partial(self._keys.piece, name, offset), data)
                self._shipped[name] = offset + len(data)

    def _put(self, key: Callable[[str], str], data: bytes) -> str:
        """Puts an object whose key contains its sha256. Returns the sha256."""
        piece, sha256 = self._scratch / "piece", hashlib.sha256(data).hexdigest()
        write_whole(piece, data, sync=False)
        self._store.put(key(sha256), piece, sha256)
        return sha256


def _read(path: Path, offset: int) -> bytes:
    """The next piece of a file; empty at the end."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(PIECE_BYTES_MAX)
    return b""
