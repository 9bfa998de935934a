"""A store without encryption, which may hold objects that were encrypted earlier: it says so when asked.

Decides how the two kinds of object are told apart. Must never know how objects are encrypted. Without this, a
run whose store lost `encrypt` from its config would look like a run without checkpoints, and start again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from orchestrator.errors import NoIdentity, NotFound, Rejected
from orchestrator.stores.store import Stat, check_key
from orchestrator.stores.wrapping import Wrapping

SUFFIX = ".age"  # of the key of an encrypted object


def check_plain_key(key: str) -> None:
    """Raises Rejected unless the key, and the key of the encrypted object, are keys."""
    check_key(key)
    if key.endswith(SUFFIX):
        raise Rejected(f"{key!r} is the key of an encrypted object: leave out {SUFFIX}")
    check_key(key + SUFFIX)


class UnencryptedStore(Wrapping):
    """Implements `Store`. Raises NoIdentity for an object that is there, but encrypted."""

    def put(self, key: str, source: Path, sha256: str) -> None:
        self._inner.put(key, source, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        try:
            self._inner.get(key, target, sha256, bytes_max=bytes_max)
        except NotFound:
            self._check_not_encrypted(key)
            raise

    def stat(self, key: str) -> Stat | None:
        found = self._inner.stat(key)
        if found is None:
            self._check_not_encrypted(key)
        return found

    def list(self, prefix: str) -> Iterator[Stat]:
        """Encrypted objects under the keys that they have, which are nobody's."""
        yield from self._inner.list(prefix)

    def delete(self, key: str) -> None:
        self._inner.delete(key)

    def _check_not_encrypted(self, key: str) -> None:
        found = None
        with suppress(Rejected):  # no encrypted object has a key of this length
            check_plain_key(key)
            found = self._inner.stat(key + SUFFIX)
        if found is not None:
            raise NoIdentity(
                f"{key} is encrypted, and the store {self._name!r} has no `encrypt` in the config: put "
                "it back, with its recipients and an identity",
                backend=self._name,
                operation="get",
            )
