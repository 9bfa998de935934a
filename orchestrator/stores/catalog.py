"""The types of store.

A type is one line here plus one module, with the class of its options and a function that makes the store.
Must never know what a store does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog import Entry
from orchestrator.stores.store import Store

TYPES: Mapping[str, Entry] = {
    "drive": Entry(
        "orchestrator.stores.drive.configured:Options", "orchestrator.stores.drive.configured:configured"
    ),
    "folder": Entry("orchestrator.stores.folder:Options", "orchestrator.stores.folder:configured"),
    "s3": Entry("orchestrator.stores.s3.configured:Options", "orchestrator.stores.s3.configured:configured"),
}


def build(name: str, type: str, options: Mapping[str, object], home: Path) -> Store:
    """The store that a user configured as `name`, without wrappers.

    Relative paths are relative to `home`, the orchestrator's own folder. Touches nothing outside the process.
    Raises InputError as `orchestrator.catalog.build` does.
    """
    store: Store = catalog.build("store", name, type, options, TYPES, home)
    return store
