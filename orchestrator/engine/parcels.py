"""What a session is to fetch from its run's home store itself, put there before the session is prepared.

A store that encrypts gives sessions no key. So the parcel of a session is encrypted for a key of its own,
which goes to the session beside the credential. The store keeps that key too, encrypted for its owner: a
prepare that is repeated finds what it put before, and the session that is prepared already can still read it.
Decides nothing about the run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from orchestrator.core import bounds, wire
from orchestrator.errors import BackendError, CorruptCheckpoint, NotFound
from orchestrator.files.hashing import digest_file
from orchestrator.session.staging import Content
from orchestrator.stores.opening import new_key
from orchestrator.stores.store import Store, content
from orchestrator.uplink import parcel as parcels
from orchestrator.uplink.layout import SessionKeys

_KEY_BYTES_MAX = 4 * bounds.KIB


def key_for(store: Store, keys: SessionKeys) -> str:
    """The key of the session's parcel; empty if the store does not encrypt. Drawn once."""
    drawn = new_key(store)
    if not drawn:
        return ""
    try:
        return content(store, keys.parcel_key, _KEY_BYTES_MAX).decode("ascii")
    except NotFound:
        pass
    except (CorruptCheckpoint, UnicodeDecodeError):
        store.delete(keys.parcel_key)
    with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
        path = Path(folder) / "key"
        path.write_text(drawn, "ascii")
        store.put(keys.parcel_key, path, digest_file(path))
    return drawn


def key_to_hide(store: Store, keys: SessionKeys) -> str:
    """The same, without drawing one; empty if nobody can tell now."""
    try:
        return content(store, keys.parcel_key, _KEY_BYTES_MAX).decode("ascii") if new_key(store) else ""
    except (BackendError, CorruptCheckpoint, UnicodeDecodeError):
        return ""


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
