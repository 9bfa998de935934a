"""Names for a shell that completes a word: of runs, jobs, schedules, platforms and stores.

Decides how they are found within a tenth of a second: from the columns of the ledger's file and the keys of
the config, without the packages that read either in full. A ledger on a server takes the longer way. Changes
nothing. Says nothing about what cannot be read: the caller shows no name then.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from orchestrator.client.home import CONFIG_BYTES_MAX, Home
from orchestrator.files import own_trouble, read_own

NAMES_MAX = 500  # the newest; a longer list helps nobody
_FILE = "sqlite:///"
# What a config without these keys has: config.DEFAULT_PLATFORMS and DEFAULT_STORES.
_PLATFORMS = ("process",)
_STORES = ("home",)


def names(home: Home, kind: str) -> list[str]:
    """The names of this kind, one of KINDS, each once; the newest runs first. May raise anything that reading
    a broken ledger or config raises."""
    return [*dict.fromkeys(KINDS[kind](home))]


def _runs(home: Home) -> Iterable[str]:
    """Names of runs, then of their jobs: a command takes both."""
    url = home.database()
    if not url.startswith(_FILE):
        return _asked(home)
    rows = _rows(url, "SELECT run, name FROM runs ORDER BY submitted_at DESC, run LIMIT ?")
    return [run for run, _ in rows] + [job for _, job in rows]


def _asked(home: Home) -> list[str]:
    from orchestrator.client.client import Client

    return [each.run for each in Client(home).runs(all=True, limit=NAMES_MAX)]


def _schedules(home: Home) -> Iterable[str]:
    url = home.database()
    if not url.startswith(_FILE):
        from orchestrator.client.client import Client

        return [each.name for each in Client(home).schedules.all()]
    return [name for (name,) in _rows(url, "SELECT name FROM schedules ORDER BY name LIMIT ?")]


def _rows(url: str, query: str) -> list[Any]:
    path = Path(url.removeprefix(_FILE))
    beside = (path.with_name(path.name + ending) for ending in ("-wal", "-shm"))
    if not path.is_file() or any(map(own_trouble, beside)):  # a FIFO there would hold SQLite up
        return []
    connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=0.5)
    try:
        return connection.execute(query, (NAMES_MAX,)).fetchall()
    finally:
        connection.close()


def _platforms(home: Home) -> Iterable[str]:
    return _keys(home, "platforms", _PLATFORMS)


def _stores(home: Home) -> Iterable[str]:
    return _keys(home, "stores", _STORES)


def _keys(home: Home, section: str, default: tuple[str, ...]) -> Iterable[str]:
    import yaml

    try:
        found = yaml.safe_load(read_own(home.folders.config, CONFIG_BYTES_MAX))
    except FileNotFoundError:
        found = None
    table = found.get(section) if isinstance(found, dict) else None
    return [str(key) for key in table] if isinstance(table, dict) else default


KINDS: dict[str, Callable[[Home], Iterable[str]]] = {
    "runs": _runs,
    "schedules": _schedules,
    "platforms": _platforms,
    "stores": _stores,
    "places": lambda home: [*_platforms(home), *_stores(home)],
}
