"""The uplink: ships one agent's outbox to its run's home store, as long as the agent may publish.

It reads the outbox as carefully as the engine does, because the training can write there. It holds the blobs
of a checkpoint by hard links, so that the agent may remove it meanwhile. Each of them is read once: the store
takes it only if what was sent has its hash. A checkpoint whose first blob was sent has begun: its blobs are
held until it is in the store, also by the next uplink. Deletes only its own superseded checkpoints. Knows no
clock and no platform: its driver says when, retries after the store's errors, and stops it for good after
`Superseded`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from orchestrator.files import Odd, append, open_plain, read_plain, remove_tree, write_whole
from orchestrator.session import saying
from orchestrator.session.layout import BLOBS, CHECKPOINTS, LOG, MANIFEST, PROGRESS, RESULT, STATUS
from orchestrator.session.outbox import Outbox, collect, refuse
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store, snapshot
from orchestrator.uplink import registers
from orchestrator.uplink.layout import PIECE_BYTES_MAX, SessionKeys

TOLD_MAX = 8  # publications that a heartbeat names
# Marks of a checkpoint in the scratch folder: it is in the store; a part of it is.
_PUBLISHED, _BEGUN = "published", "begun"
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
        self.scratch = scratch
        self._wanted = wanted
        self._claimed = False
        self.published = _marked(scratch / CHECKPOINTS, _PUBLISHED)  # by name: what is in the store
        self.begun = _marked(scratch / CHECKPOINTS, _BEGUN)  # by name: what is half there
        self.sent: Callable[[int], None] = lambda _: None  # hears the size of each object that the store took
        refs = (each.ref for each in self.published.values() if not each.ref.outputs)
        self._newest: CheckpointRef | None = max(refs, key=lambda ref: ref.step, default=None)
        self._result: str | None = None  # its sha256, once it is in the store
        self._shipped: dict[str, int] = {}  # bytes of log and progress, by name
        self.asked_to_leave = False  # the controller wants the session to save and leave
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
        over = (self.scratch / RESULT).exists()  # then nothing new is committed
        brought = collect(self._outbox, self.scratch, last=over, sync=False, verify=False, copies=0)
        more = brought.more or bool(self.begun)  # newer ones wait until it is finished
        chosen = self._choose(brought.manifests)
        self._hold(chosen)  # before anything can fail, so that failures do not fill the disk
        for manifest in chosen:
            self._check()
            yield
            more |= not self._publish(manifest)
        self._hold(())
        if brought.lack is not None:
            raise brought.lack
        with snapshot(self._store):
            self._ship_growth()
        if over and not more:
            self._check()
            yield
            self._result = self._put(self._keys.result, read_plain(self.scratch / RESULT))
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
            keep, known = self._needed(pins)
            stored.retire(self._store, self._order.run, names, keep=keep - set(names), known=known)
        for name in names:
            remove_tree(self._mark(name, _PUBLISHED))
            del self.published[name]
        return names

    def sweep(self) -> bool:
        """Deletes the blobs of its own that no checkpoint needs, such as those of one that was given up half
        sent. Returns whether there were any."""
        self._check()
        keep, known = self._needed(registers.pinned(self._store, self._keys))
        own = CheckpointRef(0, self._order.generation, self._incarnation)
        return stored.sweep_lineage(self._store, self._order.run, own, keep, known) > 0

    def _needed(self, pins: frozenset[str]) -> tuple[set[str], dict[str, Manifest]]:
        """Names of its own checkpoints whose blobs are needed, and those of their manifests that it knows."""
        known = self.published | self.begun
        return known.keys() | self._own(pins), known

    def _shows_the_newest(self) -> bool:
        """Whether those for which the others are to go are there: a put that was acknowledged may be lost."""
        published = (each for _, each in sorted(self.published.items()) if not each.ref.outputs)
        newest = list(published)[-KEEP_OPEN_MIN:]
        names = [each.name for each in newest]
        with snapshot(self._store):
            listed = stored.blob_sizes(self._store, self._order.run, newest[0].ref)
            whole = not any(stored.lacking(self._store, self._order.run, each, listed) for each in newest)
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
        fence = registers.check_fence(self._store, self._order.run, self._order.generation)
        self.asked_to_leave |= fence.leave
        if not self._claimed:
            registers.claim(self._store, self._keys, self._incarnation)
            self._claimed = True

    def _is_ours(self, manifest: Manifest) -> bool:
        ours = (self._order.run, self._order.generation, self._incarnation)
        return (manifest.run, manifest.ref.generation, manifest.ref.incarnation) == ours

    def _choose(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """Those to publish, newest first."""
        for name in self.begun.keys() - {each.name for each in manifests}:  # its blobs here are not whole
            self._end(name)
            remove_tree(self._mark(name, MANIFEST))
        chosen = []
        for manifest in reversed(manifests):
            if not self._is_ours(manifest) or manifest.name in self.published:
                continue
            if self._wanted(manifest):
                chosen.append(manifest)
            elif manifest.name not in self.begun:  # if it ever is wanted, it is taken again
                remove_tree(self._mark(manifest.name, MANIFEST))
        return chosen

    def _hold(self, manifests: Iterable[Manifest]) -> None:
        """Lets go of every blob here that neither these nor begun checkpoints need, and of what an uplink
        that was killed left."""
        held = {sha256 for each in (*manifests, *self.begun.values()) for sha256 in each.blobs()}
        for path in (self.scratch / BLOBS).iterdir():
            if path.name not in held:
                remove_tree(path)

    def _publish(self, manifest: Manifest) -> bool:
        try:
            stored.publish(
                self._store, self._order.run, manifest, self.scratch, partial(self._begin, manifest)
            )
        except CorruptCheckpoint:  # it was changed: look at it again
            self._end(manifest.name)
            refuse(self.scratch / CHECKPOINTS / manifest.name)
            return False
        append(self._mark(manifest.name, _PUBLISHED), b"")
        self.published[manifest.name] = manifest
        self._end(manifest.name)
        newer = self._newest is None or manifest.ref.step > self._newest.step
        if newer and not manifest.ref.outputs:
            self._newest = manifest.ref
        return True

    def _begin(self, manifest: Manifest, size: int) -> None:
        append(self._mark(manifest.name, _BEGUN), b"")
        self.begun[manifest.name] = manifest
        self.sent(size)

    def _end(self, name: str) -> None:
        remove_tree(self._mark(name, _BEGUN))
        self.begun.pop(name, None)

    def _mark(self, name: str, mark: str) -> Path:
        return self.scratch / CHECKPOINTS / name / mark

    def _ship_growth(self) -> None:
        for path in (self.scratch / PROGRESS, *sorted((self.scratch / LOG).glob("*.log"))):
            name = path.relative_to(self.scratch).as_posix()
            while data := _read(path, self._shipped.get(name, 0)):
                offset = self._shipped.get(name, 0)
                self._put(partial(self._keys.piece, name, offset), data)
                self._shipped[name] = offset + len(data)

    def _put(self, key: Callable[[str], str], data: bytes) -> str:
        """Puts an object whose key contains its sha256. Returns the sha256."""
        piece, sha256 = self.scratch / "piece", hashlib.sha256(data).hexdigest()
        write_whole(piece, data, sync=False)
        self._store.put(key(sha256), piece, sha256)
        self.sent(len(data))
        return sha256


def _marked(checkpoints: Path, kind: str) -> dict[str, Manifest]:
    """What an uplink that died before had marked so."""
    found = {}
    for mark in checkpoints.glob(f"*/{kind}"):
        with suppress(CorruptCheckpoint, OSError):
            name = mark.parent.name
            found[name] = decode(name, read_plain(mark.parent / MANIFEST))
    return found


def _read(path: Path, offset: int) -> bytes:
    """The next piece of a file; empty at the end."""
    with suppress(FileNotFoundError), open_plain(path) as file:
        file.seek(offset)
        return file.read(PIECE_BYTES_MAX)
    return b""
