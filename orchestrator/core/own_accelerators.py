"""The user's own accelerators: what the config says of one, and how any accelerator's row is found.

An offer carries what its config says, and so do the orders and measurements that come from it. So nothing
depends on the config of the machine that reads them. Pure; ships with the agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol

from orchestrator.core.accelerators import Accelerator, catalogue, several_of, split
from orchestrator.core.hardware import row as catalogue_row
from orchestrator.core.job import Precision

_SOURCE = "the config's `accelerators`"
_MFU = 0.35
_MFU_CPU = 0.1
_ROWS_KEPT = 256


@dataclass(frozen=True)
class OwnAccelerator:
    """A device that the catalogue lacks, as the user describes it. `gpu_names`: the driver's names for it;
    without any, its GPUs are not told from others."""

    name: str
    memory_gb: float
    arch: str
    teraflops: tuple[tuple[Precision, float], ...]
    gigabytes_per_second: float = 0.0
    gpu_names: tuple[str, ...] = ()


Own = Mapping[str, OwnAccelerator]
NO_OWN: Own = MappingProxyType({})


class Place(Protocol):
    """What names an accelerator: an offer, an order or a measurement."""

    @property
    def accelerator(self) -> str: ...

    @property
    def own(self) -> OwnAccelerator | None: ...


def row_of(place: Place) -> Accelerator | None:
    """Its row; None if this version knows none of that name."""
    return _row(place.accelerator, place.own)


def row_named(name: str, own: Own = NO_OWN) -> Accelerator | None:
    """The row of this name in the catalogue or among the user's."""
    return _row(name, own_named(name, own))


def own_named(name: str, own: Own) -> OwnAccelerator | None:
    """What the user says of one device of the accelerator; None if the catalogue has it."""
    parts = split(name)
    return own.get(name) or (own.get(parts[0]) if parts else None)


@lru_cache(_ROWS_KEPT)
def _row(name: str, own: OwnAccelerator | None) -> Accelerator | None:
    parts = split(name)
    if own is None:
        return catalogue.get(name)
    if name == own.name:
        return _single(own)
    counts = parts is not None and parts[0] == own.name and own.arch.startswith("sm_")
    return several_of(_single(own), parts[1]) if parts is not None and counts else None


@lru_cache(_ROWS_KEPT)
def _single(own: OwnAccelerator) -> Accelerator:
    _, made = catalogue_row(
        own.name,
        own.arch,
        memory_gb=own.memory_gb,
        gigabytes_per_second=own.gigabytes_per_second,
        teraflops=dict(own.teraflops),
        mfu=_MFU_CPU if own.arch == "cpu" else _MFU,
        source=_SOURCE,
        gpu_names=own.gpu_names,
    )
    return made
