"""Files as other libraries write them, from copies of their tensors: by `torch.save`, or in safetensors.

Everything but the bytes of the tensors is fixed when the file is described. The bytes are copied into a
buffer, and the file is written from there, in the background. `torch.load` and safetensors read it. Must
never know which library it is for, or when it is written.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from orchestrator.training.buffers import Buffer
from orchestrator.training.layout import DTYPES, Shard, aligned, shard_of

_CHUNK = 16 * 1024 * 1024
_KINDS = (torch.Tensor, torch.nn.Parameter)


class Staged:
    """The files of one checkpoint, until `Training.save` takes them.

    A file is its bytes, a Path (a file that is written already, which is moved), or a shard whose tensors are
    in the buffer. Without a `buffer` no tensors can be copied.
    """

    def __init__(self, buffer: Buffer | None) -> None:
        self.buffer = buffer
        self.files: dict[str, bytes | Path | Shard] = {}
        self._filled = 0

    def pickled(self, name: str, value: object) -> bool:
        """Adds what `torch.save(value)` writes, as it is now. False, and nothing added, if it has no tensors
        or cannot be copied."""
        with suppress(pickle.PicklingError, AttributeError, TypeError):
            return self.add(Pickle(value), name)
        return False

    def add(self, file: Pickle, name: str) -> bool:
        """As `pickled`, of a value that is described already."""
        return bool(file.tensors) and self._copied(file.shard(name, self._filled))

    def weights(self, name: str, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str]) -> bool:
        """Adds a safetensors file. False, and nothing added, where the tensors cannot be copied."""
        if not all(_plain(each) and str(each.dtype)[6:] in DTYPES for each in tensors.values()):
            return False
        ordered = dict(sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])))
        return self._copied(shard_of(name, ordered, self._filled, metadata))

    def release(self) -> None:
        """Gives the buffer back, if these files are not to be written."""
        if self.buffer is not None:
            self.buffer.free = True
        for given in self.files.values():
            if isinstance(given, Path):
                given.unlink(missing_ok=True)

    def _copied(self, shard: Shard) -> bool:
        end = shard.begin + shard.size
        if self.buffer is None or end > self.buffer.size:
            return False
        self.buffer.fill([shard])
        self.files[shard.file] = replace(shard, tensors=())
        self._filled = end
        return True


class Pickle:
    """Any value as `torch.save` takes it: its tensors, and the pickle of everything else, which is made now.

    Tensors that are the same view are one here too. Raises what `pickle` raises.
    """

    def __init__(self, value: object) -> None:
        self.tensors: list[torch.Tensor] = []
        stream = io.BytesIO()
        _Pickler(stream, self.tensors).dump(value)
        self._rest = stream.getvalue()

    @property
    def room(self) -> int:
        """The size of a buffer that holds all of its tensors."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def shard(self, file: str, begin: int = 0) -> Shard:
        """Where each tensor is in a buffer, at the next place from `begin` on."""
        places, at = [0] * len(self.tensors), 0
        # tensors with wider numbers first, so that each is aligned
        for number, tensor in sorted(enumerate(self.tensors), key=lambda item: -item[1].itemsize):
            places[number] = at
            at += tensor.nbytes
        dense = [_dense(tensor) for tensor in self.tensors]
        kinds = tuple(
            _Kind(place, tensor.dtype, tuple(tensor.shape), order)
            for place, (tensor, order) in zip(places, dense)  # noqa: B905 - Python 3.9
        )
        copied = tuple((tensor, place) for place, (tensor, _) in zip(places, dense))  # noqa: B905
        return _TorchFile(file, self._rest, aligned(begin), at, copied, kinds)


@dataclass(frozen=True)
class _Kind:
    """One tensor of a file. `order` is that of its dimensions in the buffer, the outermost first."""

    place: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def view(self, body: memoryview) -> torch.Tensor:
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        if not count:
            flat = torch.empty(0, dtype=self.dtype)
        else:  # a storage of its own, because torch.save writes whole storages
            flat = torch.frombuffer(body, dtype=torch.uint8, count=count, offset=self.place).view(self.dtype)
        back = [self.order.index(dimension) for dimension in range(len(self.order))]
        return flat.view(self.shape).permute(back)


@dataclass(frozen=True)
class _TorchFile(Shard):
    """`header` is the pickle of everything but the tensors."""

    kinds: tuple[_Kind, ...] = ()

    def write(self, path: Path, body: memoryview | None = None) -> None:
        assert body is not None
        value = _Unpickler(io.BytesIO(self.header), [kind.view(body) for kind in self.kinds]).load()
        file = _File(path)
        try:
            torch.save(value, file)  # type: ignore[arg-type]  # it only writes and flushes
            file.finish()
        except RuntimeError:  # torch's word for any failed write
            file.finish()
            raise
        finally:
            file.close()


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._tensors = tensors
        self._seen: dict[object, int] = {}

    def persistent_id(self, value: Any) -> tuple[int, bool, bool] | None:
        if not isinstance(value, torch.Tensor) or not _plain(value):
            return None
        view: object = (value.data_ptr(), value.device, value.shape, value.stride(), value.dtype)
        if not value.data_ptr():  # a device whose tensors have no address, or no elements
            view = object()
        if view not in self._seen:
            self._seen[view] = len(self._tensors)
            self._tensors.append(value.detach())
        return self._seen[view], isinstance(value, torch.nn.Parameter), value.requires_grad


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, tensors: list[torch.Tensor]) -> None:
        super().__init__(stream)
        self._tensors = tensors

    def persistent_load(self, key: tuple[int, bool, bool]) -> torch.Tensor:
        number, parameter, needs_gradient = key
        tensor = self._tensors[number]
        if parameter:
            return torch.nn.Parameter(tensor, needs_gradient)
        return tensor.detach().requires_grad_() if needs_gradient else tensor


class _File:
    """A new file for `torch.save`, which tells a failed write from a bug of its own."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
        self._error: OSError | None = None

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left:
                left = left[os.write(self._handle, left[:_CHUNK]) :]
        except OSError as error:
            self._error = self._error or error
            raise
        return size

    def flush(self) -> None:
        """Every write is complete when it returns."""

    def finish(self) -> None:
        """Makes the file durable. Raises the OSError of a write that failed."""
        if self._error is not None:
            raise self._error
        os.fsync(self._handle)

    def close(self) -> None:
        os.close(self._handle)


def size_of(*states: object) -> int:
    """The bytes of all tensors in these values."""
    total = 0
    for state in states:
        if isinstance(state, torch.Tensor):
            total += state.nbytes
        elif isinstance(state, Mapping):
            total += size_of(*state.values())
        elif isinstance(state, list | tuple):
            total += size_of(*state)
    return total


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes are all there is to it: no sparse, quantized or sharded tensor, and no class of its
    own."""
    return type(tensor) in _KINDS and tensor.layout == torch.strided and not tensor.is_quantized


def _dense(tensor: torch.Tensor) -> tuple[torch.Tensor, tuple[int, ...]]:
    """A view with the dimensions in the order of memory (channels_last), and that order."""
    strides = tensor.stride()
    order = tuple(sorted(range(tensor.ndim), key=lambda dimension: -strides[dimension]))
    found = tensor.permute(order)
    return (found, order) if found.is_contiguous() else (tensor, tuple(range(tensor.ndim)))
