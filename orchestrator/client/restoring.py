"""Brings a backup into an empty home, and every run that was under way past what has happened since.

Decides what a run's next session may be called and where it goes on: sessions that were started after the
backup are not in it, and may still run. So each run is taken from its old ledger as `adopt` does, which
fences those sessions out, and gets the newer checkpoints that its store has. The ledger comes last: until it
is there, nothing is restored.
"""

from __future__ import annotations

import json
import re
import socket
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator.client import backing_up
from orchestrator.client.adopting import Adopting
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.files import draft_folder, sync_folder
from orchestrator.home import (
    BUNDLES,
    CONFIG,
    HOME_ID,
    HOME_ID_BEFORE,
    IMAGES,
    INPUTS,
    LEDGER,
    PLATFORMS,
)
from orchestrator.ledger import Ledger
from orchestrator.ledger.portable import filled
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores.store import Store

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_KINDS = (BUNDLES, IMAGES, INPUTS)
_READ_BYTES = 1 << 20
_ID = re.compile(rb"[0-9a-f]{12,64}\s*")  # of a home on a platform


@dataclass(frozen=True)
class Revived:
    """A run that was under way. `step`: of its newest checkpoint, at which it goes on; None if the store has
    none. `notes`: what a person should know."""

    run: str
    phase: Phase
    step: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Restored:
    """What came back. `at`: when the backup was made, in unix seconds. `refused`: of a dry run, why the real
    one would be refused now; empty if it would not."""

    home: Path
    at: float
    runs: int
    revived: tuple[Revived, ...] = ()
    notes: tuple[str, ...] = ()
    refused: str = ""


def restore(client: Client, path: Path, *, dry_run: bool, progress: Callable[[str], None]) -> Restored:
    """See `Backups.restore`."""
    progress("verifying the backup")
    manifest = backing_up.verified(path)
    home = client.home
    notes = [str(note) for note in manifest.get("notes", [])]
    if dry_run:
        at, runs, refused = float(manifest["at"]), int(manifest["runs"]), _refusal(client, manifest)
        return Restored(home.path, at, runs, notes=tuple(notes), refused=refused)
    _check_target(client, manifest)
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    with draft_folder(home.path) as folder:
        progress("unpacking it")
        _unpack(path, folder)
        kept = _place(folder, home.path, notes)
        if kept:
            notes.append(f"{home.folders.config} was there and is kept as it is")
        url = home.database()
        own = f"sqlite:///{home.path / LEDGER}"
        beside = folder / LEDGER
        progress("filling the ledger")
        tables = {each.stem: _rows(each) for each in (folder / backing_up.TABLES).glob("*.jsonl")}
        filled(f"sqlite:///{beside}" if url == own else url, str(manifest["revision"]), tables)
        with Ledger.open(f"sqlite:///{beside}" if url == own else url) as ledger:
            revived = tuple(_revived(client, ledger, progress))
        if url == own:  # closed, so all of it is in this one file
            beside.replace(home.path / LEDGER)  # the last step: now it is restored
            sync_folder(home.path)
    return Restored(home.path, float(manifest["at"]), int(manifest["runs"]), revived, tuple(notes))


def _refusal(client: Client, manifest: dict[str, Any]) -> str:
    try:
        _check_target(client, manifest)
    except InputError as error:
        return str(error)
    return ""


def _check_target(client: Client, manifest: dict[str, Any]) -> None:
    """Raises InputError for a home with runs, and while the controller of the old home runs here."""
    from orchestrator.client.home import Home

    home = client.home
    if (home.path / LEDGER).exists():
        raise InputError(
            f"{home.path} already has a ledger: restore into an empty home (--home DIR), so that nothing is "
            "overwritten"
        )
    old = Path(str(manifest.get("home", "")))
    if manifest.get("host") != socket.gethostname() or not (old / LEDGER).exists():
        return
    ledger = Home(old).existing_ledger()
    if ledger is None:
        return
    with ledger:
        if (owner := ledger.owner()) is not None:
            raise InputError(
                f"the backup's own home {old} is in use by a controller ({owner}): two ledgers must not "
                f"control the same runs. Stop it for good (`orchestrator --home {old} down`), or use it"
            )


def _unpack(path: Path, folder: Path) -> None:
    """Only plain files below names that a backup has; its digests were verified."""
    with tarfile.open(path, "r|gz") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            known = len(parts) > 1 and parts[0] in (*_KINDS, backing_up.TABLES, backing_up.STORES)
            known = known or (len(parts) == 3 and (parts[0], parts[2]) == (PLATFORMS, HOME_ID))
            if not (known or member.name in (CONFIG, backing_up.MANIFEST)) or ".." in parts:
                raise InputError(f"{path} has a file that no backup has: {member.name!r}")
            target = folder.joinpath(*parts)
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            stream = tar.extractfile(member)
            assert stream is not None, "verified"
            with target.open("wb") as output:
                while data := stream.read(_READ_BYTES):
                    output.write(data)


def _place(folder: Path, home: Path, notes: list[str]) -> bool:
    """Moves the files to their places. Returns whether the home had a config, which is kept."""
    kept = (home / CONFIG).exists()
    if not kept and (folder / CONFIG).exists():
        (folder / CONFIG).replace(home / CONFIG)
    for kind in _KINDS:
        _merge(folder / kind, home / kind)
    for file in sorted((folder / PLATFORMS).glob(f"*/{HOME_ID}")):
        _identify(file, home / PLATFORMS / file.parent.name, notes)
    for store in sorted((folder / backing_up.STORES).glob("*")):
        target = _folder_of(home, store.name)
        if target is None:
            notes.append(f"the config has no store {store.name} in this home: its checkpoints are left out")
        else:
            _merge(store, target)
    return kept


def _identify(file: Path, folder: Path, notes: list[str]) -> None:
    """Gives the home the id that its backup had on a platform: by it the sessions there are found again."""
    place = folder / HOME_ID
    if not _ID.fullmatch(file.read_bytes()):
        raise InputError(f"the backup's id of this home on {folder.name} is none of ours")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if place.exists() and place.read_bytes() != file.read_bytes():
        place.replace(folder / HOME_ID_BEFORE)
        notes.append(
            f"on {folder.name} this home now goes by the backup's id; what it had there by its old id "
            f"({folder / HOME_ID_BEFORE}) is no longer cleaned up from here"
        )
    file.replace(place)


def _folder_of(home: Path, store: str) -> Path | None:
    """Where the store lies in this home. The config may come from the backup too, so a store elsewhere is not
    written: a backup from a stranger could put any file into any folder."""
    from orchestrator import config

    for given in config.load(home).stores:
        folder = backing_up.folder_of(given, home)
        if given.name == store and folder is not None:
            return folder if folder.resolve().is_relative_to(home.resolve()) else None
    return None


def _merge(source: Path, target: Path) -> None:
    """What is there already stays: it is immutable, or of this home."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_file() and not place.exists():
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.replace(place)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as stream:
        for line in stream:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                raise InputError(f"{path.name} in the backup has a line that is no row")
            yield row


def _revived(client: Client, ledger: Ledger, progress: Callable[[str], None]) -> Iterator[Revived]:
    wired = client.wired()
    under_way = [each.run for each in ledger.summaries() if not each.phase.final]
    for record in ledger.records(under_way):
        progress(record.run)
        name = record.store or wired.config.home_store
        try:
            store = wired.store(name)
            after, notes = Adopting(client, name, store, ledger, named=True).revive(record, ledger)
            step = _step(store, name, after, notes)
        except (OrchestratorError, OSError) as error:
            after, notes = Adopting.without_store(record, ledger, client.clock.now(), str(error))
            step = _newest(after.accepted)
        yield Revived(after.run, after.standing, step, tuple(notes))


def _step(store: Store, name: str, record: RunRecord, notes: list[str]) -> int | None:
    """Where the run goes on: a backup without its store knows of checkpoints that are not here."""
    newest = _newest(record.accepted)
    if newest is None or record.phase.final:
        return newest
    ordered = sorted(record.accepted, key=lambda each: each.ref.step, reverse=True)
    here = (each.ref.step for each in ordered if manifests.present(store, record.run, [each.name]))
    try:
        found = next(here, None)
    except (OrchestratorError, OSError) as error:
        notes.append(f"whether the store {name} has step {newest:,} is unknown: {error}")
        return newest
    if found is None:
        notes.append(
            f"step {newest:,} has no checkpoint here: bring what the old machine had in its store {name} (as "
            "`backup --checkpoints` does for a store in the home) before a controller starts, or it is held"
        )
    elif found < newest:
        notes.append(f"step {newest:,} has no checkpoint here: it goes on from step {found:,}")
    return found


def _newest(accepted: tuple[Accepted, ...]) -> int | None:
    return max((each.ref.step for each in accepted), default=None)
