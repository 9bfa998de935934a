"""Registers in a folder: one file each, changed under one lock, which the kernel releases if its holder dies.

Must never know what the values mean. On a network file system, the lock is as reliable as its `flock`.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Protocol

from orchestrator.core import bounds
from orchestrator.errors import Conflict, Rejected, Transient
from orchestrator.files import (
    flock,
    make_folder,
    open_file,
    remove_empty,
    remove_file,
    sweep,
    sync_folder,
    write_whole,
)
from orchestrator.stores.register import Held, check_value, content_version
from orchestrator.stores.store import SHARED, check_key, check_prefix

_LOCK = ".lock"
_PAUSE_SECONDS, _LOOKS = 0.01, 1000


class Reporting(Protocol):
    """Turns the file system's errors into the store's."""

    def __call__(self, operation: str, key: str) -> AbstractContextManager[None]: ...


class FolderRegisters:
    """Implements `Registers`. The first swap makes the folder `root`, with `make`."""

    def __init__(
        self,
        root: Path,
        name: str,
        reporting: Reporting,
        make: Callable[[Path], None] = make_folder,
    ) -> None:
        self._root = root
        self._name = name
        self._reporting = reporting
        self._make = make

    def read(self, key: str) -> Held | None:
        check_key(key)
        with self._reporting("read", key):
            return self._held(key)

    def swap(self, key: str, value: bytes, version: str | None) -> str:
        check_key(key)
        check_value(value)
        with self._reporting("swap", key):
            self._make(self._root)
            with self._locked("swap"):
                held = self._held(key)
                if (None if held is None else held.version) != version:
                    raise Conflict(f"{key} has changed", backend=self._name, operation="swap")
                self._write(self._root / key, value)
        return content_version(value)

    def list(self, prefix: str) -> Iterator[str]:
        check_prefix(prefix)
        with self._reporting("list", prefix):
            files = [path for path in self._root.rglob("*") if path.is_file()]
        for key in sorted(path.relative_to(self._root).as_posix() for path in files):
            with suppress(Rejected):  # the lock, a draft, or not ours
                check_key(key)
                if key.startswith(prefix):
                    yield key

    def delete(self, key: str) -> None:
        check_key(key)
        gone = suppress(FileNotFoundError, NotADirectoryError)
        with self._reporting("delete", key), gone, self._locked("delete"):
            remove_file(self._root / key)
            folder = (self._root / key).parent
            with suppress(OSError):  # the first folder that is not empty stays
                while folder != self._root:
                    remove_empty(folder)
                    folder = folder.parent
            sync_folder(folder)

    def _held(self, key: str) -> Held | None:
        target = self._root / key
        try:
            found = target.lstat()
            if stat.S_ISREG(found.st_mode):  # looked at first: opening a device may do something
                with os.fdopen(open_file(target, os.O_RDONLY), "rb") as file:
                    value = file.read(bounds.REGISTER_BYTES_MAX + 1)
                if len(value) <= bounds.REGISTER_BYTES_MAX:
                    return Held(value, content_version(value))
        except (FileNotFoundError, NotADirectoryError):  # also where it was deleted a moment ago
            return None
        message = f"{target} is not a register: not a regular file, or too large ({found.st_size:,} bytes)"
        raise Rejected(message, backend=self._name)

    def _write(self, target: Path, value: bytes) -> None:
        self._make(target.parent)
        write_whole(target, value, mode=SHARED, folder=self._root)
        folder = target.parent
        while folder != self._root.parent:
            folder = folder.parent
            sync_folder(folder)

    @contextmanager
    def _locked(self, operation: str) -> Iterator[None]:
        """Holds the lock for changing registers. Sweeps what dead writers left."""
        descriptor = open_file(self._root / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            if not _taken(descriptor, self._root / _LOCK):
                message = f"another process has held {self._root / _LOCK} for {_PAUSE_SECONDS * _LOOKS:.0f} s"
                raise Transient(message, backend=self._name, operation=operation)
            sweep(self._root)
            yield
        finally:
            os.close(descriptor)


def _taken(descriptor: int, path: Path) -> bool:
    """Waits for the lock, but not forever: its holder may be stopped."""
    for _ in range(_LOOKS):
        if flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, path, "the `path` of this store"):
            return True
        threading.Event().wait(_PAUSE_SECONDS)
    return False
