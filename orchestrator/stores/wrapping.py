"""What a wrapper of a store passes on unchanged: its registers, and what it may offer beyond the protocol.

Decides nothing. Must never know what a wrapper changes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from orchestrator.errors import Rejected
from orchestrator.stores.portable import Portability, Portable, is_on_this_machine
from orchestrator.stores.register import Registers
from orchestrator.stores.store import Store, Upload, abort, absence, is_empty, snapshot, uploads


class Wrapping:
    """The part of a wrapper that is the same for all. `name` is the store's in the user's config."""

    def __init__(self, inner: Store, name: str = "") -> None:
        self._inner = inner
        self._name = name

    @property
    def registers(self) -> Registers | None:
        return self._inner.registers

    @property
    def this_machine(self) -> bool:
        return is_on_this_machine(self._inner)

    def portable(self) -> Portable:
        """Raises Rejected if sessions cannot open the inner store."""
        if not isinstance(self._inner, Portability):
            raise Rejected(f"no session can open the store {self._name!r} itself", backend=self._name)
        return self._inner.portable()

    def is_empty(self) -> bool:
        """Asks the inner store, which may find out without a listing."""
        return is_empty(self._inner)

    def absence(self) -> str:
        """Asks the inner store."""
        return absence(self._inner)

    def uploads(self) -> tuple[Upload, ...]:
        """Under the keys that they have in the inner store."""
        return uploads(self._inner)

    def abort(self, upload: Upload) -> None:
        abort(self._inner, upload)

    def snapshot(self) -> AbstractContextManager[None]:
        return snapshot(self._inner)

    def checkup(self) -> tuple[Any, ...]:
        """What the inner store says about itself; empty if it says nothing."""
        asked = getattr(self._inner, "checkup", None)
        return () if asked is None else tuple(asked())
