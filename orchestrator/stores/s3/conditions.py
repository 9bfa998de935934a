"""Whether a service honours conditional writes: as it documents, or tried out once on an object of our own.

Decides what is believed of a service that documents nothing: only what it just did. Some refuse the headers,
and some ignore them. The second is the dangerous one: then a value that somebody else wrote would be
overwritten without a word.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore import exceptions
from obstore.store import S3Store as Connection

from orchestrator.stores.s3.faults import answer_of, is_refusal
from orchestrator.stores.s3.pacing import paced

if TYPE_CHECKING:
    from obstore import PutMode

PROBES = ".registers/.probe"  # no register's key begins with a dot
_STALE = '"00000000000000000000000000000000"'
_REFUSED = (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError)


@dataclass(frozen=True)
class Conditions:
    """`creates`: an existing object is not overwritten if the writer says so. `swaps`: nor is one that has
    changed since it was read. `why`: what the service did instead; empty if it does both."""

    creates: bool
    swaps: bool
    why: str = ""


_HONOURED = Conditions(True, True)
# What services say about conditional writes: docs/references/s3.md#conditional-writes. Others are tried.
_DOCUMENTED = {
    ".amazonaws.com": _HONOURED,
    ".r2.cloudflarestorage.com": _HONOURED,
    ".s3.hf.co": _HONOURED,
    ".backblazeb2.com": Conditions(False, False, "Backblaze B2 refuses conditional writes"),
}


def documented(endpoint: str) -> Conditions | None:
    """What the service at this address documents; None if it must be tried."""
    host = f".{urlsplit(endpoint).hostname}"
    return next((found for suffix, found in _DOCUMENTED.items() if host.endswith(suffix)), None)


def tried(connection: Connection) -> Conditions:
    """Writes, overwrites and deletes one small object. Raises obstore's errors."""
    key = f"{PROBES}-{secrets.token_hex(8)}"
    try:
        return _tried(connection, key)
    finally:
        with suppress(exceptions.BaseError, FileNotFoundError):  # a few bytes stay; the error above counts
            paced(lambda: obstore.delete(connection, key))


def _tried(connection: Connection, key: str) -> Conditions:
    try:
        version = paced(lambda: obstore.put(connection, key, b"1", mode="create", use_multipart=False))[
            "e_tag"
        ]
    except exceptions.BaseError as error:
        if not is_refusal(error):
            raise
        return Conditions(False, False, "the service refuses conditional writes")
    if _goes_through(connection, key, None):
        return Conditions(False, False, "the service ignores If-None-Match: it overwrote an object of ours")
    if version is None or _goes_through(connection, key, _STALE):
        return Conditions(True, False, "the service ignores If-Match: it overwrote a newer value")
    if not _goes_through(connection, key, version):
        return Conditions(True, False, "the service refuses If-Match even with the right version")
    return Conditions(True, True)


def _goes_through(connection: Connection, key: str, version: str | None) -> bool:
    mode: PutMode = "create" if version is None else {"e_tag": version}
    try:
        paced(lambda: obstore.put(connection, key, b"2", mode=mode, use_multipart=False))
    except _REFUSED:
        return False
    except exceptions.BaseError as error:
        if answer_of(error).status != 409 and not is_refusal(error):
            raise
        return False
    return True
