"""Inputs that are data sets of Kaggle: its sessions mount them, so they are not uploaded.

Decides which. The session verifies what it finds there (`runner.py`), because a mount may be stale.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from orchestrator.core.order import Order
from orchestrator.errors import BackendError, InputError
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.data import AccountData
from orchestrator.session.layout import INPUTS
from orchestrator.session.staging import Content

_PINNED = re.compile(r"kaggle:([A-Za-z0-9_-]+/[A-Za-z0-9_.-]+)/([0-9]{1,9})(?:/(.+))?")


@dataclass(frozen=True)
class Mount:
    """An input `name`: the file or folder `path` (empty: all) of a data set `place`, at a version."""

    name: str
    place: str
    version: int
    path: str
    sha256: str

    @property
    def source(self) -> str:
        """As a push names it."""
        return f"{self.place}/{self.version}"


def mounts(order: Order, names: Iterable[str] | None = None) -> tuple[Mount, ...]:
    """The order's inputs that could be mounted, or those of these names."""
    wanted = None if names is None else set(names)
    found = []
    for each in order.inputs:
        match = _PINNED.fullmatch(each.origin)
        if match is not None and each.sha256 is not None and (wanted is None or each.name in wanted):
            found.append(Mount(each.name, match[1], int(match[2]), match[3] or "", each.sha256))
    return tuple(found)


def chosen(client: KaggleClient, order: Order) -> tuple[str, ...]:
    """The names of the inputs that the session mounts: those whose version is still the newest.

    It is not known whether a kernel gets an older version (docs/references/kaggle.md#inputs), so an older one
    is uploaded. So is one that this account does not see.
    """
    data, names = AccountData(lambda: client), []
    for each in mounts(order):
        try:
            if data.newest(each.place) == each.version:
                names.append(each.name)
        except (BackendError, InputError):  # it is at hand here, and can be uploaded
            continue
    return tuple(names)


def without(content: Iterable[Content], names: Iterable[str]) -> Iterator[Content]:
    """The content of a session without these inputs."""
    left_out = set(names)
    for each in content:
        if each.name != INPUTS or not left_out or isinstance(each.content, bytes):
            yield each
            continue
        for child in sorted(each.content.iterdir()):
            if child.name not in left_out:
                yield Content(f"{INPUTS}/{child.name}", child, read_only=each.read_only)
