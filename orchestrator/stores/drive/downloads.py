"""Downloads in ranges, which go on where the connection broke as long as each try brings some bytes.

Decides nothing about whether the bytes are right: the store compares their sha256.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from googleapiclient.errors import HttpError  # type: ignore[import-untyped]

from orchestrator.errors import Transient
from orchestrator.stores.drive.account import Account

CHUNK_BYTES = 8 * 1024 * 1024  # one is in memory at a time


def reader(account: Account, id: str, size: int, chunk: int = CHUNK_BYTES) -> Callable[[memoryview], int]:
    """Reads the file's bytes in order: `read(buffer)` returns how many it wrote, 0 at the end."""
    offset, held = 0, memoryview(b"")

    def read(buffer: memoryview) -> int:
        nonlocal offset, held
        if not held and offset < size:
            held = memoryview(_advanced(account, id, size, offset, min(chunk, size - offset)))
            offset += len(held)
        count = min(len(buffer), len(held))
        buffer[:count] = held[:count]
        held = held[count:]
        return count

    return read


def whole(account: Account, id: str, size: int) -> bytes:
    """A small file at once."""
    return _part(account, id, size, 0, size) if size else b""


def _advanced(account: Account, id: str, size: int, offset: int, length: int) -> bytes:
    """A part. Where the connection breaks it is asked for once more, at once: the part before did come."""
    try:
        return _part(account, id, size, offset, length)
    except Transient:
        if not offset:
            raise
    return _part(account, id, size, offset, length)


def _part(account: Account, id: str, size: int, offset: int, length: int) -> bytes:
    def get(http: Any, files: Any) -> bytes:
        uri = files.get_media(fileId=id, supportsAllDrives=True).uri
        headers = {"range": f"bytes={offset}-{offset + length - 1}", "accept-encoding": "identity"}
        answer, content = http.request(uri, "GET", headers=headers)
        if answer.status == 206:
            first = str(answer.get("content-range", "")).removeprefix("bytes ").partition("-")[0]
            if first != str(offset):
                raise ValueError("another range")
            return bytes(content[:length])
        if answer.status == 200 and len(content) == size:  # it ignores ranges
            return bytes(content[offset : offset + length])
        if answer.status == 200:
            raise ValueError("another file, or a page")
        raise HttpError(answer, content)

    found = account.run("get", get)
    if not found:
        raise account.strange("get")
    return found
