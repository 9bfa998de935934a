"""A store that encrypts: the objects of another store become age files, `KEY.age`. Registers stay plain.

Decides what an object is called and how big it is once it is encrypted, and what happens to objects that were
there before. Must never know what the objects are for, nor which store it wraps. Hashes are always those of
the plain bytes. docs/encryption.md is for people; docs/decisions/018 says why it is done like this.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BufferedWriter, FileIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from orchestrator.errors import (
    CorruptCheckpoint,
    InputError,
    NoIdentity,
    NotFound,
    Rejected,
    SourceChanged,
    TooLarge,
)
from orchestrator.files import draft_file, draft_folder
from orchestrator.files.hashing import digest_file
from orchestrator.stores import age
from orchestrator.stores.portable import Portable
from orchestrator.stores.store import SHARED, Stat, Store, check_prefix
from orchestrator.stores.unencrypted import SUFFIX, check_plain_key
from orchestrator.stores.wrapping import Wrapping

PACKAGES = "pyrage"  # the list of packages that a session needs for this
_BUFFER_BYTES = 1 << 20
_READINGS_MAX = 3  # of an object that seems to be damaged: the transport may have done it
_LANDINGS_MAX = 10  # of one object, if others keep putting and deleting it
_NO_IDENTITY = "the store has no identity here: put `identity: file:PATH` beside its `recipients`"
_OTHER_IDENTITY = (
    "the identity belongs to none of the recipients: add the right one to the identity file, on its own line"
)


@dataclass(frozen=True)
class _Found:
    """An object as the inner store has it. `size` is that of its plain bytes."""

    key: str
    size: int


class EncryptedStore(Wrapping):
    """Implements `Store`. Encrypts for `recipients`, which are public keys (age1…).

    `identity` returns the text of an identity file, or raises InputError. It is called when something is
    decrypted for the first time. Without one, this still reads back what it has put itself, and nothing else:
    it draws a key of its own, which ends with the process.

    Raises NoIdentity for an object that no key at hand decrypts. `name` is the store's in the user's config.
    """

    def __init__(
        self,
        inner: Store,
        recipients: Iterable[str],
        identity: Callable[[], str] | None = None,
        *,
        name: str = "",
    ) -> None:
        super().__init__(inner, name)
        self._given = tuple(recipients)
        self._public = age.recipients(self._given)
        self._identity = identity
        self._lock = threading.Lock()
        self._keys: Sequence[age.Identity] | None = None
        if identity is None:
            own = age.new_identity()
            self._keys = [own]
            self._public.append(own.to_public())

    def put(self, key: str, source: Path, sha256: str) -> None:
        """Without an identity, an object that this process has not put is taken for the same if it has the
        same size: a session's keys name their bytes, or have one writer."""
        check_plain_key(key)
        with source.open("rb"):  # a missing source is the caller's fault, whatever is in the store
            pass
        there = self._find(key)
        if there is not None and self._holds(key, there.key, source, sha256):
            return
        with TemporaryDirectory(prefix="orchestrator-") as folder:
            path = Path(folder) / "sealed"
            sealed = age.seal(source, path, self._public)
            self._check_source(key, sealed.plain_sha256, sha256)
            for landing in range(_LANDINGS_MAX):
                try:
                    self._inner.put(key + SUFFIX, path, sealed.sha256)
                    return
                except Rejected:  # another writer's copy of the same bytes is encrypted differently
                    if self._holds(key, key + SUFFIX, source, sha256):
                        return
                    if landing == _LANDINGS_MAX - 1:
                        raise

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        check_plain_key(key)
        sealed_max = None if bytes_max is None else age.sealed_size(bytes_max)
        with draft_folder(target.parent, mode=0o700) as folder:
            path = folder / "sealed"
            try:
                self._inner.get(key + SUFFIX, path, bytes_max=sealed_max)
            except TooLarge as error:
                raise TooLarge(key, error.reason) from error
            except NotFound:  # it was put before the store was encrypted
                self._inner.get(key, target, sha256, bytes_max=bytes_max)
                return
            with draft_file(target.parent, SHARED) as draft:
                with BufferedWriter(FileIO(draft.fd, "wb", closefd=False), _BUFFER_BYTES) as out:
                    found = self._unseal(key, path, out)
                if sha256 is not None and found != sha256:
                    raise CorruptCheckpoint(
                        key, f"its bytes have the sha256 {found[:12]}…, not {sha256[:12]}…"
                    )
                draft.replace(target)

    def stat(self, key: str) -> Stat | None:
        check_plain_key(key)
        found = self._find(key)
        return None if found is None else Stat(key, found.size)

    def list(self, prefix: str) -> Iterator[Stat]:
        check_prefix(prefix)
        found: dict[str, Stat] = {}
        for stat in self._inner.list(prefix):
            key = stat.key.removesuffix(SUFFIX)
            if key != stat.key:
                found[key] = Stat(key, age.plain_size(stat.size))
            else:
                found.setdefault(key, stat)
        yield from (found[key] for key in sorted(found) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        check_plain_key(key)
        self._inner.delete(key)  # first the one that nobody sees as long as the other is there
        self._inner.delete(key + SUFFIX)

    def portable(self) -> Portable:
        """A session gets the recipients, never the identity."""
        given = super().portable()
        packages = given.packages if PACKAGES in given.packages else (*given.packages, PACKAGES)
        return replace(given, recipients=self._given, packages=packages)

    def new_key(self) -> str:
        return str(age.new_identity())

    def proofs(self, text: str) -> tuple[str, ...]:
        return tuple(age.proof(key, text) for key in self._read_keys())

    def only_for(self, key: str) -> EncryptedStore:
        public = [str(each.to_public()) for each in age.identities(key)]
        return EncryptedStore(self._inner, public, lambda: key, name=self._name)

    # --- What is there ---------------------------------------------------------------------------------

    def _find(self, key: str) -> _Found | None:
        sealed = self._inner.stat(key + SUFFIX)
        if sealed is not None:
            return _Found(sealed.key, age.plain_size(sealed.size))
        plain = self._inner.stat(key)
        return None if plain is None else _Found(key, plain.size)

    def _holds(self, key: str, there: str, source: Path, sha256: str) -> bool:
        """Whether the inner store has exactly these bytes at `there`. False if it has nothing there. Raises
        Rejected if it has others, or if they are damaged."""
        self._check_source(key, digest_file(source), sha256)
        size = source.stat().st_size
        with TemporaryDirectory(prefix="orchestrator-") as folder:
            path = Path(folder) / "object"
            for _ in range(_READINGS_MAX):
                try:
                    self._inner.get(there, path, bytes_max=size if there == key else age.sealed_size(size))
                except NotFound:
                    return False
                except TooLarge:
                    break
                with suppress(CorruptCheckpoint):
                    if self._is_same(key, path, there != key, source, sha256):
                        return True
        raise self._rejected(key, "the key has other bytes, and objects never change")

    def _is_same(self, key: str, path: Path, sealed: bool, source: Path, sha256: str) -> bool:
        size = path.stat().st_size
        if (age.plain_size(size) if sealed else size) != source.stat().st_size:
            return False
        try:
            return (self._unseal(key, path, None) if sealed else digest_file(path)) == sha256
        except NoIdentity:  # the size must do
            return True

    def _check_source(self, key: str, found: str, sha256: str) -> None:
        if found != sha256:
            message = f"the source has the sha256 {found[:12]}…, not {sha256[:12]}…; nothing was stored"
            raise SourceChanged(f"put {key}: {message}", backend=self._name, operation="put")

    def _rejected(self, key: str, message: str) -> Rejected:
        return Rejected(f"put {key}: {message}", backend=self._name, operation="put")

    # --- Decrypting ------------------------------------------------------------------------------------

    def key_trouble(self) -> str:
        """Why nothing that is put now could be read back later; empty if it could."""
        if self._identity is None:
            return _NO_IDENTITY
        try:
            keys = self._read_keys()
        except InputError as error:
            return _unusable(error)
        mine = {str(key.to_public()) for key in keys}
        return "" if mine & {key.strip() for key in self._given} else _OTHER_IDENTITY

    def _read_keys(self) -> Sequence[age.Identity]:
        """Raises InputError if the identity cannot be used; then it is asked for again the next time."""
        with self._lock:
            if self._keys is None:
                assert self._identity is not None
                self._keys = age.identities(self._identity())
            return self._keys

    def _unseal(self, key: str, path: Path, out: BinaryIO | None) -> str:
        try:
            return age.unseal(path, out, self._read_keys())
        except age.Damaged as error:
            raise CorruptCheckpoint(key, str(error)) from error
        except age.NoKey:
            reason = _NO_IDENTITY if self._identity is None else _OTHER_IDENTITY
        except InputError as error:
            reason = _unusable(error)
        raise NoIdentity(f"{key} is encrypted: {reason}", backend=self._name, operation="get")


def _unusable(error: InputError) -> str:
    return f"the identity of the store cannot be used: {error}"
