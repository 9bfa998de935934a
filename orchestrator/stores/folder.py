"""A store in a folder of this machine, or of anything mounted as one.

Decides how an object becomes durable and what errors of the file system mean. Must never know what the
objects are. Objects are regular files below the root. Drafts are in the root itself, so that one listing
finds what dead writers left. Registers have a folder of their own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from orchestrator.errors import (
    AccessDenied,
    BackendError,
    CorruptCheckpoint,
    NotFound,
    QuotaExhausted,
    Rejected,
    SourceChanged,
    Transient,
)
from orchestrator.files import (
    Draft,
    Lack,
    check_room,
    draft_file,
    folder_at,
    guard,
    look,
    make_folder,
    open_plain,
    remove_empty,
    remove_file,
    shortage,
    sweep,
    sync_folder,
)
from orchestrator.files.hashing import hashed_copy
from orchestrator.stores.folder_registers import FolderRegisters
from orchestrator.stores.portable import Portable
from orchestrator.stores.store import SHARED, Stat, check_key, check_prefix, check_size
from orchestrator.user import expanded

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP}
_FREE_SOME = "(`orchestrator prune` and `orchestrator rm` can help), or configure another folder"
_LANDINGS_MAX = 100
_REGISTERS = ".registers"  # no object's key begins like this


@dataclass(frozen=True)
class Options:
    """`path`: the folder. `~` is the user's home; a relative path is below the orchestrator's home."""

    path: Path


def configured(name: str, options: Options, home: Path) -> FolderStore:
    """The store as the user configured it."""
    return FolderStore(home / expanded(options.path), name)


def carried(portable: Portable) -> FolderStore:
    """The same folder, for a session of this machine. It is never created there: a folder that has gone, such
    as one on a disk that is not mounted, must not come back empty."""
    return FolderStore(Path(portable.options["path"]), creates=False)


class FolderStore:
    """Implements `Store` and `Portability`. The root is created by the first put; until then the store is
    empty. Without `creates`, nothing can be put until somebody else has created it."""

    def __init__(self, root: Path, name: str = "folder", *, creates: bool = True) -> None:
        self._root = root = guard(root)
        self._name = name
        self._creates = creates
        self._swept = False
        self.registers = FolderRegisters(root / _REGISTERS, name, self._reporting, self._make)

    def put(self, key: str, source: Path, sha256: str) -> None:
        check_key(key)
        target = self._root / key
        with open_plain(source) as stream, self._reporting("put", key):
            if target.is_file():
                self._check_source(key, hashed_copy(_as_it_is_now(stream), None), sha256)
                if self._is_taken(key, target, sha256):
                    return
                stream.seek(0)
            self._open()
            check_room(self._root, os.fstat(stream.fileno()).st_size)
            with draft_file(self._root, SHARED) as draft:
                self._check_source(key, hashed_copy(_as_it_is_now(stream), draft.fd), sha256)
                draft.sync()
                self._land(draft, target, key, sha256)

    def get(self, key: str, target: Path, sha256: str | None = None, *, bytes_max: int | None = None) -> None:
        check_key(key)
        with self._source(key) as stream, draft_file(target.parent, SHARED) as draft:
            check_size(key, os.fstat(stream.fileno()).st_size, bytes_max)
            present = _as_it_is_now(stream)

            def read(buffer: memoryview) -> int:
                with self._reporting("get", key):
                    return present(buffer)

            found = hashed_copy(read, draft.fd)
            if sha256 is not None and found != sha256:
                raise CorruptCheckpoint(key, f"its bytes have the sha256 {found[:12]}…, not {sha256[:12]}…")
            draft.replace(target)

    def stat(self, key: str) -> Stat | None:
        check_key(key)
        with self._reporting("stat", key):
            found = look(self._root / key)
        return Stat(key, found.st_size) if found is not None and stat.S_ISREG(found.st_mode) else None

    def list(self, prefix: str) -> Iterator[Stat]:
        check_prefix(prefix)
        folder = prefix.rpartition("/")[0]
        yield from self._walk(f"{folder}/" if folder else "", prefix)

    def delete(self, key: str) -> None:
        check_key(key)
        target = self._root / key
        with self._reporting("delete", key):
            with suppress(FileNotFoundError, NotADirectoryError):
                remove_file(target)
            folder = target.parent
            with suppress(OSError):  # the first folder that is not empty stays
                while folder != self._root:
                    with suppress(FileNotFoundError):
                        remove_empty(folder)
                    folder = folder.parent
            with suppress(FileNotFoundError, NotADirectoryError):
                sync_folder(folder)

    def absence(self) -> str:
        if self._root.exists():
            return ""
        return (
            f"{self._root} does not exist. The first checkpoint makes it; if it should be there, mount its "
            f"disk, or correct the `path` of the store {self._name} in the config"
        )

    @property
    def this_machine(self) -> bool:
        return True

    def portable(self) -> Portable:
        return Portable("folder", {"path": str(self._root.absolute())}, this_machine=self.this_machine)

    def _check_no_file(self) -> None:
        """A missing root is an empty store, because the first put makes it; anything else is a mistake."""
        if self._root.exists() and not self._root.is_dir():
            raise Rejected(
                f"{self._root} is not a folder: correct the `path` of the store {self._name} in the config",
                backend=self._name,
                operation="list",
            )

    def _open(self) -> None:
        """Makes the root. The first time, removes what killed writers left there."""
        missing = [folder for folder in (self._root, *self._root.parents) if not folder.is_dir()]
        self._make(self._root)
        for folder in missing:
            sync_folder(folder.parent)
        if not self._swept:
            sweep(self._root)
            self._swept = True

    def _make(self, folder: Path) -> None:
        if not self._creates:
            self._root.stat()  # raises, if it has gone
        make_folder(folder)

    def _land(self, draft: Draft, target: Path, key: str, sha256: str) -> None:
        for _ in range(_LANDINGS_MAX):
            try:
                self._make(target.parent)
                draft.create(target)
            except FileNotFoundError:  # a parallel delete removed the folder
                if not self._root.is_dir():
                    raise
                continue
            except FileExistsError:
                if self._is_taken(key, target, sha256):
                    return
                continue
            self._sync(target.parent)
            return
        raise Transient(f"{target.parent} is removed each time it is created", backend=self._name)

    def _sync(self, folder: Path) -> None:
        """Makes every folder below the root durable: another writer may have just made one."""
        while True:
            with suppress(FileNotFoundError):  # already deleted, with everything in it
                sync_folder(folder)
            if folder == self._root:
                return
            folder = folder.parent

    def _check_source(self, key: str, found: str, sha256: str) -> None:
        if found != sha256:
            message = f"the source has the sha256 {found[:12]}…, not {sha256[:12]}…; nothing was stored"
            raise SourceChanged(f"put {key}: {message}", backend=self._name, operation="put")

    def _is_taken(self, key: str, target: Path, sha256: str) -> bool:
        """Whether exactly these bytes are there, durably. False if a parallel delete just removed them."""
        try:
            with open_plain(target) as stream:
                found = hashed_copy(stream.readinto, None)
        except FileNotFoundError:
            return False
        if found != sha256:
            message = f"the key has other bytes (sha256 {found[:12]}…), and objects never change"
            raise Rejected(f"put {key}: {message}", backend=self._name, operation="put")
        self._sync(target.parent)
        return True

    @contextmanager
    def _source(self, key: str) -> Iterator[FileIO]:
        with self._reporting("get", key):
            missing = NotFound(f"{self._root} has no {key}", backend=self._name, operation="get")
            try:
                there = look(self._root / key)
                if there is None or not stat.S_ISREG(there.st_mode):  # a pipe would never end
                    raise missing
                stream = open_plain(self._root / key)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
                raise missing from error
        with stream:
            yield stream

    def _walk(self, folder: str, prefix: str) -> Iterator[Stat]:
        """In the order of whole keys. So a folder sorts by its name with the slash, after `name-`."""
        with self._reporting("list", prefix):
            found = self._entries(folder)
        for key, size in sorted(found):
            if key.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(key, prefix)
            elif key.startswith(prefix):
                yield Stat(key, size)

    def _entries(self, folder: str) -> Iterable[tuple[str, int]]:
        """Keys with sizes of the objects in a folder, and its folders as keys with a slash at the end."""
        found = []
        try:
            with folder_at(self._root / folder, os.O_RDONLY) as there:
                for entry in list(os.scandir(there)):
                    key = folder + entry.name
                    with suppress(FileNotFoundError, Rejected):  # just deleted, a draft, or not ours
                        check_key(key)
                        if entry.is_dir(follow_symlinks=False):
                            found.append((f"{key}/", 0))
                        elif entry.is_file(follow_symlinks=False):
                            found.append((key, entry.stat(follow_symlinks=False).st_size))
        except (FileNotFoundError, NotADirectoryError):
            self._check_no_file()
            return []
        return found

    @contextmanager
    def _reporting(self, operation: str, key: str) -> Iterator[None]:
        """Turns the file system's errors into ours, by what the caller should do next."""
        try:
            yield
        except Lack as lack:
            message = f"{operation} {key}: the store is full: {lack.strerror}: free some there {_FREE_SOME}"
            raise QuotaExhausted(message, backend=self._name, operation=operation) from lack
        except OSError as error:
            kind, advice = self._meaning(error.errno)
            path = error.filename or self._root / key
            message = f"{operation} {key}: {error.strerror or error} ({path}){advice}"
            raise kind(message, backend=self._name, operation=operation) from error

    def _meaning(self, code: int | None) -> tuple[Callable[..., BackendError], str]:
        if code in _FULL:
            what, do = shortage(self._root)
            return QuotaExhausted, f"; the store is full: {what}: {do} there {_FREE_SOME}"
        if code in _DENIED:
            return AccessDenied, "; give this user permission to read and write there"
        if code in _WRONG:
            return Rejected, ""
        return Transient, ""


def _as_it_is_now(stream: FileIO) -> Callable[[memoryview], int]:
    """Reads only what the file contains now: its writer may continue to append forever."""
    found = os.fstat(stream.fileno())
    if not stat.S_ISREG(found.st_mode):
        return stream.readinto
    left = found.st_size - stream.tell()

    def read(buffer: memoryview) -> int:
        nonlocal left
        count = stream.readinto(buffer[: max(0, left)]) if left > 0 else 0
        left -= count or 0
        return count or 0

    return read
