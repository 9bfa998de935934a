"""Age keys for tests, drawn anew in each process, and a store that encrypts with them."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyrage import x25519  # type: ignore[import-untyped]

from orchestrator.stores.encrypted import EncryptedStore
from orchestrator.stores.store import Store


@dataclass(frozen=True)
class Key:
    """A key pair; `text` is what age-keygen writes into a file."""

    identity: x25519.Identity = field(default_factory=x25519.Identity.generate)

    @property
    def public(self) -> str:
        return str(self.identity.to_public())

    @property
    def text(self) -> str:
        return f"# created: 2026-11-23T12:00:00Z\n# public key: {self.public}\n{self.identity}\n"


ME, RECOVERY, STRANGER = Key(), Key(), Key()


def encrypted(inner: Store, *, to: tuple[Key, ...] = (ME, RECOVERY), by: Key = ME) -> EncryptedStore:
    """The store encrypted for these keys, with the identity of one of them."""
    return EncryptedStore(inner, [key.public for key in to], lambda: by.text, name="vault")
