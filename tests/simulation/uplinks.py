"""What must hold of sessions that ship their own outbox: who may publish, and when the dead are given up.

Each check is proved by a planted bug: tests/simulation/test_planted_bugs.py.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.event import Assigned
from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Order
from orchestrator.core.session import Sighting
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Stat, Store
from tests.simulation.witness import ReadingTime, Witness, patience

if TYPE_CHECKING:
    from tests.simulation.world import World

# After a session's patience is over: readings are late, and the first one still shows a change.
NOTICED_POLLS = 6


# --- What one uplink does, seen from outside -------------------------------------------------------------


class WatchedUplinkStore:
    """The home store as one uplink sees it. For each publication it tells a witness whether it was allowed
    when it began, judged by the true fence at the time of this uplink's last read."""

    def __init__(self, inner: Store, witness: Witness, order: Order, incarnation: str) -> None:
        self._inner = inner
        self._witness = witness
        self._order = order
        self._incarnation = incarnation
        self._fence: int | None = None  # as read for the next publication

    @property
    def registers(self) -> Registers:
        assert self._inner.registers is not None
        return _UplinkRegisters(self._inner.registers, self)

    def looked(self, held: Held | None) -> None:
        """The uplink read the fence."""
        self._fence = None if held is None else json.loads(held.value)["generation"]

    def put(self, key: str, source: Path, sha256: str) -> None:
        _, _, kind, *_ = key.split("/")
        is_last = key.endswith("/manifest.json") or "/result.json/" in key
        if kind in ("blobs", "checkpoints") or is_last:
            self._begun(key)
        try:
            self._inner.put(key, source, sha256)
            self._witness.shipped(key)
        finally:
            if is_last:
                self._fence = None

    def _begun(self, key: str) -> None:
        if self._fence is None or self._fence > self._order.generation:
            told = "unread" if self._fence is None else f"at {self._fence}"
            self._witness.superseded.append(f"{self._order.session} put {key} with the fence {told}")
        self._witness.publishers[self._order.session].add(self._incarnation)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        self._inner.get(key, target, sha256, bytes_max=bytes_max)

    def stat(self, key: str) -> Stat | None:
        return self._inner.stat(key)

    def list(self, prefix: str) -> Iterator[Stat]:
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        ref = CheckpointRef(0, self._order.generation, self._incarnation)
        self._witness.retires(self._order.run, ref, key)
        self._inner.delete(key)


class _UplinkRegisters:
    def __init__(self, inner: Registers, store: WatchedUplinkStore) -> None:
        self._inner = inner
        self._store = store

    def read(self, key: str) -> Held | None:
        held = self._inner.read(key)
        if key.endswith("/fence"):
            self._store.looked(held)
        return held

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        return self._inner.swap(key, value, version)

    def list(self, prefix: str) -> Iterator[str]:
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)


# --- The checks -----------------------------------------------------------------------------------------


def superseded_sessions_publish_nothing(world: World) -> list[str]:
    """The fence is read before each publication. None begins if it is above the session's generation."""
    return world.witness.superseded


def one_incarnation_publishes(world: World) -> list[str]:
    """If a session was started twice, one agent ships its outbox and the other ships nothing."""
    published = world.witness.publishers.items()
    return [f"{session}: {sorted(writers)} publish" for session, writers in published if len(writers) > 1]


def generations_are_fenced_before_they_close(world: World) -> list[str]:
    """When a generation closes, a fence stops what its session may still publish."""
    return world.witness.unfenced


def the_dead_are_closed_within_patience(world: World) -> list[str]:
    """A session whose heartbeat stands still is given up after its patience, whatever its platform reports.

    Only time in which somebody looked counts. Before the first heartbeat it counts from the moment the
    session was seen to run.
    """
    found = []
    for run in world.runs:
        for item in world.ledger.history(run):
            if not isinstance(item.event, Assigned) or item.event.traits.uplink is not Uplink.STORE:
                continue
            session, traits = item.event.order.session, item.event.traits
            if not traits.readable_mid_run:  # if it does not ship, it is waited for
                continue
            beats = [at for at, _count in world.witness.beats[session]]
            most = patience(traits) + NOTICED_POLLS * traits.poll_seconds
            for looks in world.witness.reading_times[session]:
                believed = max(_believed(beats, looks, traits), default=0.0)
                if believed > most:
                    found.append(f"{session} was believed for {believed:.0f} s without a heartbeat")
    return found


def _believed(beats: list[float], looks: list[ReadingTime], traits: Traits) -> list[float]:
    """The seconds in which somebody looked: before the first beat, between any two, and after the last."""
    seconds = [-traits.setup_seconds] + [0.0] * len(beats)
    for look in looks:
        before = bisect_left(beats, look.at)
        if before > 0 or look.sighting is Sighting.RUNNING:
            seconds[before] += look.seconds
    return seconds


def what_does_not_ship_is_not_ended_unasked(world: World) -> list[str]:
    """Of a session that nobody can read while it runs, the work since its last shipment exists nowhere else.
    If it said last that this is much, or never said anything, it is stopped or given up only if its platform
    does not show it any more, or if the user agreed to that."""
    return world.witness.unasked


def what_is_accepted_is_complete(world: World) -> list[str]:
    """When a checkpoint is accepted, the store has its manifest and all its blobs, whatever it shows."""
    return world.witness.incomplete


def what_is_late_is_kept(world: World) -> list[str]:
    """Nothing newer than the newest accepted checkpoint is deleted, complete or not."""
    return world.witness.wasted


def what_is_late_is_waited_for(world: World) -> list[str]:
    """No generation closes without a checkpoint that was there in time, however late the store showed it."""
    return world.witness.missed


def uplinks_delete_only_what_is_superseded(world: World) -> list[str]:
    """An uplink deletes nothing of others, never the newest accepted checkpoint, and never the newest two in
    the store."""
    return world.witness.overdone


ALL = (
    what_is_accepted_is_complete,
    uplinks_delete_only_what_is_superseded,
    what_is_late_is_kept,
    what_is_late_is_waited_for,
    superseded_sessions_publish_nothing,
    one_incarnation_publishes,
    generations_are_fenced_before_they_close,
    the_dead_are_closed_within_patience,
    what_does_not_ship_is_not_ended_unasked,
)
