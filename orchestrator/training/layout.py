"""Decides which file holds which bytes of a checkpoint. Plans and writes shards in the safetensors format.

A shard's tensors follow one another, so that their copy in host memory is written in one piece. The same
tensors give the same bytes. Must never know steps, what components mean, or when anything is written. It
syncs files itself, without `orchestrator.files`, because the helper ships alone and imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

STATE_FILE = "state.json"
SAVED = re.compile(r"step-(\d+)")  # the name of a checkpoint's folder
SHARD_BYTES = 256 * 1000 * 1000
_ALIGNMENT = 64
_CHUNK = 16 * 1024 * 1024
# The names of the safetensors format (its README, "Format").
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "complex64": "C64",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64", "uint32": "U32",
    "uint16": "U16", "uint8": "U8", "bool": "BOOL", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """One file: its header, then `size` bytes of tensors, each with its offset. `begin` is where these bytes
    begin in a buffer that holds several shards."""

    file: str
    header: bytes
    begin: int
    size: int
    tensors: tuple[tuple[torch.Tensor, int], ...]

    def write(self, path: Path, body: memoryview | None = None) -> None:
        """Writes the file from `body`, a copy of its bytes, or from the tensors themselves. Raises
        OSError."""
        write_file(path, chain([self.header], _straight(self) if body is None else [body]))


def pieces(name: str, tensor: torch.Tensor, shard_bytes: int = SHARD_BYTES) -> list[tuple[str, torch.Tensor]]:
    """The tensor with its name. A tensor larger than a shard is split by rows into pieces with names.

    Raises TypeError for a tensor that safetensors cannot hold.
    """
    if str(tensor.dtype).removeprefix("torch.") not in DTYPES or str(tensor.layout) != "torch.strided":
        raise TypeError(f"{name}: cannot save a {tensor.layout} tensor of {tensor.dtype}")
    if tensor.nbytes <= shard_bytes or tensor.ndim == 0:
        return [(name, tensor)]
    rows = max(1, shard_bytes // (tensor.nbytes // tensor.shape[0]))
    parts = (tensor[at : at + rows] for at in range(0, tensor.shape[0], rows))
    return [(f"{name}#{n}", part) for n, part in enumerate(parts)]


def plan(
    stem: str, tensors: Mapping[str, torch.Tensor], begin: int = 0, shard_bytes: int = SHARD_BYTES
) -> tuple[Shard, ...]:
    """The shards `<stem>-00001-of-0000N.safetensors` of the tensors, which begin at `begin` in a buffer.

    Tensors with wider numbers come first, so that each tensor is aligned to its own width without gaps.
    """
    groups: list[dict[str, torch.Tensor]] = []
    filled = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
        if not groups or filled + tensor.nbytes > shard_bytes:
            groups.append({})
            filled = 0
        groups[-1][name] = tensor
        filled += tensor.nbytes
    shards = []
    for number, group in enumerate(groups, 1):
        shards.append(shard_of(f"{stem}-{number:05d}-of-{len(groups):05d}.safetensors", group, begin))
        begin = shards[-1].begin + shards[-1].size
    return tuple(shards)


def room(shards: Iterable[Shard]) -> int:
    """The size in bytes of a buffer that holds all these shards."""
    return max((shard.begin + shard.size for shard in shards), default=0)


def shard_of(
    file: str,
    tensors: Mapping[str, torch.Tensor],
    begin: int = 0,
    metadata: Mapping[str, str] = MappingProxyType({"format": "pt"}),
) -> Shard:
    """One safetensors file of these tensors in this order, at the next place from `begin` on."""
    described: dict[str, object] = {"__metadata__": dict(metadata)}
    placed, at = [], 0
    for name, tensor in tensors.items():
        end = at + tensor.nbytes
        dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        described[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [at, end]}
        placed.append((tensor, at))
        at = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the tensors are aligned in a mapping of the file too
    return Shard(file, len(text).to_bytes(8, "little") + text, aligned(begin), at, tuple(placed))


def aligned(begin: int) -> int:
    """The next place in a buffer where a file's tensors may begin."""
    return begin + -begin % _ALIGNMENT


def _straight(shard: Shard) -> Iterator[memoryview]:
    """The bytes of each tensor, through host memory for other devices. Each view is valid until the next."""
    for tensor, _ in shard.tensors:
        plain = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        if plain.nbytes:
            raw = (ctypes.c_char * plain.nbytes).from_address(plain.data_ptr())
            yield memoryview(raw).cast("B")


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> None:
    """Writes a new file and makes its bytes durable, while other threads can run. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
    try:
        for chunk in chunks:
            left = memoryview(chunk)
            while left:
                left = left[os.write(handle, left[:_CHUNK]) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file(path: Path) -> None:
    """Makes the bytes of a file durable that somebody else wrote. Raises OSError."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder durable, where the system can do that."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
