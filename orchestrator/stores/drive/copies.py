"""Which files of the folder hold a key. A folder of Drive may have several of one title: copies.

Decides what counts as ours, and what to believe when a listing is late: files are looked up by id, a listing
only finds new ones. Never searches by name, because that index lags (docs/references/drive.md#consistency).
Must never know what the objects are.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import AccessDenied, NotFound, Rejected, Transient
from orchestrator.stores.drive.account import Account, rejected
from orchestrator.stores.store import check_key

MARK = "orchestrator"  # the property that says what a file of ours is
OBJECT = "object"
FOLDER_TYPE = "application/vnd.google-apps.folder"
BINARY = "application/octet-stream"
FIELDS = "id,title,fileSize,md5Checksum,parents/id,labels/trashed,properties(key,value)"
_PAGE, _PAGES_MAX = 1000, 1000
_GONE_MAX = 50_000  # ids of deleted files that a late listing may still show
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, order=True)
class Copy:
    """One file. `sha256` is what its writer declared, `md5` what Drive computed."""

    id: str
    key: str
    size: int
    md5: str
    sha256: str


def properties(**given: str) -> list[dict[str, str]]:
    """As Drive wants them. Public ones are visible to another OAuth app of the same user as well."""
    return [{"key": key, "value": value, "visibility": "PUBLIC"} for key, value in given.items()]


def property_of(item: Any, name: str) -> str:
    """The value of a file's property; empty if it has none, or an odd one."""
    found = item.get("properties") if isinstance(item, dict) else None
    for each in found if isinstance(found, list) else []:
        if isinstance(each, dict) and each.get("key") == name and isinstance(each.get("value"), str):
            return str(each["value"])
    return ""


def is_trashed(item: Any) -> bool:
    labels = item.get("labels") if isinstance(item, dict) else None
    return isinstance(labels, dict) and bool(labels.get("trashed"))


def copy_of(item: Any) -> Copy | None:
    """The copy that an item of Drive describes. None if it is trashed, or not an object of ours."""
    if property_of(item, MARK) != OBJECT or is_trashed(item):
        return None
    try:
        found = Copy(
            str(item["id"]), str(item["title"]), int(item["fileSize"]), str(item["md5Checksum"]),
            property_of(item, "sha256"),
        )  # fmt: skip
        check_key(found.key)
    except (KeyError, ValueError, TypeError, Rejected):
        return None
    return found if _SHA256.fullmatch(found.sha256) and found.size >= 0 else None


@dataclass
class _Snapshot:
    """The ids that its listing showed; None before it was needed."""

    seen: set[str] | None = None


class _Snapshots(threading.local):
    """The innermost snapshot of each thread."""

    now: _Snapshot | None = None


class Copies:
    """The objects of one folder. May be shared by threads.

    Remembers the ids that this process wrote or saw. So an object of ours is found while the listing lags,
    and a deleted one stays deleted.
    """

    def __init__(self, account: Account, folder: str) -> None:
        self.account = account
        self.folder = folder
        self._lock = threading.Lock()
        self._known: dict[str, Copy] = {}
        self._of_key: dict[str, set[str]] = {}
        self._gone: dict[str, None] = {}
        self._where: dict[str, Any] | None = None
        self._snapshots = _Snapshots()

    def find(self, key: str, *, listing: bool = False) -> list[Copy]:
        """The copies that exist now, in the order of their ids. `listing`: also those that others wrote since
        the last listing, though one is known."""
        found = [] if listing else self._alive(key)
        if not found:
            self._list()
            found = self._alive(key)
        return found

    def beginning(self, prefix: str) -> list[Copy]:
        """Every copy of a key with this prefix, as a listing shows it."""
        seen = self._list()
        with self._lock:
            known = [copy for copy in self._known.values() if copy.key.startswith(prefix)]
        return self._confirmed(known, seen)

    def listed(self, key: str) -> list[Copy]:
        """Every copy of this key, as a listing shows it."""
        seen = self._list()
        with self._lock:
            known = [self._known[id] for id in self._of_key.get(key, ())]
        return [copy for copy in self._confirmed(known, seen) if copy.key == key]

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """In this thread, one listing serves until the context ends."""
        outer, self._snapshots.now = self._snapshots.now, _Snapshot()
        try:
            yield
        finally:
            self._snapshots.now = outer

    def _confirmed(self, known: Iterable[Copy], seen: set[str]) -> list[Copy]:
        """Looks up those that the listing did not show: it may be late, or they may be gone."""
        found = (copy if copy.id in seen else self.look(copy.id) for copy in known)
        return sorted(copy for copy in found if copy is not None)

    def look(self, id: str) -> Copy | None:
        """The file with this id, which Drive never answers late. None if it is gone."""
        try:
            item = self.account.call(
                "stat", lambda files: files.get(fileId=id, fields=FIELDS, supportsAllDrives=True)
            )
        except NotFound:
            self.forget(id)
            return None
        if not isinstance(item, dict) or item.get("id") != id or "md5Checksum" not in item:
            raise self.account.strange("stat")  # no proof that it is gone
        found = copy_of(item) if self._is_here(item) else None
        with self._lock:
            self._drop(id)  # a person who moved it to the trash may still restore it
        if found is not None:
            self.remember(found)
        return found

    def _is_here(self, item: dict[str, Any]) -> bool:
        """Whether it is in our folder. Somebody may have moved it."""
        parents = item.get("parents")
        if not isinstance(parents, list):
            return True  # not shown: the listing decides
        return any(isinstance(each, dict) and each.get("id") == self.folder for each in parents)

    def remember(self, copy: Copy) -> None:
        with self._lock:
            if copy.id not in self._gone:
                self._known[copy.id] = copy
                self._of_key.setdefault(copy.key, set()).add(copy.id)

    def forget(self, id: str) -> None:
        """The file is gone, whatever a late listing says."""
        with self._lock:
            self._gone[id] = None
            while len(self._gone) > _GONE_MAX:
                del self._gone[next(iter(self._gone))]
            self._drop(id)

    def _drop(self, id: str) -> None:
        copy = self._known.pop(id, None)
        if copy is not None:
            ids = self._of_key[copy.key]
            ids.discard(id)
            if not ids:
                del self._of_key[copy.key]

    def delete(self, id: str) -> None:
        """Deletes for good: what is in the trash still counts against the quota."""
        try:
            answer = self.account.call(
                "delete", lambda files: files.delete(fileId=id, supportsAllDrives=True)
            )
            if answer:  # a page of something in between
                raise self.account.strange("delete")
        except NotFound:
            pass
        self.forget(id)

    def check_folder(self) -> dict[str, Any]:
        """The folder as Drive has it now. Raises AccessDenied if nothing can be stored there."""
        fields = "id,mimeType,driveId,etag,labels/trashed,properties(key,value,visibility)"
        try:
            found = self.account.call(
                "open", lambda files: files.get(fileId=self.folder, fields=fields, supportsAllDrives=True)
            )
        except NotFound:
            message = (
                f"this login sees no folder {self.folder}: with the scope drive.file it sees only what "
                "`orchestrator init drive` made; run that, or check the id and who may see it"
            )
            raise AccessDenied(message, backend=self.account.name, operation="open") from None
        if not isinstance(found, dict) or found.get("id") != self.folder:
            raise self.account.strange("open")
        if found.get("mimeType") != FOLDER_TYPE:
            raise rejected(self.account, "open", f"{self.folder} is a file, not a folder of Drive")
        if is_trashed(found):
            message = f"the folder {self.folder} is in Drive's trash: restore it there"
            raise AccessDenied(message, backend=self.account.name, operation="open")
        return found

    def _alive(self, key: str) -> list[Copy]:
        with self._lock:
            ids = sorted(self._of_key.get(key, ()))
        found = map(self.look, ids)
        return [copy for copy in found if copy is not None and copy.key == key]  # somebody may rename one

    def _list(self) -> set[str]:
        """The ids that a listing shows: the one of the snapshot, if there is one."""
        kept = self._snapshots.now
        if kept is None:
            return self._asked()
        if kept.seen is None:
            kept.seen = self._asked()
        return kept.seen

    def _asked(self) -> set[str]:
        """Asks for the whole folder; returns the ids that were listed."""
        if self._where is None:
            drive = self.check_folder().get("driveId")
            self._where = {"corpora": "drive", "driveId": drive} if isinstance(drive, str) else {}
        seen = set()
        for item in self._items():
            copy = copy_of(item)
            if copy is not None:
                seen.add(copy.id)
                self.remember(copy)
        if not seen:
            self.check_folder()  # the folder itself may be in the trash: that is no empty store
        return seen

    def _items(self) -> Iterator[Any]:
        token, tokens = None, set()
        query = f"'{self.folder}' in parents and trashed=false"
        for _ in range(_PAGES_MAX):
            page = self._page(query, token)
            yield from page["items"]
            token = page.get("nextPageToken")
            if token is None:
                return
            if token in tokens:
                break
            tokens.add(token)
        raise Transient("Drive: the listing does not end", backend=self.account.name, operation="list")

    def _page(self, query: str, token: str | None) -> dict[str, Any]:
        wanted = {"q": query, "maxResults": _PAGE, "includeItemsFromAllDrives": True, **(self._where or {})}
        fields = f"nextPageToken,incompleteSearch,items({FIELDS})"
        page = self.account.call(
            "list",
            lambda files: files.list(**wanted, pageToken=token, fields=fields, supportsAllDrives=True),
        )
        items = page.get("items") if isinstance(page, dict) else None
        if not isinstance(items, list) or not all(
            isinstance(each, dict) and each.get("id") for each in items
        ):
            raise self.account.strange("list")
        assert isinstance(page, dict)
        if page.get("incompleteSearch"):  # a part of the folder would look deleted
            raise Transient("Drive: the listing is not complete", backend=self.account.name, operation="list")
        return page
