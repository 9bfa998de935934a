"""Writes a backup of the state while it runs: the ledger, the config, and what only this home has.

Decides what is in it. Checkpoints are in the stores, which have their own safety; a store inside the home is
included only if asked for. No secret is: the config has only references, and `credentials/` stays out. The
file appears under its name complete and verified, or not at all.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import socket
import tarfile
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

from orchestrator import __version__
from orchestrator import config as configuration
from orchestrator.client.home import Home
from orchestrator.clock import Clock, utc_text
from orchestrator.core.wording import size_text
from orchestrator.errors import BackendError, InputError
from orchestrator.files import Draft, draft_file, open_own
from orchestrator.home import BUNDLES, CONFIG, HOME_ID, IMAGES, INPUTS, PLATFORMS
from orchestrator.ledger.portable import exported
from orchestrator.ledger.tables import REVISION
from orchestrator.platforms import catalog
from orchestrator.pruning import listing
from orchestrator.spec.document import BYTES_MAX
from orchestrator.user import expanded

FORMAT = 1
MANIFEST = "manifest.json"
TABLES = "tables"
STORES = "stores"
SUFFIX = ".tar.gz"
SPOOL_BYTES = 16 * 1024 * 1024  # of a table; a larger one waits in a temporary file
MANIFEST_BYTES_MAX = 256 * 1024 * 1024  # a million files
_READ_BYTES = 1 << 20


_FACTS: dict[str, type | tuple[type, ...]] = {
    "revision": str, "at": (int, float), "runs": int, "notes": list, "host": str, "home": str,
}  # fmt: skip


@dataclass(frozen=True)
class EarlierBackUp:
    """A backup that another one took the place of. `size` in bytes, `at` in unix seconds; `at` and `runs` are
    None if it was damaged."""

    size: int
    at: float | None = None
    runs: int | None = None
    files: int | None = None


@dataclass(frozen=True)
class BackUp:
    """A backup that was written and verified. `size` in bytes. `notes`: what is not in it, and why.
    `replaced`: what had its name before."""

    path: Path
    size: int
    runs: int
    files: int
    notes: tuple[str, ...] = ()
    replaced: EarlierBackUp | None = None


def back_up(
    home: Home, clock: Clock, target: Path, *, checkpoints: bool, progress: Callable[[str], None]
) -> BackUp:
    """See `Backups.write`."""
    config = configuration.load(home.path)
    now = clock.now()
    if target.is_dir():
        stamp = utc_text(now).replace(" ", "-").replace(":", "")
        target /= f"orchestrator-backup-{stamp}{SUFFIX}"
    elif not target.name.endswith(SUFFIX):  # a folder that is missing, such as one that is not mounted
        raise InputError(
            f"there is no folder {target}, and a backup's name ends with {SUFFIX}: create the folder, or "
            f"name the file {target.name}{SUFFIX}"
        )
    if not target.parent.is_dir():
        raise InputError(f"{target.parent} is not a folder: create it, or name another file")
    ledger = home.existing_ledger()
    if ledger is None:
        raise InputError(f"there is nothing to back up in {home.path}: it has no ledger yet")
    replaced = earlier(target)
    notes: list[str] = []
    with ledger, _draft(target) as draft:
        with draft.stream() as stream, tarfile.open(fileobj=stream, mode="w:gz", compresslevel=3) as tar:
            writing = _Writing(tar)
            with exported(ledger) as tables:
                for name, rows in tables:
                    progress(f"the table {name}")
                    writing.rows(f"{TABLES}/{name}.jsonl", rows)
            for name, path in _files(home, config, checkpoints, notes):
                progress(name)
                writing.file(name, path)
            runs = writing.counts[f"{TABLES}/runs.jsonl"]
            writing.manifest(
                version=__version__, revision=REVISION, at=now, host=socket.gethostname(),
                home=str(home.path), runs=runs, notes=notes,
            )  # fmt: skip
        progress("verifying it")
        verified(draft.path)
        draft.replace(target)
    return BackUp(target, target.stat().st_size, runs, len(writing.members), tuple(notes), replaced)


@contextmanager
def _draft(target: Path) -> Iterator[Draft]:
    """Raises InputError, which names the target and not the draft, if no file can be created there."""
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(draft_file(target.parent))
        except OSError as error:
            raise InputError(
                f"{target} cannot be created ({error.strerror}): name a file or folder elsewhere"
            ) from error
        yield draft


def _files(
    home: Home, config: configuration.Config, checkpoints: bool, notes: list[str]
) -> Iterator[tuple[str, Path]]:
    """After the tables, so that each file that a run in them needs is there."""
    if home.folders.config.exists():
        yield CONFIG, home.folders.config
    for kind in (BUNDLES, IMAGES, INPUTS):
        yield from _below(home.path / kind, kind)
    for platform in config.platforms:
        file = home.folders.platform(platform.name) / HOME_ID
        if platform.type in catalog.IDENTIFIED and file.exists():
            yield f"{PLATFORMS}/{platform.name}/{HOME_ID}", file
    for given in config.stores:
        folder = folder_of(given, home.path)
        if folder is None or not folder.is_relative_to(home.path) or not folder.is_dir():
            continue
        if checkpoints:
            yield from _below(folder, f"{STORES}/{given.name}")
        else:
            size, _ = listing.disk_bytes(folder)
            notes.append(
                f"the store {given.name} lies in this home, and its checkpoints ({size_text(size)}) are not "
                "in the backup: --checkpoints includes them"
            )


def folder_of(given: configuration.StoreConfig, home: Path) -> Path | None:
    """Where a store that is a folder lies; None for any other store, or if nobody knows."""
    if given.type != "folder":
        return None
    with suppress(ValueError):
        return home / expanded(Path(str(given.options.get("path", ""))))
    return None


def _below(folder: Path, name: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
        if path.is_file() and not path.is_symlink() and not path.name.startswith(".tmp-"):
            yield f"{name}/{path.relative_to(folder)}", path


class _Writing:
    """Adds members and remembers their digests, for the manifest, which comes last."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self.members: dict[str, tuple[int, str]] = {}
        self.counts: dict[str, int] = {}

    def rows(self, name: str, rows: Iterable[dict[str, Any]]) -> None:
        import tempfile

        self.counts[name] = 0
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as spool:
            for row in rows:
                spool.write(json.dumps(row, separators=(",", ":")).encode() + b"\n")
                self.counts[name] += 1
            size = spool.tell()
            spool.seek(0)
            self._add(name, cast("IO[bytes]", spool), size)

    def file(self, name: str, path: Path) -> None:
        try:
            stream = open_own(path)
        except FileNotFoundError:  # superseded meanwhile
            return
        with stream:
            self._add(name, stream, os.fstat(stream.fileno()).st_size)  # the name may be another file by now

    def manifest(self, **facts: Any) -> None:
        files = {name: {"size": size, "sha256": digest} for name, (size, digest) in self.members.items()}
        data = json.dumps({"format": FORMAT, **facts, "files": files}, indent=1).encode()
        self._add(MANIFEST, io.BytesIO(data), len(data))

    def _add(self, name: str, stream: IO[bytes], size: int) -> None:
        member = tarfile.TarInfo(name)
        member.size, member.mode = size, 0o600
        hashing = _Hashing(stream)
        self._tar.addfile(member, cast("IO[bytes]", hashing))
        if name != MANIFEST:
            self.members[name] = (size, hashing.digest.hexdigest())


@dataclass
class _Hashing:
    stream: IO[bytes]
    digest: Any = field(default_factory=hashlib.sha256)

    def read(self, size: int = -1) -> bytes:
        data = self.stream.read(size)
        self.digest.update(data)
        return data


# --- Read back ------------------------------------------------------------------------------------------


def earlier(path: Path) -> EarlierBackUp | None:
    """The backup that has this name already; None if nothing has. Raises InputError for any other file."""
    if not os.path.lexists(path):
        return None
    is_ours, facts = _facts_of(path) if path.is_file() else (False, {})
    if not is_ours:
        raise InputError(f"{path} is there already and is not a backup: give another name, or a folder")
    at, runs, files = facts.get("at"), facts.get("runs"), facts.get("files")
    size = path.stat().st_size
    if not (isinstance(at, int | float) and isinstance(runs, int) and isinstance(files, dict)):
        return EarlierBackUp(size)
    return EarlierBackUp(size, float(at), runs, len(files))


def _facts_of(path: Path) -> tuple[bool, dict[str, Any]]:
    """Whether the file begins as a backup does, and its manifest, which is last; empty if it is damaged."""
    is_ours = False
    try:
        with tarfile.open(path, "r|gz") as tar:
            for member in tar:
                is_ours = is_ours or member.name.startswith(f"{TABLES}/")
                if not is_ours:
                    break
                if member.name == MANIFEST and member.size <= MANIFEST_BYTES_MAX:
                    stream = tar.extractfile(member)
                    found = None if stream is None else json.loads(stream.read())
                    return True, found if isinstance(found, dict) else {}
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError, RecursionError):
        return is_ours, {}
    return is_ours, {}


@dataclass(frozen=True)
class Verified:
    """What an intact backup says of itself. `files`: the names of the others. `settings`: the contents of
    those that say where it belongs: name → the config, and the ids on the platforms."""

    manifest: Mapping[str, Any]
    files: Collection[str]
    settings: Mapping[str, bytes]


def is_id(name: str) -> bool:
    """Whether a file of a backup is the home's id on a platform."""
    parts = PurePosixPath(name).parts
    return len(parts) == 3 and (parts[0], parts[2]) == (PLATFORMS, HOME_ID)


def verified(path: Path) -> Verified:
    """Reads all of a backup. Raises BackendError for a damaged one, InputError for anything else."""
    found: dict[str, dict[str, Any]] = {}
    settings: dict[str, bytes] = {}
    manifest: dict[str, Any] | None = None
    try:
        with tarfile.open(path, "r|gz") as tar:
            for member in tar:
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None or member.name in found:
                    raise InputError(f"{path} is not a backup: {member.name!r} is no plain file")
                if member.name == MANIFEST and member.size <= MANIFEST_BYTES_MAX:
                    manifest = json.loads(stream.read())
                    continue
                digest = hashlib.sha256()
                if member.name == CONFIG or is_id(member.name):
                    settings[member.name] = stream.read(BYTES_MAX + 1)
                    digest.update(settings[member.name])
                while data := stream.read(_READ_BYTES):
                    digest.update(data)
                found[member.name] = {"size": member.size, "sha256": digest.hexdigest()}
    except (OSError, EOFError, tarfile.TarError, ValueError, RecursionError) as error:
        if isinstance(error, FileNotFoundError):
            raise InputError(f"there is no file {path}") from error
        raise BackendError(f"the backup {path} is damaged: {error}", backend="backup") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise BackendError(
            f"the backup {path} is incomplete, or of a newer version: it has no manifest", backend="backup"
        )
    if manifest.get("files") != found:
        raise BackendError(f"the backup {path} is damaged: its contents changed", backend="backup")
    facts = {key: kind for key, kind in _FACTS.items() if not isinstance(manifest.get(key), kind)}
    if facts or f"{TABLES}/runs.jsonl" not in found:
        wrong = ", ".join(facts) or "its table of runs"
        raise BackendError(f"the backup {path} is damaged: {wrong} missing or wrong", backend="backup")
    return Verified(manifest, found.keys(), settings)
