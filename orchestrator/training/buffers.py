"""Host memory that holds a copy of the training's tensors while it is written.

It is allocated and touched before it is needed, because the first write to a page costs more than the copy
itself (docs/references/training.md#what-a-save-costs-the-training). With CUDA it is also pinned. Must never
know what the tensors are or where they go.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.training.layout import Shard

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    import torch

COUNT = 2
_TOUCHED_BYTES = 32 * 1024 * 1024
_MOVED_BYTES = 8 * 1024 * 1024
_THREADS_MAX = 8
_ALONE_BYTES = 32 * 1024 * 1024  # up to here, one thread is faster than starting others
_GRAIN_BYTES = 16 * 1024 * 1024
_CUDA_SUCCESS = 0


class Buffer:
    """Memory for one checkpoint, as bytes and as a tensor of bytes.

    A forked child does not get it. Otherwise the next save would have to copy its pages one by one. Raises
    OSError where there is not enough memory.
    """

    def __init__(self, size: int) -> None:
        import torch

        self.size = size
        self.free = True
        flags = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
        self._memory = mmap.mmap(-1, size, **flags)
        if hasattr(mmap, "MADV_DONTFORK"):  # Linux. No huge pages: slower to get, no faster to copy into
            self._memory.madvise(mmap.MADV_DONTFORK)
        self._tensor = torch.frombuffer(self._memory, dtype=torch.uint8)
        self._touching = threading.Lock()
        self._touched = False
        self._pinned = False

    def touch(self) -> None:
        """Allocates the pages. Stops as soon as the buffer is taken or the process ends."""
        for at in range(0, self.size, _TOUCHED_BYTES):
            with self._touching:
                if self._touched or not threading.main_thread().is_alive():
                    return
                self._tensor[at : at + _TOUCHED_BYTES : mmap.PAGESIZE].fill_(0)
        with self._touching:
            self._touched = True

    def fill(self, shards: Sequence[Shard]) -> None:
        """Copies every tensor of the shards to its place in the buffer. The copy is done when it returns. The
        first time, the buffer is pinned."""
        with self._touching:
            self._touched = True
        self._pin()
        moves: list[tuple[int, int, int]] = []
        devices = set()
        for shard in shards:
            for tensor, at in shard.tensors:
                if tensor.device.type == "cpu" and tensor.is_contiguous() and not _lazy(tensor):
                    moves += _moves(self._tensor.data_ptr() + shard.begin + at, tensor)
                    continue
                self.place_of(shard, tensor, at).copy_(tensor, non_blocking=tensor.is_cuda)
                if tensor.is_cuda:
                    devices.add(tensor.device)
        _move(moves)
        for device in devices:
            sys.modules["torch"].cuda.synchronize(device)

    def release(self) -> None:
        """Unpins the buffer and stops touching it. Call this before the last reference to it goes."""
        with self._touching:
            self._touched = True
            if self._pinned:
                sys.modules["torch"].cuda.cudart().cudaHostUnregister(self._tensor.data_ptr())

    def place_of(self, shard: Shard, tensor: torch.Tensor, at: int) -> torch.Tensor:
        """The copy of a tensor of the shard, which is at this offset in it."""
        begin = shard.begin + at
        return self._tensor[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)

    def bytes_of(self, shard: Shard) -> memoryview:
        return memoryview(self._memory)[shard.begin : shard.begin + shard.size]

    def _pin(self) -> None:
        """Called where the training saves, not from the thread that touches: pinning while a CUDA graph is
        captured breaks the capture."""
        torch = sys.modules["torch"]
        if self._pinned or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
            return
        if not torch.cuda.is_current_stream_capturing():
            with suppress(RuntimeError):  # unpinned memory is slower, but works as well
                done = torch.cuda.cudart().cudaHostRegister(self._tensor.data_ptr(), self.size, 0)
                self._pinned = int(done) == _CUDA_SUCCESS


class Buffers:
    """The buffers of a process: as many as memory allows, at most COUNT."""

    def __init__(self) -> None:
        self._all: list[Buffer] = []
        self._refused = 0

    @property
    def count(self) -> int:
        return len(self._all)

    def holds(self, size: int) -> bool:
        """Whether a checkpoint of this size has its buffers already, or is known not to fit."""
        return size == 0 or any(b.size >= size for b in self._all) or 0 < self._refused <= size

    def provide(self, size: int) -> bool:
        """Replaces the buffers, none of which may be in use. Returns whether there is at least one.

        Returns at once, because a thread touches the pages. Takes at most half of the memory that is left.
        """
        for buffer in self._all:
            buffer.release()
        self._all = []
        size += -size % _GRAIN_BYTES
        for _ in range(COUNT):
            if size <= available_memory() // 2 - size * len(self._all):
                with suppress(OSError):
                    self._all.append(Buffer(size))
        self._refused = 0 if self._all else size
        if self._all:
            made = tuple(self._all)
            threading.Thread(target=_touch, args=(made,), name="checkpoint memory").start()
        return bool(self._all)

    def take(self) -> Buffer:
        """A free buffer; there must be one. The writer sets `free` again once it has written it."""
        buffer = next(b for b in self._all if b.free)
        buffer.free = False
        return buffer


def available_memory() -> int:
    """Bytes this process may still take: the least that the machine, its cgroup and its own limit leave."""
    found = [sys.maxsize]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        found.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # cgroup v2, as containers see their own
        group = Path("/sys/fs/cgroup")
        most, used = ((group / name).read_text(encoding="ascii") for name in ("memory.max", "memory.current"))
        found.append(int(most) - int(used))
    limit = None if resource is None else resource.getrlimit(resource.RLIMIT_DATA)[0]
    if limit is not None and limit != resource.RLIM_INFINITY:
        with suppress(OSError, ValueError, StopIteration):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            used_kib = next(int(line.split()[1]) for line in lines if line.startswith("VmData:"))
            found.append(limit - used_kib * 1024)
    return max(0, min(found))


def _touch(buffers: Sequence[Buffer]) -> None:
    for buffer in buffers:
        buffer.touch()


def _lazy(tensor: torch.Tensor) -> bool:
    return tensor.is_conj() or tensor.is_neg()


def _moves(target: int, tensor: torch.Tensor) -> list[tuple[int, int, int]]:
    source, size = tensor.data_ptr(), tensor.nbytes
    return [(target + at, source + at, min(_MOVED_BYTES, size - at)) for at in range(0, size, _MOVED_BYTES)]


def _move(moves: list[tuple[int, int, int]]) -> None:
    """Copies bytes between host addresses (target, source, count), in as many threads as torch may use.

    Does not use torch's own threads. They synchronize after every tensor, which took ten times as long as the
    copy on a busy machine.
    """
    total = sum(count for _, _, count in moves)
    threads = 1 if total < _ALONE_BYTES else min(_THREADS_MAX, sys.modules["torch"].get_num_threads())
    moves.reverse()

    def work() -> None:
        with suppress(IndexError):  # none left
            while True:
                ctypes.memmove(*moves.pop())

    helpers = [threading.Thread(target=work) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
