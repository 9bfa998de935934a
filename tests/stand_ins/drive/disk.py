"""The local Drive's files and unfinished uploads: what exists, and what a listing shows of it.

Decides ids, etags, quota and visibility. Must never know HTTP. Its headings are those of
docs/references/drive.md.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass, field
from typing import Any

from tests.stand_ins.drive.faults import REFUSALS, Refusal

FOLDER = "application/vnd.google-apps.folder"
_QUERY = re.compile(r"'([\w-]+)' in parents and trashed=false")
_WRITABLE = ("title", "mimeType", "parents", "description")


@dataclass
class File:
    """One file or folder; `version` counts its changes."""

    id: str
    fields: dict[str, Any]
    data: bytes = b""
    properties: dict[str, str] = field(default_factory=dict)
    version: int = 1
    is_trashed: bool = False

    @property
    def is_folder(self) -> bool:
        return self.fields.get("mimeType") == FOLDER

    @property
    def etag(self) -> str:
        return f'"{self.id[:6]}/{self.version}"'

    def shown(self, drive: str | None) -> dict[str, Any]:
        """The resource as Drive v2 shows it."""
        made = {
            "kind": "drive#file", "id": self.id, "etag": self.etag, **self.fields,
            "labels": {"trashed": self.is_trashed},
            "properties": [
                {"key": key, "value": value, "visibility": "PUBLIC"} for key, value in self.properties.items()
            ],
        }  # fmt: skip
        if drive is not None:
            made["driveId"] = drive
        if not self.is_folder:
            made["fileSize"] = str(len(self.data))  # a string in v2
            made["md5Checksum"] = hashlib.md5(self.data, usedforsecurity=False).hexdigest()
        return made


@dataclass
class Session:
    """An upload that was begun; `made` once it is committed."""

    body: dict[str, Any]
    size: int
    received: bytearray = field(default_factory=bytearray)
    made: File | None = None


class Disk:
    """All files of the account. Its caller holds the lock."""

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.sessions: dict[str, Session] = {}
        self.quota_bytes = 15 * 2**30
        self.shared_drive: str | None = None
        self.ignores_conditions = False
        self.keeps_etags = False  # whatever changes
        self.trash_only = False  # a shared drive's Content manager may not delete
        self.page = 1000
        self._numbers = itertools.count(1)
        self._generated: set[str] = set()
        self._frozen: list[dict[str, Any]] | None = None
        self.folder = self.insert({"title": "orchestrator", "mimeType": FOLDER}, b"").id

    def generate_ids(self, count: int) -> list[str]:
        made = [f"1{hashlib.sha256(b'%d' % next(self._numbers)).hexdigest()[:32]}" for _ in range(count)]
        self._generated.update(made)
        return made

    def insert(self, body: dict[str, Any], data: bytes) -> File:
        """One more file: two of one title are two files (#duplicates)."""
        id = body.get("id") or self.generate_ids(1)[0]
        if id not in self._generated:
            raise Refusal(400, "invalid", "The provided file ID is not usable.")
        if id in self.files:
            raise Refusal(409, "fileIdInUse", "A file already exists with the provided ID.")  # #ids
        self._check_parents(body)
        self.check_room(len(data))
        made = File(id, {name: body[name] for name in _WRITABLE if name in body}, data)
        made.properties = _properties(body)
        self.files[id] = made
        for parent in body.get("parents", ()):
            self.files[parent["id"]].version += 1  # whether Drive does so is not known: the harder case
        return made

    def check_room(self, size: int) -> None:
        used = sum(len(file.data) for file in self.files.values())  # the trash counts (#quota)
        if used + size > self.quota_bytes:
            raise Refusal(*REFUSALS["quota"])

    def _check_parents(self, body: dict[str, Any]) -> None:
        for parent in body.get("parents", ()):
            if parent["id"] not in self.files:
                raise Refusal(404, "notFound", f"File not found: {parent['id']}")

    def file(self, id: str) -> File:
        """By id, which is never late (#consistency)."""
        if id not in self.files:
            raise Refusal(404, "notFound", f"File not found: {id}")
        return self.files[id]

    def change(self, id: str, condition: str | None) -> File:
        """The file, about to change: 412 if the condition does not hold (#conditions)."""
        found = self.file(id)
        if condition is not None and condition != found.etag and not self.ignores_conditions:
            raise Refusal(412, "conditionNotMet", "Precondition Failed")
        found.version += not self.keeps_etags
        return found

    def patch(self, id: str, body: dict[str, Any], condition: str | None) -> File:
        found = self.change(id, condition)
        found.fields |= {name: body[name] for name in _WRITABLE if name in body}
        found.properties |= _properties(body)
        found.is_trashed = body.get("labels", {}).get("trashed", found.is_trashed)
        return found

    def delete(self, id: str) -> None:
        self.file(id)
        if self.trash_only:
            raise Refusal(*REFUSALS["denied"])
        del self.files[id]

    def freeze_listing(self) -> None:
        """From now on a listing shows what was there now: new files are late, deleted ones stay."""
        self._frozen = self._visible()

    def thaw_listing(self) -> None:
        self._frozen = None

    def listed(self, query: str, token: str, count: int) -> dict[str, Any]:
        """A search by name finds nothing yet: that index is the late one (#consistency)."""
        match = _QUERY.fullmatch(query)
        if match is None and "title" in query:
            return {"items": []}
        if match is None:
            raise Refusal(*REFUSALS["bad"])
        items = self._visible() if self._frozen is None else self._frozen
        found = [item for item in items if match.group(1) in [each["id"] for each in item.get("parents", ())]]
        start, count = int(token or 0), min(count, self.page)
        page: dict[str, Any] = {"items": found[start : start + count]}
        if start + count < len(found):
            page["nextPageToken"] = str(start + count)
        return page

    def _visible(self) -> list[dict[str, Any]]:
        return [file.shown(self.shared_drive) for file in self.files.values() if not self._in_trash(file)]

    def _in_trash(self, file: File) -> bool:
        above = [self.files.get(each["id"]) for each in file.fields.get("parents", ())]
        return file.is_trashed or any(parent is not None and parent.is_trashed for parent in above)


def _properties(body: dict[str, Any]) -> dict[str, str]:
    """Key and value have 124 bytes together (#properties)."""
    found = {each["key"]: each["value"] for each in body.get("properties", ())}
    if any(len(key.encode()) + len(value.encode()) > 124 for key, value in found.items()):
        raise Refusal(400, "propertyTooLarge")
    return found
