"""Opens a run's home store where only its `Portable` is known: inside a session, without a config.

A type that sessions can open has one line here, which leads to its module. Ships with the uplink, so a module
is imported only when its type is opened. Must never know what the store is used for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import Protocol, runtime_checkable

from orchestrator.errors import BackendError, Rejected
from orchestrator.stores.portable import Portability, Portable, is_on_this_machine
from orchestrator.stores.store import Store

# Type → the function that opens it. It keeps what it was given in memory only.
OPENERS: Mapping[str, str] = {
    "drive": "orchestrator.stores.drive.opening:carried",
    "folder": "orchestrator.stores.folder:carried",
    "s3": "orchestrator.stores.s3.opening:carried",
}


def opened(portable: Portable) -> Store:
    """The store, encrypted if it has recipients. Raises Rejected for a type that sessions cannot open, and
    ImportError if a package that it needs is not installed."""
    if portable.type not in OPENERS:
        raise Rejected(f"sessions cannot open a store of type {portable.type!r}")
    open_it: Callable[[Portable], Store] = resolve_name(OPENERS[portable.type])
    store = open_it(portable)
    if not portable.recipients:
        return store
    from orchestrator.stores.encrypted import EncryptedStore  # needs a package of its own

    return EncryptedStore(store, portable.recipients)


@runtime_checkable
class Sharing(Store, Protocol):
    """Optional, for a store that encrypts: a part of it may be for one session alone."""

    def new_key(self) -> str:
        """A new secret key for `only_for`."""

    def proofs(self, text: str) -> tuple[str, ...]:
        """What only the store's owner can write below this text, one for each identity. The first is to be
        written, and any may be found. Raises InputError if the identity cannot be used."""

    def only_for(self, key: str) -> Store:
        """The same place, as the holder of this secret key uses it: what is put there is encrypted for that
        key alone, and nothing else can be read. Raises InputError for anything but a secret key."""


def new_key(store: Store) -> str:
    """A new secret key for `only_for`; empty for a store that does not encrypt."""
    return store.new_key() if isinstance(store, Sharing) else ""


def only_for(store: Store, key: str) -> Store:
    """The part of the store for this key; the store itself without one. Raises Rejected if the store does not
    encrypt."""
    if not key:
        return store
    if not isinstance(store, Sharing):
        raise Rejected("a store that does not encrypt has nothing that is for one key alone")
    return store.only_for(key)


def lies_on_disk_of(folder: Path, store: Store) -> bool:
    """Whether what is put into the store takes room on the disk of this folder, as far as is known."""
    if not is_on_this_machine(store):
        return False
    try:
        path = carried(store).options.get("path")
        return path is not None and Path(path).stat().st_dev == folder.stat().st_dev
    except (BackendError, OSError):
        return False


def carried(store: Store) -> Portable:
    """What a session needs to open this store. Raises Rejected if sessions cannot."""
    if not isinstance(store, Portability):
        raise Rejected("a store of its type cannot be opened by a session")
    portable = store.portable()
    if portable.type not in OPENERS:
        raise Rejected(f"a store of type {portable.type!r} cannot be opened by a session")
    if store.registers is None:
        raise Rejected("it has no registers, so nothing would keep two sessions from publishing at once")
    return portable
