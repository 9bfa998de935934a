"""Brings what a session needs into this home from its run's store, if another machine submitted the run.

`places` are the run's name and, if a schedule submitted it, the schedule's place. What counts is verified to
the last byte. Decides nothing about a run, and reads no path that a store names.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.core.job import Input
from orchestrator.errors import CorruptCheckpoint, NotFound, Rejected, Transient
from orchestrator.files import make_folder, remove_tree
from orchestrator.freeze import inputs, packing
from orchestrator.stores import deposits
from orchestrator.stores.store import Store


def archive(store: Store, places: Sequence[str], sha256: str, target: Path) -> Path:
    """The archive of a run's source or image, in this home. Fetches it if it is not here yet.

    Raises Transient if the store does not have it either: the machine that submitted the run may still put it
    there.
    """
    errors = []
    for place in places:
        try:
            fetch(store, place, sha256, target)
        except (NotFound, CorruptCheckpoint) as error:
            errors.append(error)
        else:
            return target
    raise Transient(
        f"what {places[0]} consists of ({target.name[:12]}…) is neither here nor in the run's store: the "
        f"machine that submitted it has it, so start a controller there once (`orchestrator up`): {errors[0]}"
    ) from errors[0]


def fetch(store: Store, run: str, sha256: str, target: Path) -> None:
    """Fetches an archive, unless it is here. Raises NotFound and CorruptCheckpoint as the store does."""
    make_folder(target.parent, 0o700)
    if target.exists() and inputs.digest(target) == sha256:
        return
    deposits.fetch_material(store, run, sha256, target)


def stage(store: Store, places: Sequence[str], wanted: tuple[Input, ...], into: Path) -> Path | None:
    """The folder with a job's inputs: copied from their paths here or, if they are not there, from the store.
    Raises Rejected if neither has them."""
    try:
        return inputs.stage(wanted, into)
    except Rejected as here:
        for place in places:
            with contextlib.suppress(Rejected):
                return inputs.stage(wanted, into, partial(give, store, place))
        raise here


def give(store: Store, run: str, wanted: Input, target: Path) -> bool:
    """Writes an input that the store has. False if it has none that is whole."""
    sha256 = wanted.sha256 or ""
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        packed = Path(folder) / "input.tar"
        try:
            deposits.fetch_input(store, run, sha256, packed)
            packing.unpack(packed, target, sha256)
        except (NotFound, CorruptCheckpoint, ValueError):
            remove_tree(target)
            return False
    return True
