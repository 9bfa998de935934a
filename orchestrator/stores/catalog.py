"""Which types of store there are.

A type is one line here and one module, with the class of its options and what makes a store of them. Must
never know what a store does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog import Entry
from orchestrator.stores.store import Store

TYPES: Mapping[str, Entry] = {
    "folder": Entry("orchestrator.stores.folder:Options", "orchestrator.stores.folder:configured"),
}


def build(name: str, type: str, options: Mapping[str, object], home: Path) -> Store:
    """The store a user configured as `name`, bare: wrappers are the caller's.

    `home` is the orchestrator's own folder, which relative paths refer to. Touches nothing outside. Raises
    InputError as `orchestrator.catalog.build` does.
    """
    store: Store = catalog.build("store", name, type, options, TYPES, home)
    return store
