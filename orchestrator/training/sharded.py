"""Sharded tensors (DTensor, as FSDP2 makes them): each rank writes and reads its own parts of them.

torch.distributed.checkpoint writes them into one folder of the checkpoint, and reads them for any number of
ranks. Must never know what components mean or when anything is saved. Imports torch only if the script did.
"""

from __future__ import annotations

import hashlib
import re
import sys
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.training.buffers import Buffer
from orchestrator.training.layout import Shard, plan, sync_folder

if TYPE_CHECKING:
    import torch

FOLDER = "sharded"


def is_sharded(value: object) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def tensors_in(value: object, place: str) -> Iterable[tuple[str, Any]]:
    """Every tensor in lists, tuples and mappings, with its place."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        yield place, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from tensors_in(each, f"{place}.{key}")
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from tensors_in(each, f"{place}.{number}")


def local(place: str, tensor: Any) -> torch.Tensor:
    """This rank's part of a sharded tensor. Raises TypeError for one that cannot be saved."""
    import torch

    if any(placement.is_partial() for placement in tensor.placements):
        raise TypeError(f"{place}: cannot save a DTensor of partial sums; redistribute it first")
    part = tensor.to_local().detach()
    if type(part) is not torch.Tensor:
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        raise TypeError(f"{place}: cannot save a DTensor of {kind}, a kind of tensor of its own")
    return part


@dataclass
class Parts:
    """This rank's parts of a checkpoint's sharded tensors. `folder` is the checkpoint that is being built,
    `group` a process group that only these writes use. `parts` are the training's own memory. They are
    written once `copies` of them are in a buffer, or straight away. All are by place."""

    tensors: Mapping[str, Any]
    folder: Path
    group: Any
    parts: Mapping[str, torch.Tensor]
    shards: tuple[Shard, ...] = ()
    copies: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, tensors: Mapping[str, Any], folder: Path, group: Any, begin: int) -> Parts:
        """`shards` says where each part goes in a buffer, in which they begin at `begin`."""
        parts = {place: local(place, tensor) for place, tensor in tensors.items()}
        return cls(tensors, folder, group, parts, plan(FOLDER, parts, begin))

    def copy(self, buffer: Buffer) -> None:
        """Writes from the buffer, which has them."""
        places = {id(tensor): place for place, tensor in self.parts.items()}
        for shard in self.shards:
            self.copies |= {
                places[id(tensor)]: buffer.place_of(shard, tensor, at) for tensor, at in shard.tensors
            }
        self.parts, self.shards = {}, ()

    @property
    def described(self) -> str:
        """What every rank must have alike, as a digest."""
        known = sorted((place, tuple(each.shape), str(each.dtype)) for place, each in self.tensors.items())
        return hashlib.sha256(repr(known).encode()).hexdigest()

    def write(self) -> None:
        """Writes this rank's parts. Every rank must call it; then all of them are durable, or every rank
        raises OSError with the first fault of any."""
        from torch.distributed.checkpoint.api import CheckpointException
        from torch.distributed.checkpoint.state_dict_saver import save

        folder = self.folder / FOLDER
        try:
            written = save(
                dict(self.tensors),
                storage_writer=_writer(folder),
                planner=_planner(self.copies),
                process_group=self.group,
            )
        except CheckpointException as error:
            rank, (fault, _) = min(error.failures.items())
            raise OSError(f"rank {rank} could not write its part: {fault}") from error
        if self.group.rank() == 0:
            files = {each.relative_path for each in written.storage_data.values()}
            if missing := sorted(file for file in files if not (folder / file).exists()):
                raise OSError(f"{missing[0]} is not in {folder}: all ranks must share one checkpoint folder")
            sync_folder(folder)


def _writer(folder: Path) -> Any:
    from torch.distributed.checkpoint.filesystem import FileSystemWriter

    class Same(FileSystemWriter):
        """Does not write its path and a number of its own: the same state gives the same bytes."""

        def storage_meta(self) -> None:
            return None

    return Same(folder)


def _planner(copies: Mapping[str, torch.Tensor]) -> Any:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    class Copied(DefaultSavePlanner):
        def lookup_object(self, index: Any) -> Any:
            return copies[index.fqn] if index.fqn in copies else super().lookup_object(index)

    return Copied()


class Targets:
    """What a component has now, to load its saved tensors into. `state` is its state, if it has any yet."""

    def __init__(self, name: str, component: object = None, state: object = None) -> None:
        self._at = dict(tensors_in(state, name))
        groups = getattr(component, "param_groups", None)
        self._parameters = [each for group in groups or () for each in group["params"]]
        self._moment = re.compile(rf"{re.escape(name)}\.state\.(\d+)\.")  # of torch.optim.Optimizer

    @property
    def sharded(self) -> bool:
        return any(map(is_sharded, (*self._at.values(), *self._parameters)))

    def fit(self, place: str, tensor: torch.Tensor) -> Any:
        """A plain tensor, or its part for this rank if the component has a sharded one there."""
        model = self._like(place, tensor.shape)
        if is_sharded(tensor) or not is_sharded(model):
            return tensor
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(tensor, model.device_mesh, model.placements, src_data_rank=None)

    def space(self, place: str, shape: torch.Size, dtype: torch.dtype) -> Any:
        """A tensor to read into: the component's own sharded one, or a new one."""
        import torch

        model = self._like(place, shape)
        if not is_sharded(model):
            return torch.empty(shape, dtype=dtype)
        return model if place in self._at else torch.empty_like(model, dtype=dtype, requires_grad=False)

    def _like(self, place: str, shape: torch.Size) -> Any:
        """The tensor at this place, or the parameter whose optimizer state it is."""
        if place not in self._at and (match := self._moment.match(place)):
            number = int(match[1])
            if number < len(self._parameters) and self._parameters[number].shape == shape:
                return self._parameters[number]
        return self._at.get(place)


def read(folder: Path, places: Iterable[str], targets: Targets) -> dict[str, Any]:
    """The sharded tensors at these places of a checkpoint: this rank's parts of them, or all of a tensor that
    is plain here. No rank waits for another. Raises ValueError if they are damaged or of another shape."""
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    reader = FileSystemReader(folder / FOLDER)
    try:
        known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        found = {
            place: targets.space(place.rstrip("'"), known[place].size, known[place].properties.dtype)
            for place in places
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "torch.distributed is disabled": each rank reads for itself
            load(found, storage_reader=reader, no_dist=True)
    except CheckpointException as error:
        [(fault, _), *_] = error.failures.values()
        raise ValueError(f"{folder / FOLDER} does not fit or is damaged: {fault}") from error
    except Exception as error:  # a damaged file may raise anything
        raise ValueError(f"{folder / FOLDER} does not fit or is damaged: {error!r}") from error
    return found
