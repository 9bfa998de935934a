"""Which of a session's shipped checkpoints can be accepted where they lie. No blob is fetched.

A checkpoint counts if its manifest is whole, is the session's own, and names only blobs that the store has
with their right size. Their bytes are verified when somebody fetches them. What is not there may come later:
the store's answers may be out of date. Deletes nothing, and must never know what happens to the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.core import bounds
from orchestrator.core.checkpoint import CheckpointRef, Manifest
from orchestrator.errors import BackendError, CorruptCheckpoint
from orchestrator.files import Odd, append, make_folder
from orchestrator.session.layout import CHECKPOINTS
from orchestrator.session.outbox import found_here, refuse, within_limit
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.store import Store, snapshot
from orchestrator.uplink import registers
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.outbox import StoreOutbox

LOOKS_MIN = 5  # before a person is told of a checkpoint that stays incomplete


@dataclass(frozen=True)
class Shipped:
    """What one look at a session's shipped checkpoints found.

    `manifests`: those to accept, oldest first. `corrupt` and `late`: name and reason. The late ones are not
    complete yet, and are looked at again. `gone`: accepted ones that are not in the store any more. `notes`
    and `more` as in `Collected`.
    """

    manifests: tuple[Manifest, ...] = ()
    corrupt: tuple[tuple[str, str], ...] = ()
    late: tuple[tuple[str, str], ...] = ()
    gone: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    more: bool = False


def _is_checkpoint(name: str) -> bool:
    ref = CheckpointRef.parse(name)
    return ref is not None and not ref.outputs


class Look:
    """One look at the shipped checkpoints of `outbox`.

    `into` holds only marks: how often a checkpoint was looked at in vain. `known` ones are not read. `kept`
    are those that were accepted and not retired since.
    """

    def __init__(
        self,
        store: Store,
        keys: SessionKeys,
        outbox: StoreOutbox,
        into: Path,
        known: Set[str],
        kept: Set[str],
    ) -> None:
        self._store = store
        self._keys = keys
        self._outbox = outbox
        self._marks = into / CHECKPOINTS
        self._known = known
        self._kept = kept
        self._corrupt: list[tuple[str, str]] = []
        self._late: list[tuple[str, str]] = []
        self._notes: list[str] = []
        self._cut = False

    def take(self, *, last: bool) -> Shipped:
        """Judges a page of what is new. The candidates are pinned before their blobs are looked up, so that
        the uplink deletes none of them meanwhile."""
        make_folder(self._marks)
        published = self._outbox.published()
        first, again, notes = self._waiting(set(published), last)
        page = [*first, *again][: bounds.COLLECT_CHECKPOINTS_MAX]
        newest = max(filter(_is_checkpoint, published), default=None)
        candidates: list[Manifest] = []
        with self._once(candidates):
            for name in page:
                candidates += self._read(name, published[name], newest)
        if candidates:
            pins = {each.name for each in candidates} | ({max(self._kept)} if self._kept else set())
            registers.pin(self._store, self._keys, pins)
        found: list[Manifest] = []
        with self._once(found), snapshot(self._store):  # a new one: what was deleted before the pin is gone
            listed = stored.blob_sizes(self._store, self._keys.run, candidates[0].ref) if candidates else {}
            for manifest in candidates:
                found += self._complete(manifest, listed)
        gone: list[str] = []
        with self._once(found):
            gone += self._gone(set(published))
        more = self._cut or len(first) > len(page)
        return Shipped(
            tuple(found), tuple(self._corrupt), tuple(self._late), tuple(gone), (*notes, *self._notes), more
        )

    @contextmanager
    def _once(self, found: Sequence[Manifest]) -> Iterator[None]:
        """If the store fails after something was found, the rest is left to the next look."""
        try:
            yield
        except BackendError:
            if not found:
                raise
            self._cut = True

    def _waiting(self, published: set[str], last: bool) -> tuple[list[str], list[str], tuple[str, ...]]:
        """The new ones, oldest first, and in the last look those that were refused before; then those that
        are to be looked at again. So what is never complete does not keep the new ones waiting."""
        _, refused = found_here(self._marks)
        late = {name: mark.stat() for name in published if (mark := self._late_mark(name)).exists()}
        seen = refused.keys() | late.keys()
        fresh, notes = within_limit(published - seen - self._known, len(published & (self._known | seen)))
        tries = bounds.CHECKPOINT_TRIES_MAX + (bounds.LAST_TRIES_MAX if last else 0)
        unsettled = published - self._known
        refused_before = [name for name in sorted(unsettled & refused.keys()) if refused[name].times < tries]
        late_before = sorted(
            unsettled & late.keys() - refused.keys(), key=lambda name: late[name].st_mtime_ns
        )
        if last:
            return [*fresh, *refused_before], late_before, notes
        return fresh, [*refused_before, *late_before], notes

    def _read(self, name: str, sha256: str | None, newest: str | None) -> list[Manifest]:
        try:
            found = self._outbox.read(name, sha256)
        except (CorruptCheckpoint, Odd) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else str(error)
            refuse(self._marks / name)
            self._corrupt.append((name, reason))
            return []
        last = name == newest or not _is_checkpoint(name)
        if found is None and last:  # its uplink deletes older ones, but never the newest, nor outputs
            self._wait(name, "its manifest is missing")
        return [] if found is None else [found]

    def _complete(self, manifest: Manifest, listed: Mapping[str, int]) -> list[Manifest]:
        """The candidate, if its blobs are all there."""
        reason = stored.lacking(self._store, self._keys.run, manifest, listed)
        if reason:
            self._wait(manifest.name, reason)
        return [] if reason else [manifest]

    def _wait(self, name: str, reason: str) -> None:
        """The checkpoint is looked at again; a person hears of it only if that does not help."""
        mark = self._late_mark(name)
        make_folder(mark.parent, parents=False)
        append(mark, b".")
        self._late.append((name, reason))
        if mark.stat().st_size >= LOOKS_MIN:
            self._notes.append(f"checkpoint {name} is not accepted yet: {reason} in the home store")

    def _late_mark(self, name: str) -> Path:
        """In the checkpoint's folder of marks: one byte for each look that found it incomplete."""
        return self._marks / name / "late"

    def _gone(self, published: set[str]) -> tuple[str, ...]:
        """The accepted ones that the store has no more. A listing alone does not prove it."""
        gone = []
        with snapshot(self._store):  # a new one, which may know better
            for name in sorted(self._kept - published)[: bounds.COLLECT_CHECKPOINTS_MAX]:
                with suppress(CorruptCheckpoint, Odd):  # then it is there
                    if self._outbox.read(name) is None:
                        gone.append(name)
        return tuple(gone)
