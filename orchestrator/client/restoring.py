"""Brings a backup into an empty home, and every run that was under way past what has happened since.

Decides what a run's next session may be called and where it goes on: sessions that were started after the
backup are not in it, and may still run. So each run is taken from its old ledger as `adopt` does, which
fences those sessions out, and gets the newer checkpoints that its store has. The ledger comes last: until it
is there, nothing is restored.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from orchestrator import config as configuration
from orchestrator.client import backing_up, taking_over
from orchestrator.client.adopting import Adopting
from orchestrator.client.backing_up import Verified
from orchestrator.client.home import Home
from orchestrator.config import Config
from orchestrator.core.checkpoint import Accepted
from orchestrator.core.lifecycle import Phase
from orchestrator.core.run import RunRecord
from orchestrator.engine import ownership
from orchestrator.errors import InputError, OrchestratorError, Transient
from orchestrator.files import (
    draft_folder,
    make_folder,
    read_small,
    rename,
    sync_folder,
    write_whole,
    written,
)
from orchestrator.home import BUNDLES, CONFIG, HOME_ID_BEFORE, IMAGES, INPUTS, LEDGER
from orchestrator.ledger import Ledger
from orchestrator.ledger.portable import check_fillable, controller_of, filled, is_blank
from orchestrator.stores import checkpoints as manifests
from orchestrator.stores.store import Store

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_KINDS = (BUNDLES, IMAGES, INPUTS)
_READ_BYTES = 1 << 20
_WHY = "restored from a backup"
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
    found = backing_up.verified(path)
    manifest, home = found.manifest, client.home
    at, runs, notes = float(manifest["at"]), int(manifest["runs"]), [str(note) for note in manifest["notes"]]
    if dry_run:
        return Restored(home.path, at, runs, notes=tuple(notes), refused=_refusal(client, path, found))
    _check(client, path, found)
    make_folder(home.path, 0o700)
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
            _take_charge(client, ledger, revived, notes)
        if url == own:
            _check_place(home.path)  # somebody may have begun one meanwhile
        _identify(found, home, notes)  # late: whoever uses this home meanwhile would go by them
        if url == own:  # closed, so all of it is in this one file
            rename(beside, home.path / LEDGER)  # the last step: now it is restored
            sync_folder(home.path)
    return Restored(home.path, at, runs, revived, tuple(notes))


# --- What is refused --------------------------------------------------------------------------------------


def _refusal(client: Client, path: Path, found: Verified) -> str:
    try:
        _check(client, path, found)
    except InputError as error:
        return str(error)
    return ""


def _check(client: Client, path: Path, found: Verified) -> None:
    """Raises InputError for a home or database that is in use, while the controller of the old home runs
    here, and for a backup with what is none of ours. Changes nothing."""
    home = client.home
    _check_place(home.path)
    for name in found.files:
        _check_member(path, name)
    for name, data in found.settings.items():
        if backing_up.is_id(name) and not _ID.fullmatch(data):
            raise InputError(f"the backup's id of this home on {name.split('/')[1]} is none of ours")
    folder = PurePosixPath(backing_up.TABLES)
    tables = [each.stem for each in map(PurePosixPath, found.files) if each.parent == folder]
    url = home.database_by(_config(home, path, found))
    check_fillable(url, str(found.manifest["revision"]), tables)
    _check_old(found.manifest, url)


def _check_place(home: Path) -> None:
    """Raises InputError if the home has a ledger, or anything else by that name."""
    ledger = home / LEDGER
    if ledger.exists() and not is_blank(f"sqlite:///{ledger}"):
        raise InputError(
            f"{home} already has a ledger: restore into an empty home (--home DIR), so that nothing is "
            "overwritten"
        )


def _config(home: Home, path: Path, found: Verified) -> Config:
    """What the home will have. Raises SpecError for its mistakes: no run could go on."""
    data = found.settings.get(CONFIG)
    if os.path.lexists(home.folders.config) or data is None:
        return configuration.load(home.path)
    return configuration.parsed(home.path, data, path / CONFIG)


def _check_old(manifest: Mapping[str, Any], url: str) -> None:
    """An old home whose config or server is gone stands in nobody's way: a backup is there for that."""
    old = Path(str(manifest["home"]))
    if manifest["host"] != socket.gethostname() or not old.is_dir():
        return
    try:
        theirs = Home(old).database()
        owner = None if theirs == url else controller_of(theirs)
    except (InputError, Transient):
        return
    if owner is not None:
        raise InputError(
            f"the backup's own home {old} is in use by a controller ({owner}): two ledgers must not "
            f"control the same runs. Stop it for good (`orchestrator --home {old} down`), or use it"
        )


def _check_member(path: Path, name: str) -> None:
    parts = PurePosixPath(name).parts
    known = len(parts) > 1 and parts[0] in (*_KINDS, backing_up.TABLES, backing_up.STORES)
    known = known or backing_up.is_id(name) or name in (CONFIG, backing_up.MANIFEST)
    if not known or ".." in parts:
        raise InputError(f"{path} has a file that no backup has: {name!r}")


# --- Its files --------------------------------------------------------------------------------------------


def _unpack(path: Path, folder: Path) -> None:
    """Only plain files below names that a backup has; its digests were verified."""
    with tarfile.open(path, "r|gz") as tar:
        for member in tar:
            _check_member(path, member.name)
            target = folder / member.name
            make_folder(target.parent, 0o700)
            stream = tar.extractfile(member)
            assert stream is not None, "verified"
            with written(target) as output:
                while data := stream.read(_READ_BYTES):
                    output.write(data)


def _place(folder: Path, home: Path, notes: list[str]) -> bool:
    """Moves the files to their places. Returns whether the home had a config, which is kept."""
    kept = os.path.lexists(home / CONFIG)
    if not kept and (folder / CONFIG).exists():
        rename(folder / CONFIG, home / CONFIG)
    for kind in _KINDS:
        _merge(folder / kind, home / kind)
    for store in sorted((folder / backing_up.STORES).glob("*")):
        target = _folder_of(home, store.name)
        if target is None:
            notes.append(f"the config has no store {store.name} in this home: its checkpoints are left out")
        else:
            _merge(store, target)
    return kept


def _identify(found: Verified, home: Home, notes: list[str]) -> None:
    """Gives the home the ids that its backup had on platforms: by them the sessions there are found again."""
    for name in sorted(filter(backing_up.is_id, found.settings)):
        place, data = home.path / name, found.settings[name]
        before, platform = place.with_name(HOME_ID_BEFORE), place.parent.name
        make_folder(place.parent, 0o700)
        if place.exists() and read_small(place) != data:
            rename(place, before)
            notes.append(
                f"on {platform} this home now goes by the backup's id; what it had there by its old id "
                f"({before}) is no longer cleaned up from here"
            )
        write_whole(place, data)


def _folder_of(home: Path, store: str) -> Path | None:
    """Where the store lies in this home. The config may come from the backup too, so a store elsewhere is not
    written: a backup from a stranger could put any file into any folder."""
    for given in configuration.load(home).stores:
        folder = backing_up.folder_of(given, home)
        if given.name == store and folder is not None:
            return folder if folder.resolve().is_relative_to(home.resolve()) else None
    return None


def _merge(source: Path, target: Path) -> None:
    """What is there already stays: it is immutable, or of this home."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_file() and not place.exists():
            make_folder(place.parent, 0o700)
            rename(path, place)


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
            after, notes = Adopting(client, name, store, ledger, named=True).revive(record, ledger, _WHY)
            step = _step(store, name, after, notes)
        except (OrchestratorError, OSError) as error:
            after, notes = Adopting.without_store(record, ledger, client.clock.now(), str(error), _WHY)
            step = _newest(after.accepted)
        yield Revived(after.run, after.standing, step, tuple(notes))


def _take_charge(client: Client, ledger: Ledger, revived: tuple[Revived, ...], notes: list[str]) -> None:
    """The stores of these runs are this home's from now on: a home that the backup came from stops."""
    wired = client.wired()
    place = taking_over.here(client.home, ledger)
    records = ledger.records(each.run for each in revived)
    for name in sorted({each.store or wired.config.home_store for each in records}):
        try:
            ownership.seize(ledger, name, wired.store(name), place, client.clock.now())
        except (OrchestratorError, OSError) as error:
            notes.append(f"the store {name} still counts as another home's ({error}): when it answers, run "
                         f"`{ownership.TAKE_OVER}`")  # fmt: skip


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
