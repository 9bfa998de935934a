"""Tensors that do not change from one checkpoint to the next: written once, and linked from then on.

Every save checks whether they changed. It compares sums of their words, computed on their own device. Must
never know more of components than their names, or when anything is saved.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.training.layout import plan, sync_folder
from orchestrator.training.state import FROZEN

if TYPE_CHECKING:
    import torch

FOLDER = ".frozen"
_ROW = 32  # words


@dataclass(frozen=True)
class _Written:
    described: object
    files: Mapping[str, Path]


@dataclass
class Unchanging:
    """The files of frozen tensors that this process wrote, in a hidden folder beside the checkpoints.

    A file is never written to again, because checkpoints and their committed copies are links to it.
    """

    folder: Path
    _written: dict[str, _Written] = field(default_factory=dict)
    _stale: list[Path] = field(default_factory=list)
    _version: int = 0

    def files(self, component: str, tensors: Mapping[str, torch.Tensor]) -> Mapping[str, Path]:
        """The file for each frozen shard, by the shard's name. Writes those that are new or changed. Raises
        OSError."""
        described = (
            [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()],
            checksums(list(tensors.values())),
        )
        known = self._written.get(component)
        if (
            known is not None
            and known.described == described
            and all(p.exists() for p in known.files.values())
        ):
            return known.files
        files = self._write(component, tensors)
        if known is not None:
            self._stale += known.files.values()
        self._written[component] = _Written(described, files)
        return files

    def stale(self) -> tuple[Path, ...]:
        """The files that were replaced since the last call."""
        gone, self._stale = tuple(self._stale), []
        return gone

    def _write(self, component: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, Path]:
        self.folder.mkdir(exist_ok=True)
        self._version += 1
        files: dict[str, Path] = {}
        try:
            for shard in plan(component + FROZEN, tensors):
                path = files[shard.file] = self.folder / f"{os.getpid()}-{self._version}-{shard.file}"
                shard.write(path)
            sync_folder(self.folder)
        except BaseException:
            for path in files.values():
                path.unlink(missing_ok=True)
            raise
        return files


def checksums(tensors: list[torch.Tensor]) -> list[list[int]]:
    """Two sums of each tensor's words, modulo 2**64, computed on its device at the speed of its memory.

    Each row of 32 words (256 bytes) is summed, and the sums are weighted by the row numbers. So a changed
    word is noticed, and so are swapped rows, but not words that only change places within a row.
    """
    import torch

    sums = [_sums(tensor) for tensor in tensors]
    return (
        [pair.tolist() for pair in sums] if len({s.device for s in sums}) != 1 else torch.stack(sums).tolist()
    )


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8:
        flat = flat.clone()
    whole = flat.numel() - flat.numel() % (8 * _ROW)
    rows = flat[:whole].view(torch.int64).view(-1, _ROW).sum(1)
    rest = flat[whole:].to(torch.int64)
    return torch.stack([_weighted(rows), _weighted(rest)])


def _weighted(numbers: torch.Tensor) -> torch.Tensor:
    import torch

    places = torch.arange(len(numbers), device=numbers.device)
    return (numbers * (2 * places + 1)).sum()
