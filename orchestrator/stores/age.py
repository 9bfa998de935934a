"""Encrypts and decrypts files in the age format, in a stream.

Decides how long an encrypted file is, which keys are accepted, and what an error of age means. Must never
know stores, nor what the files are. The format and its reasons: docs/encryption.md#the-format.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import BinaryIO, TypeAlias

import pyrage  # type: ignore[import-untyped]
from pyrage import x25519

from orchestrator.errors import InputError

Recipient: TypeAlias = x25519.Recipient
Identity: TypeAlias = x25519.Identity

PLACES = 5  # keys in every header: the recipients, repeated until there are this many
RECIPIENTS_MAX = PLACES - 1  # one place is for the key that a process without an identity draws
_VERSION = b"age-encryption.org/v1\n"
_MAC = b"\n--- "
_PLACE_BYTES = 98  # of one X25519 key, and exactly as many for the random stanza
HEADER_BYTES = len(_VERSION) + _PLACE_BYTES * (PLACES + 1) + 48
_NONCE_BYTES, _CHUNK_BYTES, _TAG_BYTES = 16, 65536, 16
_HEADER_BYTES_MAX = 8192  # of a foreign file: each key in it costs about a millisecond
_TRIES_MAX = 10_000  # one in about 120 fits
_BUFFER_BYTES = 1 << 20
_SECRET = "AGE-SECRET-KEY-1"
# What age says of a damaged file. Anything else that it says is taken for a missing key: waiting is cheaper
# than giving up a checkpoint. docs/references/age.md#errors
_DAMAGED = (
    "Header is invalid",
    "Header MAC is invalid",
    "Incomplete header",
    "Unknown age format",  # although the version is right
    "failed to fill whole buffer",
)


class Damaged(Exception):
    """The bytes are not what was encrypted."""


class NoKey(Exception):
    """None of the given identities belongs to a recipient of the file."""


@dataclass(frozen=True)
class Sealed:
    """An encrypted file: the sha256 of what is in it, and its own."""

    plain_sha256: str
    sha256: str


# --- Sizes ------------------------------------------------------------------------------------------------


def sealed_size(plain: int) -> int:
    """The size of a file of `plain` bytes once `seal` has encrypted it."""
    chunks = max(1, -(-plain // _CHUNK_BYTES))
    return HEADER_BYTES + _NONCE_BYTES + plain + chunks * _TAG_BYTES


def plain_size(sealed: int) -> int:
    """The size of what is in a file that `seal` has encrypted. For a file that was cut off, a smaller one."""
    payload = max(0, sealed - HEADER_BYTES - _NONCE_BYTES)
    chunks = max(1, -(-payload // (_CHUNK_BYTES + _TAG_BYTES)))
    return max(0, payload - chunks * _TAG_BYTES)


# --- Keys -------------------------------------------------------------------------------------------------


def recipient_problem(given: object) -> str | None:
    """Why this is no recipient that we accept. Never repeats a secret key."""
    if not isinstance(given, str):
        return "not text; valid: a public key of age, age1…"
    text = given.strip()
    if text.upper().startswith("AGE-SECRET-KEY-"):
        return "this is a secret key; write its public key (age1…), which `age-keygen -y FILE` prints"
    kind = next((kind for start, kind in _FOREIGN.items() if text.startswith(start)), None)
    if kind is not None:
        return f"{kind} keys are not accepted; valid: X25519 keys of age (age1… with 62 characters)"
    try:
        x25519.Recipient.from_str(text)
    except pyrage.RecipientError:
        return f"{text[:20]!r}… is not a public key of age; valid: age1… with 62 characters, typed whole"
    return None


_FOREIGN = {
    "ssh-": "SSH",
    "age1pq1": "post-quantum",
    "age1tagpq1": "post-quantum hardware",
    "age1tag1": "hardware",
    "age1yubikey1": "hardware",
    "age1se1": "hardware",
}


def recipients(given: Iterable[str]) -> list[Recipient]:
    """The public keys. Raises InputError unless there are between one and RECIPIENTS_MAX valid ones."""
    keys = list(dict.fromkeys(text.strip() for text in given))
    problem = next(filter(None, map(recipient_problem, keys)), None)
    if problem is not None:
        raise InputError(problem)
    if not 1 <= len(keys) <= RECIPIENTS_MAX:
        raise InputError(f"{len(keys)} recipients; valid: 1 to {RECIPIENTS_MAX}")
    return [x25519.Recipient.from_str(key) for key in keys]


def proof(key: Identity, text: str) -> str:
    """An HMAC-SHA256 of the text, which nobody can make or check without the identity."""
    secret = hashlib.sha256(b"proof\n" + str(key).encode()).digest()
    return hmac.new(secret, text.encode(), "sha256").hexdigest()


def identities(text: str) -> list[Identity]:
    """The secret keys in an identity file, as age-keygen writes it. Raises InputError, which repeats none."""
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    if text.startswith(("age-encryption.org/", "-----BEGIN AGE ENCRYPTED FILE-----")):
        raise InputError("it is itself encrypted, and nobody can type its passphrase here; decrypt it first")
    for key in keys:
        if not key.startswith(_SECRET):
            raise InputError(f"it holds a line that is no X25519 identity of age ({_SECRET}…)")
    try:
        found = [x25519.Identity.from_str(key) for key in keys]
    except pyrage.IdentityError:
        raise InputError(
            f"it holds a damaged identity; a whole one is {_SECRET}… with 74 characters"
        ) from None
    if not found:
        raise InputError(f"it holds no identity of age ({_SECRET}…)")
    return found


def new_identity() -> Identity:
    """A new secret key."""
    return x25519.Identity.generate()


# --- Files ------------------------------------------------------------------------------------------------


class _OtherLength(Exception):
    """The header has another length than HEADER_BYTES: try again."""


@dataclass
class _Source:
    """What age reads: the file as it is now, although its writer may go on. Hashes it."""

    stream: BinaryIO
    left: int
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    error: BaseException | None = None

    def read(self, size: int = -1) -> bytes:
        with _noted(self):
            data = self.stream.read(self.left if size < 0 else min(size, self.left))
            self.left -= len(data)
            self.digest.update(data)
            return data


@dataclass
class _Target:
    """What age writes to. Hashes it. `check` sees the first bytes, which are the whole header.

    age ignores errors of its last writes, so they are kept here.
    """

    stream: BinaryIO | None
    check: Callable[[bytes], None] | None = None
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    size: int = 0
    error: BaseException | None = None

    def write(self, data: bytes) -> int:
        with _noted(self):
            if self.error is not None:
                raise self.error
            if self.check is not None:
                self.check(bytes(data))
                self.check = None
            self.digest.update(data)
            if self.stream is not None:
                self.stream.write(data)
            self.size += len(data)
            return len(data)

    def flush(self) -> None:
        with _noted(self):
            if self.stream is not None:
                self.stream.flush()


@contextmanager
def _noted(end: _Source | _Target) -> Iterator[None]:
    """Keeps an error that age would hide, also Ctrl-C."""
    try:
        yield
    except BaseException as error:
        end.error = end.error or error
        raise


def seal(source: Path, target: Path, keys: Sequence[Recipient]) -> Sealed:
    """Encrypts a file for the keys into a new file. Raises plain OSError for either file.

    age adds a random stanza to each header, of random length. So this begins again until the header has
    HEADER_BYTES, which is known after the first write.
    """
    places = list(islice(cycle(keys), PLACES))
    with source.open("rb", buffering=0) as stream, target.open("wb", buffering=_BUFFER_BYTES) as out:
        for _ in range(_TRIES_MAX):
            stream.seek(0)
            read = _Source(stream, os.fstat(stream.fileno()).st_size)
            written = _Target(out, check=_check_header)
            failed: Exception | None = None
            try:
                pyrage.encrypt_io(read, written, places)
            except (pyrage.EncryptError, OSError) as error:
                failed = error
            if isinstance(written.error, _OtherLength):
                continue
            for fault in (read.error, written.error, failed):
                if fault is not None:
                    raise fault
            out.flush()
            assert written.size == sealed_size(read.stream.tell()), "the encrypted file has another size"
            return Sealed(read.digest.hexdigest(), written.digest.hexdigest())
    raise AssertionError("age never writes a header of the right length")


def _check_header(data: bytes) -> None:
    mac = data.find(_MAC)
    if mac < 0 or data.find(b"\n", mac + 1) + 1 != HEADER_BYTES:
        raise _OtherLength


def unseal(source: Path, out: BinaryIO | None, keys: Sequence[Identity]) -> str:
    """Decrypts a file into `out` (None: nowhere). Returns the sha256 of what was in it.

    Raises Damaged or NoKey, and plain OSError for either file. What is in `out` by then is worth
    nothing.
    """
    with source.open("rb", buffering=_BUFFER_BYTES) as stream:
        start = stream.read(_HEADER_BYTES_MAX)
        if not start.startswith(_VERSION):
            raise Damaged("it is not an age file")
        if _MAC not in start:
            raise Damaged("its header does not end")
        stream.seek(0)
        read = _Source(stream, os.fstat(stream.fileno()).st_size)
        written = _Target(out)
        try:
            pyrage.decrypt_io(read, written, list(keys))
        except (pyrage.DecryptError, OSError) as error:
            for fault in (read.error, written.error):
                if fault is not None:
                    raise fault from None
            raise _meaning(error) from error
    for fault in (read.error, written.error):
        if fault is not None:
            raise fault
    return written.digest.hexdigest()


def _meaning(error: Exception) -> Exception:
    """age reports damage behind the header as an OSError without a number."""
    if isinstance(error, OSError) or str(error).startswith(_DAMAGED):
        return Damaged("its encrypted bytes are damaged or cut off")
    return NoKey(str(error))
