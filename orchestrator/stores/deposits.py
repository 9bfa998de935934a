"""What a store says of its runs: writes, finds and reads deposits, and the archives that they name.

Decides the keys, how many deposits of a run stay, and which of them counts. Must never know ledgers or
platforms. What it reads is only believed within limits. Below `runs/<run>/`:

    deposit/<adoptions>-<version>-<sha256>.json    the newest counts; the one before stays until the next
    material/<sha256>                              the source's archive, and the image's
    inputs/<sha256>                                an input's archive; the sha256 is that of its content

Below `runs/schedule.<name>/` lie the archives for the next runs of a schedule. Only what this module wrote is
deleted here. docs/decisions/020-what-a-store-says-of-a-run.md says why it is a snapshot.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.core import bounds, deposit, wire
from orchestrator.core.checkpoint import CheckpointRef
from orchestrator.core.deposit import Deposit
from orchestrator.errors import BackendError, CorruptCheckpoint, NoIdentity, NotFound, Rejected, Superseded
from orchestrator.files import write_whole
from orchestrator.files.hashing import digest_file
from orchestrator.stores.store import Stat, Store, content, snapshot
from orchestrator.stores.store import is_empty as store_is_empty
from orchestrator.stores.unencrypted import SUFFIX

MANIFEST = "manifest.json"
READ_MAX = 3  # deposits of one run, if the newest are damaged
KEPT = 2
_DEPOSIT = re.compile(rf"([0-9]{{4}})-([0-9]{{10}})-([0-9a-f]{{64}})\.json(?:{re.escape(SUFFIX)})?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Said:
    """What a store says of one run. `deposit`: the newest that can be believed. `troubles`: why newer ones
    cannot. `checkpoints`: those with a manifest there, by step, and at most the newest
    `bounds.SESSION_CHECKPOINTS_MAX`. `encrypted`: what it says cannot be decrypted here, and `troubles` says
    what to do."""

    run: str
    deposit: Deposit | None = None
    troubles: tuple[str, ...] = ()
    checkpoints: tuple[CheckpointRef, ...] = ()
    encrypted: bool = False


@dataclass
class _Listed:
    """One run's keys in a listing. `sealed`: the checkpoints that the store knows as encrypted, although it
    has no option `encrypt`."""

    deposits: list[Stat] = field(default_factory=list)
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    sealed: list[CheckpointRef] = field(default_factory=list)


def material_key(run: str, sha256: str) -> str:
    """Where an archive of the run lies in the store."""
    return f"runs/{run}/material/{sha256}"


def input_key(run: str, sha256: str) -> str:
    """Where the archive of an input of the run lies in the store."""
    return f"runs/{run}/inputs/{sha256}"


def of_schedule(name: str) -> str:
    """Goes in place of a run's name for what the next runs of a schedule need. No run can be called so."""
    return f"schedule.{name}"


# --- Writing ----------------------------------------------------------------------------------------------


def write(store: Store, said: Deposit) -> None:
    """Stores a deposit, then deletes all but the one before. Idempotent.

    Raises Superseded, and changes nothing, if another ledger has adopted the run since. Raises Rejected for
    one that is too large to be read again.
    """
    data = wire.encode(said)
    if len(data) > bounds.DEPOSIT_BYTES_MAX:
        raise Rejected(f"what is to be said of {said.run} is too large: {len(data):,} bytes")
    with snapshot(store):
        _write(store, said, data)


def _write(store: Store, said: Deposit, data: bytes) -> None:
    before = _deposits(store, said.run)
    if any((_order(stat) or (0, 0))[0] > said.adoptions for stat in before):
        raise Superseded(f"another ledger has adopted {said.run}")
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"runs/{said.run}/deposit/{said.adoptions:04d}-{said.version:010d}-{sha256}.json"
    with TemporaryDirectory(prefix="orchestrator-") as folder:
        source = Path(folder) / "deposit.json"
        write_whole(source, data, sync=False)
        store.put(key, source, sha256)
    mine = (stat for stat in before if stat.key != key and not stat.key.endswith(SUFFIX))
    older = sorted((stat for stat in mine if (_order(stat) or (0, 0)) <= said.order), key=_rank)
    for stat in older[: len(older) - (KEPT - 1)]:
        store.delete(stat.key)


def there(store: Store, run: str) -> tuple[tuple[int, int], tuple[CheckpointRef, ...]]:
    """The order of the run's newest deposit, (0, 0) without one, and its checkpoints with a manifest. One
    listing, so that both are of the same moment."""
    found = _listed(store, f"{run}/").get(run, _Listed())
    return _newest(found.deposits), tuple(found.checkpoints)


def newest(store: Store, run: str) -> tuple[int, int]:
    """The order of the run's newest deposit, by its name alone; (0, 0) without one."""
    return _newest(_deposits(store, run))


def _newest(found: Iterable[Stat]) -> tuple[int, int]:
    return max((_order(stat) or (0, 0) for stat in found), default=(0, 0))


def adopter(store: Store, run: str, adoptions: int) -> str | None:
    """The machine that has adopted the run after the ledger that counts so many adoptions; empty if the store
    does not say which. None if nobody has."""
    later = [stat for stat in _deposits(store, run) if (_order(stat) or (0, 0))[0] > adoptions]
    if not later:
        return None
    try:
        return _read(store, run, max(later, key=_rank)).adopted_by
    except (CorruptCheckpoint, ValueError, BackendError):
        return ""


def _deposits(store: Store, run: str) -> list[Stat]:
    return [stat for stat in store.list(f"runs/{run}/deposit/") if _order(stat) is not None]


def put_material(store: Store, run: str, sha256: str, archive: Path) -> None:
    """Stores an archive of the run, unless it is there. Raises FileNotFoundError if it is neither there nor
    here, and Rejected if it is not what its name says."""
    key = material_key(run, sha256)
    there = store.stat(key)
    if not archive.exists() and there is not None:
        return
    size = archive.stat().st_size
    if there is not None and there.size != size:
        store.delete(key)  # the key names its bytes: another size is damage
    if there is None or there.size != size:
        store.put(key, archive, sha256)


def put_input(store: Store, run: str, sha256: str, archive: Path) -> None:
    """Stores the archive of an input with this content. One that is there must be damaged: look first."""
    key = input_key(run, sha256)
    store.delete(key)
    store.put(key, archive, digest_file(archive))


# --- Reading ----------------------------------------------------------------------------------------------


def names(store: Store, starting: str = "") -> tuple[str, ...]:
    """The runs in the store whose names start like this, in order."""
    return tuple(_listed(store, starting))


def said_of(store: Store, run: str) -> Said | None:
    """What the store says of this run; None if it has neither a deposit nor a checkpoint of it."""
    return next(everything(store, f"{run}/"), None)


def everything(store: Store, starting: str = "") -> Iterator[Said]:
    """What the store says of every run whose name starts like this, in order. Reads the deposits only."""
    for run, listed in _listed(store, starting).items():
        yield _said(store, run, listed)


def _said(store: Store, run: str, listed: _Listed) -> Said:
    troubles: list[str] = []
    found, encrypted = None, ""
    for stat in sorted(listed.deposits, key=_rank, reverse=True)[:READ_MAX]:
        try:
            found = _read(store, run, stat)
        except (CorruptCheckpoint, ValueError) as error:
            reason = error.reason if isinstance(error, CorruptCheckpoint) else str(error)
            troubles.append(f"{stat.key.rpartition('/')[2]}: {reason}")
        except NoIdentity as error:  # an older one that can be read would be out of date
            encrypted = str(error)
            break
        except NotFound:  # superseded meanwhile
            continue
        else:
            break
    if not encrypted and listed.sealed and found is None:
        encrypted = _why_sealed(store, run, listed.sealed[-1])
    if encrypted:
        troubles.append(encrypted)
    refs = sorted({*listed.checkpoints, *listed.sealed}, key=lambda ref: (ref.step, ref.name))
    newest = tuple(refs[-bounds.SESSION_CHECKPOINTS_MAX :])
    return Said(run, found, tuple(troubles), newest, bool(encrypted))


def _why_sealed(store: Store, run: str, ref: CheckpointRef) -> str:
    """What the store itself says when it is asked for an encrypted manifest."""
    try:
        store.stat(f"runs/{run}/checkpoints/{ref.name}/{MANIFEST}")
    except NoIdentity as error:
        return str(error)
    return ""


def is_empty(store: Store) -> bool:
    """Whether the store has nothing but deposits and archives. An unmounted disk looks like that, too."""
    return store_is_empty(store) or all(_is_ours(stat.key) for stat in store.list(""))


def _is_ours(key: str) -> bool:
    return key.split("/")[2:3] in (["deposit"], ["material"], ["inputs"])


def fetch_material(store: Store, run: str, sha256: str, target: Path) -> None:
    """Writes a verified archive of the run to `target`. Raises NotFound if the store lacks it, and
    CorruptCheckpoint if it is damaged or larger than an archive can be."""
    store.get(material_key(run, sha256), target, sha256, bytes_max=bounds.MATERIAL_BYTES_MAX)


def fetch_input(store: Store, run: str, sha256: str, target: Path) -> None:
    """Writes the archive of an input to `target`. Its content is still to be verified. Raises NotFound if the
    store lacks it, and CorruptCheckpoint if it is larger than it can be."""
    store.get(input_key(run, sha256), target, bytes_max=bounds.MATERIAL_BYTES_MAX)


def material(store: Store, run: str) -> tuple[Stat, ...]:
    """The archives of source and images that the store has for the run; foreign names are ignored."""
    return _named_by_content(store, f"runs/{run}/material/")


def _named_by_content(store: Store, root: str) -> tuple[Stat, ...]:
    return tuple(stat for stat in store.list(root) if _SHA256.fullmatch(stat.key.removeprefix(root)))


def remove(store: Store, run: str) -> None:
    """Removes the archives of a run whose home is elsewhere, or of a schedule, then the run's deposits."""
    with snapshot(store):
        for stat in (*material(store, run), *_named_by_content(store, f"runs/{run}/inputs/")):
            store.delete(stat.key)
        for stat in _deposits(store, run):
            if not stat.key.endswith(SUFFIX):  # without its key, nobody can tell what it is
                store.delete(stat.key)


def _listed(store: Store, starting: str) -> dict[str, _Listed]:
    """The runs with a deposit or a checkpoint, by name. Keys that are not ours are ignored."""
    found: dict[str, _Listed] = {}
    for stat in store.list(f"runs/{starting}"):
        _, run, *rest = stat.key.split("/")
        if not deposit.is_run(run):
            continue
        match rest:
            case ["deposit", _] if _order(stat) is not None:
                found.setdefault(run, _Listed()).deposits.append(stat)
            case ["checkpoints", name, file] if (ref := CheckpointRef.parse(name)) is not None:
                if file == MANIFEST:
                    found.setdefault(run, _Listed()).checkpoints.append(ref)
                elif file == MANIFEST + SUFFIX:
                    found.setdefault(run, _Listed()).sealed.append(ref)
    return found


def _read(store: Store, run: str, stat: Stat) -> Deposit:
    """Raises CorruptCheckpoint or ValueError if it cannot be believed."""
    key = stat.key.removesuffix(SUFFIX)
    sha256 = key[-len(".json") - 64 : -len(".json")]
    found = deposit.decode(run, content(store, key, bounds.DEPOSIT_BYTES_MAX, sha256))
    if found.order != _order(stat):
        raise ValueError("its name says another version than its content")
    return found


def _order(stat: Stat) -> tuple[int, int] | None:
    """The adoptions and the version in a deposit's key; None if it is no such key."""
    match = _DEPOSIT.fullmatch(stat.key.rpartition("/")[2])
    return None if match is None else (int(match[1]), int(match[2]))


def _rank(stat: Stat) -> tuple[tuple[int, int], str]:
    return _order(stat) or (0, 0), stat.key
