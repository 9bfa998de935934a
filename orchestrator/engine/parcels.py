"""What a session is to fetch from its run's home store itself, put there before the session is prepared.

A store that encrypts gives sessions no key. So the parcel of a session is encrypted for a key of its own,
which goes to the session beside the credential. The store keeps that key too, encrypted for its owner: a
prepare that is repeated finds what it put before, and the session that is prepared already can still read it.
A proof beside the key tells it from one that somebody else put there, who could then read the parcel. Decides
nothing about the run.
"""

from __future__ import annotations

import hmac
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from orchestrator.core import bounds, wire
from orchestrator.errors import BackendError, CorruptCheckpoint, InputError, NotFound
from orchestrator.files import write_whole
from orchestrator.files.hashing import digest_file
from orchestrator.session.staging import Content
from orchestrator.stores.opening import Sharing
from orchestrator.stores.store import Store, content
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys

_KEY_BYTES_MAX = 4 * bounds.KIB


def key_for(store: Store, keys: SessionKeys) -> str:
    """The key of the session's parcel; empty if the store does not encrypt. Drawn once."""
    if not isinstance(store, Sharing):
        return ""
    with suppress(NotFound, CorruptCheckpoint):
        found = _kept(store, keys)
        if found:
            return found
    for stat in list(store.list(keys.parcel)):  # of another key, so it would be kept and never be decrypted
        store.delete(stat.key)
    drawn = store.new_key()
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        path = Path(folder) / "key"
        write_whole(path, f"{drawn}\n{store.proofs(_claim(keys, drawn))[0]}".encode("ascii"), sync=False)
        store.put(keys.parcel_key, path, digest_file(path))
    return drawn


def key_to_hide(store: Store, keys: SessionKeys) -> str:
    """The same, without drawing one; empty if nobody can tell now."""
    if not isinstance(store, Sharing):
        return ""
    try:
        return _kept(store, keys)
    except (BackendError, CorruptCheckpoint, InputError):
        return ""


def _kept(store: Sharing, keys: SessionKeys) -> str:
    """The key that the store keeps; empty if not its owner put it there."""
    text = content(store, keys.parcel_key, _KEY_BYTES_MAX).decode("ascii", errors="replace")
    key, _, proof = text.partition("\n")
    proofs = store.proofs(_claim(keys, key))
    return key if any(hmac.compare_digest(proof.encode(), each.encode()) for each in proofs) else ""


def _claim(keys: SessionKeys, key: str) -> str:
    return f"{keys.parcel_key}\n{key}"


def put(
    store: Store, keys: SessionKeys, contents: Iterable[Content], key: str, say: Callable[[str], None]
) -> bytes:
    """Puts the contents there, and returns what tells the session how to fetch them. Idempotent."""
    sent = 0

    def told(size: int) -> None:
        nonlocal sent
        sent += size
        say(f"{sent / 1e6:,.0f} MB for {keys.session} are in its home store")

    return wire.encode(parcels.write(store, keys, contents, key, told))
