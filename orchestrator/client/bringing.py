"""Brings what a run needs that comes from another ledger: its newest checkpoint, its archives and inputs.

Decides what counts: only what is verified to the last byte. What is lacking is said in words and is no error.
Reads no path of this machine that a store names.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from orchestrator.core.checkpoint import Accepted, newest
from orchestrator.core.deposit import Deposit, archives
from orchestrator.core.job import Job, frozen_image
from orchestrator.engine import bringing
from orchestrator.errors import CorruptCheckpoint, NotFound, Rejected
from orchestrator.freeze import inputs
from orchestrator.home import Folders
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores.deposits import Said
from orchestrator.stores.store import Store

CANDIDATES_MAX = 8  # checkpoints that nobody accepted and that are read whole


def with_the_last(store: Store, told: Deposit, said: Said, notes: list[str], *, own: bool = False) -> Deposit:
    """With the newest checkpoint that the present session brought to the store, and that the old
    controller had no time to accept. It counts if every byte of it is verified. Of this ledger's `own` runs
    one of any session counts: which one was the present one, only the newest deposit would know."""
    known = {each.name for each in told.accepted}
    at = newest(told.accepted)
    candidates = [ref for ref in said.checkpoints
                  if ref.name not in known and not ref.outputs
                  and (own or (ref.generation, ref.incarnation) == (told.generation, told.incarnation))
                  and (at is None or ref.step > at.ref.step)]  # fmt: skip
    for ref in sorted(candidates, key=lambda ref: ref.step, reverse=True)[:CANDIDATES_MAX]:
        try:
            found = manifests.verify(store, told.run, ref.name)
        except (CorruptCheckpoint, NotFound) as error:
            notes.append(f"the checkpoint at step {ref.step:,} is not used: {error}")
            continue
        notes.append(f"accepted the checkpoint at step {ref.step:,}, which the old controller had not seen")
        best = told.job.checkpoint.keep.best
        metrics = {best.metric: found.metrics[best.metric]} if best and best.metric in found.metrics else {}
        last = Accepted(ref, found.size, metrics, found.created_at, found.sha256)
        return replace(told, accepted=(*told.accepted, last))
    return told


def brought(store: Store, run: str, job: Job, folders: Folders) -> list[str]:
    """Fetches the archives that the next session needs. Returns what is lacking."""
    lacking = []
    image = frozen_image(job.image)
    for sha256 in archives(job):
        target = folders.image(sha256) if sha256 == image else folders.bundle(sha256)
        try:
            bringing.fetch(store, run, sha256, target)
        except (NotFound, CorruptCheckpoint) as error:
            what = "what its image is built from" if sha256 == image else "its source"
            lacking.append(f"it cannot go on here without {what}, which the store cannot give: {error}")
    return [*lacking, *staged(store, run, job, folders)]


def staged(store: Store, run: str, job: Job, folders: Folders) -> list[str]:
    """Brings the inputs into this home, from the store or from paths that the user gave. Returns what is
    lacking."""
    try:
        inputs.stage(job.inputs, folders.inputs, partial(bringing.give, store, run))
    except (Rejected, OSError) as error:
        return [f"it cannot go on here without its inputs: {error}"]
    return []
