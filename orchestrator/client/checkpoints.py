"""A run's accepted checkpoints, and what the home store's manifests say about them.

Only checkpoints that the ledger accepted count, by the sha256 of their manifests; others in the store do not.
Decides which is the newest and the best; changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from orchestrator.core.checkpoint import Accepted, Grade, Manifest, grade, newest
from orchestrator.core.run import RunRecord
from orchestrator.errors import CorruptCheckpoint, NotFound
from orchestrator.stores import checkpoints as stored
from orchestrator.stores import deposits
from orchestrator.stores.store import Store

MISSING = "missing in the store"


@dataclass(frozen=True)
class Checkpoint:
    """One accepted checkpoint. `size` in bytes; `generation` is the number of the session that wrote it.

    `resume_point`: the present session resumed from it. `resumed`: how exactly the session that wrote it
    resumed from another session's checkpoint; None if it did not, or if that is no longer known.
    `authenticated` is False if an older version accepted it without recording a sha256. `trouble`: why it
    cannot be used, and `advice`: the same with its possible cause. Both are empty if it can be used.
    """

    name: str
    step: int
    generation: int
    size: int
    metrics: Mapping[str, float]
    newest: bool
    best: bool
    resume_point: bool
    authenticated: bool
    resumed: Grade | None
    trouble: str
    advice: str


def checkpoints(store: Store, record: RunRecord, *, verify: bool) -> tuple[Checkpoint, ...]:
    """See `Run.checkpoints`."""
    rows = sorted(record.accepted, key=lambda c: (c.ref.step, c.ref.generation))
    look = stored.verify if verify else stored.read
    manifests = {each.name: manifest(store, record.run, each, look) for each in rows}
    advice = gone(store) if MISSING in manifests.values() else ""
    return tuple(_checkpoint(record, each, manifests, advice) for each in rows)


def _checkpoint(
    record: RunRecord, accepted: Accepted, manifests: Mapping[str, Manifest | str], advice: str
) -> Checkpoint:
    found = manifests[accepted.name]
    whole = isinstance(found, Manifest)
    session = record.session
    return Checkpoint(
        name=accepted.name,
        step=accepted.ref.step,
        generation=accepted.ref.generation,
        size=accepted.size,
        metrics=found.metrics if isinstance(found, Manifest) else dict(accepted.metrics),
        newest=accepted == newest(record.accepted),
        best=accepted == best(record),
        resume_point=session is not None and session.order.resume == accepted.name,
        authenticated=bool(accepted.sha256),
        resumed=_grade(record, manifests, accepted.name),
        trouble="" if whole else str(found),
        advice="" if whole else advice if found == MISSING else str(found),
    )


def best(record: RunRecord) -> Accepted | None:
    """The best checkpoint by the job's own metric; None if the job names none, or none was reported."""
    wanted = record.job.checkpoint.keep.best
    scored = [c for c in record.accepted if wanted is not None and wanted.metric in c.metrics]
    if wanted is None or not scored:
        return None
    sign = 1.0 if wanted.mode == "max" else -1.0
    return max(scored, key=lambda c: (sign * c.metrics[wanted.metric], c.ref.step))


def manifest(
    store: Store, run: str, checkpoint: Accepted, look: Callable[..., Manifest] = stored.read
) -> Manifest | str:
    """The stored manifest, or in words why it is unusable. With `look=stored.verify` every blob is read."""
    try:
        return look(store, run, checkpoint.name, checkpoint.sha256)
    except NotFound:
        return MISSING
    except CorruptCheckpoint as error:
        return f"corrupt: {error.reason}"


def gone(store: Store) -> str:
    """Why a checkpoint may be missing, in words."""
    empty = deposits.is_empty(store)
    return "it is gone from the home store" + (", which is empty: is its disk there?" if empty else "")


def _grade(record: RunRecord, manifests: Mapping[str, Manifest | str], name: str) -> Grade | None:
    """How exactly the session that wrote it resumed, if its parent belongs to another session and exists."""
    found = manifests[name]
    if not isinstance(found, Manifest) or found.parent is None:
        return None
    parent = manifests.get(found.parent)
    if not isinstance(parent, Manifest) or parent.ref.generation == found.ref.generation:
        return None
    watched = record.job.checkpoint.watch is not None
    return Grade.AS_SAVED if watched else grade(parent, found.environment)
