"""Registers in Drive: one small file each, changed by its etag. A directory file maps keys to ids.

Decides how a register is created once (docs/stores-drive.md#registers): Drive has no such request, so its
file counts only after the directory was changed by compare-and-swap. The folder names the directory, in a
property that is set the same way. No step relies on a listing. Must never know what the values mean.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from googleapiclient.http import MediaIoBaseUpload  # type: ignore[import-untyped]

from orchestrator.core import bounds
from orchestrator.errors import BackendError, Conflict, NotFound, Transient
from orchestrator.stores.drive import downloads, faults
from orchestrator.stores.drive.account import rejected
from orchestrator.stores.drive.copies import BINARY, MARK, Copies, is_trashed, properties
from orchestrator.stores.register import Held, check_value
from orchestrator.stores.store import check_key, check_prefix

_FIELDS = "id,etag,fileSize,md5Checksum,labels/trashed"
_ANCHOR = "orchestrator-registers"  # the folder's property with the directory's id
_DIRECTORY_BYTES_MAX = 16 * bounds.MIB
_LOOKS = 20  # at a value that changes while it is read
_REMEMBERED_MAX = 256  # values
_TRIES = 30  # against others who change the directory


@dataclass(frozen=True)
class _Directory:
    """What the directory said, and the version to change it by."""

    id: str
    version: str
    ids: dict[str, str]


class DriveRegisters:
    """Implements `Registers`; may be shared by threads."""

    def __init__(self, copies: Copies) -> None:
        self._account = copies.account
        self._copies = copies
        self._ids: dict[str, str] = {}  # as last read; a deleted file is found missing
        self._values: dict[str, bytes] = {}  # by id, as last read
        self._directory_id = ""
        self._changing = threading.Lock()
        self._remembering = threading.Lock()
        self._is_proved = False

    def read(self, key: str) -> Held | None:
        check_key(key)
        known = self._ids.get(key)
        held = self._held(known, bounds.REGISTER_BYTES_MAX) if known else None
        if held is None:
            id = self._look_up(key)
            held = self._held(id, bounds.REGISTER_BYTES_MAX) if id else None
        return held

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        check_key(key)
        check_value(value)
        self._prove()
        if version is None:
            return self._create(key, value)
        id = self._ids.get(key) or self._look_up(key)
        if id is None:
            raise self._conflict(key)
        try:
            return self._update(id, value, version)
        except NotFound:
            self._ids.pop(key, None)
            raise self._conflict(key) from None
        except Conflict:
            raise self._conflict(key) from None

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        directory = self._read_directory()
        yield from sorted(key for key in (directory.ids if directory else ()) if key.startswith(prefix))

    def delete(self, key: str) -> None:
        """The file goes first. A directory that still names it does no harm."""
        check_key(key)
        id = self._look_up(key)
        if id is None:
            return
        self._delete(id)
        self._ids.pop(key, None)
        with self._changing:
            for _ in range(_TRIES):
                directory = self._read_directory()
                if directory is None or directory.ids.get(key) != id:
                    return
                with suppress(Conflict):
                    left = {each: value for each, value in directory.ids.items() if each != key}
                    self._write_directory(directory, left)
                    return

    # --- One register ---------------------------------------------------------------------------------------

    def _held(self, id: str, size_max: int) -> Held | None:
        """The value with its version: one request if the value is the same as before, else two. The digest
        tells whether both met the same value."""
        for _ in range(_LOOKS):
            try:
                item = self._account.call(
                    "read", lambda files: files.get(fileId=id, fields=_FIELDS, supportsAllDrives=True)
                )
                if is_trashed(item):
                    return None
                size = int(item["fileSize"])
                if size > size_max:
                    message = f"the register's file {id} is too large ({size:,} bytes)"
                    raise rejected(self._account, "read", message)
                value = self._values.get(id)
                if value is None or _md5(value) != item["md5Checksum"]:
                    value = downloads.whole(self._account, id, size)
                if _md5(value) == item["md5Checksum"]:
                    self._remember(id, value)
                    return Held(value, str(item["etag"]))
            except NotFound:
                return None
            except (KeyError, ValueError, TypeError):
                raise self._account.strange("read") from None
        raise Transient(
            "Drive: the register changes as it is read", backend=self._account.name, operation="read"
        )

    def _remember(self, id: str, value: bytes) -> None:
        with self._remembering:
            self._values[id] = value
            while len(self._values) > _REMEMBERED_MAX:
                del self._values[next(iter(self._values))]

    def _update(self, id: str, value: bytes, version: str) -> str:
        """Raises Conflict if the file has another version, NotFound if it is gone or in the trash."""

        def request(files: Any) -> Any:
            made = files.update(fileId=id, media_body=_media(value), fields=_FIELDS, supportsAllDrives=True)
            made.headers["If-Match"] = version
            return made

        return self._version(self._account.call("swap", request, once=True), value)

    def _insert(self, id: str, title: str, mark: str, value: bytes) -> str:
        body = {
            "id": id,
            "title": title,
            "mimeType": BINARY,
            "parents": [{"id": self._copies.folder}],
            "properties": properties(**{MARK: mark}),
        }

        def request(files: Any) -> Any:
            return files.insert(body=body, media_body=_media(value), fields=_FIELDS, supportsAllDrives=True)

        try:
            return self._version(self._account.call("swap", request), value)
        except faults.Exists:  # sent twice, because an answer was lost
            held = self._held(id, _DIRECTORY_BYTES_MAX)
            if held is None or held.value != value:
                raise self._account.strange("swap") from None
            return held.version

    def _version(self, item: Any, value: bytes) -> str:
        if not isinstance(item, dict) or not isinstance(item.get("etag"), str) or is_trashed(item):
            raise self._account.strange("swap")
        if item.get("md5Checksum") != _md5(value):
            raise Transient("Drive: the value arrived damaged", backend=self._account.name, operation="swap")
        return str(item["etag"])

    def _create(self, key: str, value: bytes) -> str:
        """Inserts the file, then makes it count. If somebody else was first, the file is deleted again."""
        made: tuple[str, str] | None = None
        with self._changing:
            for _ in range(_TRIES):
                directory = self._read_directory() or self._new_directory()
                id = directory.ids.get(key)
                if id is not None and id != (made or ("",))[0] and self._held(id, bounds.REGISTER_BYTES_MAX):
                    if made is not None:
                        self._delete(made[0])
                    raise self._conflict(key)
                if made is None:
                    new = self._account.new_id()
                    made = new, self._insert(new, key, "register", value)
                with suppress(Conflict):
                    self._write_directory(directory, {**directory.ids, key: made[0]})
                    self._ids[key] = made[0]
                    return made[1]
        raise Transient("others keep creating registers", backend=self._account.name, operation="swap")

    def _delete(self, id: str) -> None:
        self._copies.delete(id)

    def _conflict(self, key: str) -> Conflict:
        return Conflict(f"{key} has changed", backend=self._account.name, operation="swap")

    # --- The directory --------------------------------------------------------------------------------------

    def _look_up(self, key: str) -> str | None:
        directory = self._read_directory()
        self._ids = dict(directory.ids) if directory else {}
        return self._ids.get(key)

    def _read_directory(self) -> _Directory | None:
        if not self._directory_id:
            self._directory_id = self._anchored(self._copies.check_folder())
        if not self._directory_id:
            return None
        held = self._held(self._directory_id, _DIRECTORY_BYTES_MAX)
        try:
            if held is None:
                raise ValueError
            ids = json.loads(held.value)["ids"]
            if not all(isinstance(each, str) for pair in ids.items() for each in pair):
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            message = (
                f"the directory of registers (file {self._directory_id} of the folder) is damaged or in the "
                "trash: restore it, or an older version of it, in Drive"
            )
            raise rejected(self._account, "read", message) from None
        return _Directory(self._directory_id, held.version, ids)

    def _write_directory(self, old: _Directory, ids: dict[str, str]) -> None:
        """Raises Conflict if it changed since it was read."""
        data = _encoded(ids)
        if len(data) > _DIRECTORY_BYTES_MAX:
            raise rejected(
                self._account, "swap", "the folder has too many registers: see `orchestrator prune`"
            )
        self._update(old.id, data, old.version)

    def _new_directory(self) -> _Directory:
        """Inserts one and names it in the folder, by the folder's etag: one of several writers succeeds."""
        new, ids = self._account.new_id(), dict[str, str]()
        version = self._insert(new, ".registers", "directory", _encoded(ids))
        for _ in range(_TRIES):
            folder = self._copies.check_folder()
            if anchored := self._anchored(folder):
                self._delete(new)
                self._directory_id = anchored
                found = self._read_directory()
                assert found is not None
                return found
            with suppress(Conflict):
                self._patch(self._copies.folder, {_ANCHOR: new}, str(folder.get("etag", "")))
                self._directory_id = new
                return _Directory(new, version, ids)
        raise Transient("the folder keeps changing", backend=self._account.name, operation="swap")

    def _anchored(self, folder: dict[str, Any]) -> str:
        found = folder.get("properties")
        for each in found if isinstance(found, list) else []:
            if isinstance(each, dict) and each.get("key") == _ANCHOR:
                return str(each.get("value", ""))
        return ""

    def _patch(self, id: str, given: dict[str, str], version: str) -> None:
        def request(files: Any) -> Any:
            body = {"properties": properties(**given)}
            made = files.patch(fileId=id, body=body, fields="id,etag", supportsAllDrives=True)
            made.headers["If-Match"] = version
            return made

        answer = self._account.call("swap", request, once=True)
        if not isinstance(answer, dict) or answer.get("id") != id:
            raise self._account.strange("swap")

    # --- Whether Drive honours If-Match ---------------------------------------------------------------------

    def _prove(self) -> None:
        """Once per process, on a file made for it: a change with an old version must be refused. Raises
        Rejected if it is not.

        If-Match is not in Drive's documentation (docs/references/drive.md#conditions), and a server that
        ignores it would give one claim to two owners.
        """
        if self._is_proved:
            return
        id = self._account.new_id()
        old = self._insert(id, ".probe", "probe", b"old")
        try:
            self._update(id, b"new", old)
            for attempt in (lambda: self._update(id, b"newer", old), lambda: self._patch(id, {}, old)):
                try:
                    attempt()
                except Conflict:
                    continue
                message = "this Drive ignores If-Match, so registers in it are not safe; use another store"
                raise rejected(self._account, "swap", message)
        except Conflict:  # our own first change: an answer was lost, or its etags change by themselves
            raise self._account.strange("swap") from None
        finally:
            with suppress(BackendError):
                self._delete(id)
        self._is_proved = True


def _media(value: bytes) -> MediaIoBaseUpload:
    """Sent with the request itself: a resumable upload would check the version before it, not with it."""
    return MediaIoBaseUpload(io.BytesIO(value), BINARY, resumable=False)


def _md5(value: bytes) -> str:
    return hashlib.md5(value, usedforsecurity=False).hexdigest()


def _encoded(ids: dict[str, str]) -> bytes:
    return json.dumps({"ids": ids}, sort_keys=True, indent=1).encode()
