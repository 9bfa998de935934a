"""Writes checkpoints one after the other in the background, under a temporary name until each is complete.

A folder is renamed to `step-<n>` once all of it is durable, so that a process killed at any moment leaves the
earlier checkpoints intact. Must never know what a training is or when it saves.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from orchestrator.training.buffers import Buffer
from orchestrator.training.layout import SAVED, STATE_FILE, Shard, room, sync_file, sync_folder, write_file
from orchestrator.training.sharded import Parts

TEMPORARY = ".tmp-step-"


@dataclass
class Job:
    """One checkpoint to write. Everything in it was copied when the job was created.

    `moves` are files that are written already, by their names in the checkpoint. `links` gives the written
    file for each frozen shard's name. `stale` are such files that no later job needs. `parts` are this rank's
    share of the sharded tensors. Without a `buffer`, the shards and parts are written from the training's own
    tensors, which must not change meanwhile. Of what this helper has saved in the folder, the newest `keep`
    stay; None: all.
    """

    step: int
    target: Path
    documents: Mapping[str, bytes]
    shards: tuple[Shard, ...] = ()
    moves: Mapping[str, Path] = field(default_factory=dict)
    links: Mapping[str, Path] | None = None
    stale: tuple[Path, ...] = ()
    parts: Parts | None = None
    buffer: Buffer | None = None
    error: Exception | None = None
    keep: int | None = None

    @property
    def building(self) -> Path:
        """The folder until it is complete."""
        return self.target.with_name(f"{TEMPORARY}{self.step}")

    @property
    def room(self) -> int:
        """The size in bytes of a buffer for it."""
        return room((*self.shards, *(self.parts.shards if self.parts else ())))

    def copy(self, buffer: Buffer) -> None:
        """Copies the training's tensors into the buffer, and releases them."""
        self.buffer = buffer
        buffer.fill((*self.shards, *(self.parts.shards if self.parts else ())))
        if self.parts is not None:
            self.parts.copy(buffer)
        self.forget()

    def begin(self) -> None:
        """Before any rank writes its parts. Raises OSError."""
        self.building.mkdir()

    def abandon(self) -> None:
        """It will not be written after all."""
        self._remove()
        if self.buffer is not None:
            self.buffer.free = True

    def forget(self) -> None:
        """Releases the training's tensors, once they are copied or written."""
        self.shards = tuple(replace(shard, tensors=()) for shard in self.shards)

    def write(self) -> None:
        """Writes the checkpoint. Raises OSError, and then leaves nothing of it."""
        folder = self.building
        replaced = folder.with_suffix(".replaced")
        try:
            if self.parts is None:
                folder.mkdir()
            else:
                self.parts.write()
            for shard in self.shards:
                body = None if self.buffer is None else self.buffer.bytes_of(shard)
                shard.write(_made(folder, shard.file), body)
            for name, written in self.moves.items():
                _move(written, _made(folder, name))
            for name, written in (self.links or {}).items():
                _link(written, folder / name)
            for name, data in self.documents.items():
                write_file(_made(folder, name), [data])
            for inner in folder.rglob("*/"):
                sync_folder(inner)
            sync_folder(folder)
            if self.target.exists():  # from an earlier process of a training that was started again
                self.target.rename(replaced)
            folder.rename(self.target)
            sync_folder(self.target.parent)
        except BaseException:
            self._remove()
            raise
        shutil.rmtree(replaced, ignore_errors=True)
        for path in self.stale:
            path.unlink(missing_ok=True)
        for path in self._superseded():
            gone = path.with_name(f"{TEMPORARY}{path.name}.gone")
            with suppress(OSError):  # it stays; this checkpoint is saved
                path.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)

    def _remove(self) -> None:
        for path in (self.building, *self.moves.values()):
            remove(path)

    def _superseded(self) -> list[Path]:
        if self.keep is None:
            return []
        found = [(int(match[1]), path) for path in self.target.parent.iterdir()
                 if (match := SAVED.fullmatch(path.name)) and (path / STATE_FILE).is_file()]  # fmt: skip
        older = sorted(each for each in found if each[0] < self.step)
        return [path for _, path in older[: max(0, len(older) - self.keep + 1)]]


@dataclass
class Share(Job):
    """What a rank other than 0 writes of a checkpoint: its parts of the sharded tensors. Rank 0 reports a
    failure of any rank."""

    def begin(self) -> None:
        """Rank 0 creates the folder."""

    def abandon(self) -> None:
        if self.buffer is not None:
            self.buffer.free = True

    def write(self) -> None:
        assert self.parts is not None
        with suppress(OSError):
            self.parts.write()


class Writer:
    """Its thread lives only while jobs are unwritten, and the process does not end before it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()

    def submit(self, job: Job) -> None:
        """Writes the job after the earlier ones. A failure becomes a warning, and stays in `job.error`."""
        with self._changed:
            self._jobs.append(job)
            if len(self._jobs) > 1:
                return
        try:
            threading.Thread(target=self._work, name="checkpoint writer").start()
        except RuntimeError:  # the interpreter is ending: no new threads
            self._work()

    def wait(self, most: int = 0) -> None:
        """Blocks until at most `most` jobs are unwritten."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._jobs) <= most)

    def _work(self) -> None:
        while True:
            job = self._jobs[0]
            try:
                job.write()
            except Exception as error:  # noqa: BLE001 - a thread must report, not die
                job.error = error
                warn(f"the checkpoint of step {job.step} could not be saved, training goes on: {error}")
            with self._changed:
                if job.buffer is not None:
                    job.buffer.free = True
                self._jobs.popleft()
                self._changed.notify_all()
                if not self._jobs:
                    return


def remove(path: Path) -> None:
    """Removes a file or folder, as far as that is possible."""
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # a folder that could not be removed, or nothing
        path.unlink()


def warn(message: str) -> None:
    """Prints one line to the training's log."""
    print(f"warning: {message}", file=sys.stderr, flush=True)  # noqa: T201


@contextmanager
def warned_after(seconds: float, message: str) -> Iterator[None]:
    """Prints the warning if what is done inside takes so long."""
    late = threading.Timer(seconds, warn, [message])
    late.daemon = True
    late.start()
    try:
        yield
    finally:
        late.cancel()


def _made(folder: Path, name: str) -> Path:
    """The place of a file in the checkpoint, which may be in a folder of its own."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _move(written: Path, path: Path) -> None:
    """Moves a file that is on the same file system, and makes its bytes durable."""
    sync_file(written)
    written.rename(path)


def _link(written: Path, path: Path) -> None:
    try:
        os.link(written, path)
        return
    except FileNotFoundError:
        raise
    except OSError:  # hard links are not supported here, so copy
        with suppress(FileNotFoundError):
            path.unlink()
    with written.open("rb") as file:
        write_file(path, iter(lambda: file.read(1 << 20), b""))
