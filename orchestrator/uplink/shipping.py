"""The uplink: ships one agent's outbox to its run's home store, as long as the agent may publish.

It reads the outbox as carefully as the engine does, because the training can write there. It holds the blobs
of a checkpoint by hard links, so that the agent may remove it meanwhile. Each of them is read once: the store
takes it only if what was sent has its hash. Deletes only its own superseded checkpoints. Knows no clock and
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
from orchestrator.core.checkpoint import (
    KEEP_OPEN_MIN,
    Accepted,
    CheckpointRef,
    Manifest,
    decode,
    superseded_while_open,
)
from orchestrator.core.order import Order
from orchestrator.errors import CorruptCheckpoint
from orchestrator.files import Odd, remove_tree, write_whole
from orchestrator.session import saying
from orchestrator.session.layout import BLOBS, CHECKPOINTS, LOG, MANIFEST, PROGRESS, RESULT, STATUS
from orchestrator.session.outbox import Outbox, collect, refuse
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store
from orchestrator.uplink import registers
from orchestrator.uplink.layout import PIECE_BYTES_MAX, SessionKeys

TOLD_MAX = 8  # publications that a heartbeat names
_PUBLISHED = "published"  # marks a checkpoint in the scratch folder that is in the store
Wanted = Callable[[Manifest], bool]


class Uplink:
    """The uplink of one incarnation, whose `outbox` is on this machine. `scratch` is a folder of its own on
    the same disk, which the next uplink of the incarnation gets if this one dies. Publishes only `wanted`
    checkpoints.

    `beat` and `ship` may run in two threads, so that a long upload does not stop the heartbeat. Both raise
    Superseded once somebody else may publish. After the store's errors they may be called again.
    """

    def __init__(
        self,
        store: Store,
        order: Order,
        incarnation: str,
        outbox: Outbox,
        scratch: Path,
        wanted: Wanted = lambda _: True,
    ) -> None:
        self._store = store
        self._order = order
        self._keys = SessionKeys(order.run, order.session)
        self._incarnation = incarnation
        self._outbox = outbox
        self._scratch = scratch
        self._wanted = wanted
        self._claimed = False
        self.published = _published(scratch / CHECKPOINTS)  # by name: what is in the store
        self._newest: CheckpointRef | None = max(
            (each.ref for each in self.published.values()), key=lambda ref: ref.step, default=None
        )
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
        newest = self._newest
        shown = replace(status, checkpoint=None if newest is None else newest.name,
                        checkpoint_step=None if newest is None else newest.step)  # fmt: skip
        last = sorted(self.published.values(), key=lambda each: each.name)[-TOLD_MAX:]
        told = tuple(registers.Published(each.name, each.sha256) for each in last)
        beats = registers.Heartbeat(shown, self._result, told)
        if len(wire.encode(beats)) > bounds.REGISTER_BYTES_MAX:
            beats = replace(beats, status=replace(shown, warnings=()))
        registers.beat(self._store, self._keys, beats)

    def ship(self) -> Iterator[None]:
        """Ships a page of what is new, newest first, and the result once there is nothing else. Yields
        between each check of the fence and the write that it allows: time may pass there."""
        self._check()
        over = (self._scratch / RESULT).exists()  # then nothing new is committed
        brought = collect(self._outbox, self._scratch, last=over, sync=False, verify=False)
        more = brought.more
        for manifest in reversed(brought.manifests):
            if not self._is_ours(manifest) or manifest.name in self.published:
                continue
            if not self._wanted(manifest):  # if it ever is, it is taken again
                (self._scratch / CHECKPOINTS / manifest.name / MANIFEST).unlink(missing_ok=True)
                continue
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

    def retire(self) -> tuple[str, ...]:
        """Deletes those of its own checkpoints in the store that the order's retention no longer keeps, and
        that the engine has not pinned. Returns their names. Deletes nothing unless the store shows the newest
        two as complete. Never touches those of other sessions, such as the one that this one resumed."""
        names = self._superseded(frozenset())
        if names and not self._shows_the_newest():
            return ()
        if names:
            self._check()
            pins = registers.pinned(self._store, self._keys)
            names = self._superseded(pins)
            left = (self.published.keys() | self._own(pins)) - set(names)
            stored.retire(self._store, self._order.run, names, keep=left, older=False, known=self.published)
        for name in names:
            (self._scratch / CHECKPOINTS / name / _PUBLISHED).unlink(missing_ok=True)
            del self.published[name]
        return names

    def _shows_the_newest(self) -> bool:
        """Whether those for which the others are to go are there: a put that was acknowledged may be lost."""
        newest = [self.published[name] for name in sorted(self.published)[-KEEP_OPEN_MIN:]]
        listed = stored.blob_sizes(self._store, self._order.run, newest[0].ref)
        whole = not any(stored.lacking(self._store, self._order.run, each, listed) for each in newest)
        names = [each.name for each in newest]
        return whole and len(stored.present(self._store, self._order.run, names)) == len(names)

    def _superseded(self, pinned: frozenset[str]) -> tuple[str, ...]:
        keep = self._order.keep
        best = None if keep.best is None else (keep.best.metric, keep.best.mode)
        known = [Accepted(each.ref, each.size, each.metrics) for each in self.published.values()]
        gone = superseded_while_open(known, last=keep.last, best=best, pinned=pinned)
        return tuple(each.name for each in gone)

    def _own(self, names: Iterable[str]) -> set[str]:
        """Those of its own lineage."""
        own = (self._order.generation, self._incarnation)
        refs = (CheckpointRef.parse(name) for name in names)
        return {ref.name for ref in refs if ref is not None and (ref.generation, ref.incarnation) == own}

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
        except CorruptCheckpoint:  # it was changed: look at it again
            refuse(self._scratch / CHECKPOINTS / manifest.name)
            return False
        (self._scratch / CHECKPOINTS / manifest.name / _PUBLISHED).touch()
        self.published[manifest.name] = manifest
        if self._newest is None or manifest.ref.step > self._newest.step:
            self._newest = manifest.ref
        return True

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


def _published(checkpoints: Path) -> dict[str, Manifest]:
    """What an uplink that died before had published."""
    found = {}
    for mark in checkpoints.glob(f"*/{_PUBLISHED}"):
        with suppress(CorruptCheckpoint, OSError):
            name = mark.parent.name
            found[name] = decode(name, (mark.parent / MANIFEST).read_bytes())
    return found


def _read(path: Path, offset: int) -> bytes:
    """The next piece of a file; empty at the end."""
    with suppress(FileNotFoundError), path.open("rb") as file:
        file.seek(offset)
        return file.read(PIECE_BYTES_MAX)
    return b""
