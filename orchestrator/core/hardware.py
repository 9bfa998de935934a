"""What the catalogue says of an accelerator, and how a row of it is written.

Knows no accelerator: the rows are in `geforce`, `datacenter` and `accelerators`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from orchestrator.core.job import Kind, Precision

FP32, BF16, FP16 = Precision.FP32, Precision.BF16, Precision.FP16


@dataclass(frozen=True, eq=False)
class Accelerator:
    """One row of the catalogue; compared by identity, because every name has one row.

    `devices` is how many devices a training process sees, and `memory_gb` the memory of each (for `cpu` the
    minimum; the offer knows the host). `peak_flops` (FLOP/s) and `bandwidth` (bytes/s) are of the whole
    accelerator. A precision that is missing from `peak_flops` is not native: it is emulated, slower than the
    next wider one, or refused. `arch` is CUDA's `sm_…` for GPUs. `mfu` is the share of the peak that a first
    guess expects. `needs_torch` says which torch builds work, if the usual ones do not. `retired` says why
    the accelerator is no longer available. `gpu_names`: the driver's names for it, if `gpu_names.py` does not
    find them by rule. `sources` gives the source of each field.
    """

    name: str
    devices: int
    memory_gb: float
    peak_flops: Mapping[Precision, float]
    bandwidth: float
    arch: str
    mfu: float
    sources: Mapping[str, str]
    needs_torch: str | None = None
    retired: str | None = None
    gpu_names: tuple[str, ...] = ()

    @property
    def kind(self) -> Kind:
        """What packages for it are built for: `cpu`, `gpu` or `tpu`."""
        if self.arch.startswith("sm_"):
            return Kind.GPU
        return Kind.TPU if self.arch.startswith("tpu-") else Kind.CPU

    @property
    def precisions(self) -> frozenset[Precision]:
        """The precisions it computes natively."""
        return frozenset(self.peak_flops)


FACTS = "docs/references/accelerators.md#peaks"
MFU_FACTS = "assumption, docs/references/accelerators.md#share-of-the-peak"
MFU_GUESS = "assumption: as its kind in docs/references/accelerators.md#share-of-the-peak"


def row(
    name: str,
    arch: str,
    *,
    memory_gb: float,
    gigabytes_per_second: float,
    teraflops: Mapping[Precision, float],
    mfu: float,
    source: str,
    mfu_source: str = MFU_GUESS,
    memory_source: str = "",
    devices: int = 1,
    needs_torch: str | None = None,
    retired: str | None = None,
    gpu_names: tuple[str, ...] = (),
) -> tuple[str, Accelerator]:
    sources = {
        "devices": source,
        "arch": source,
        "peak_flops": source,
        "bandwidth": source,
        "memory_gb": memory_source or source,
        "mfu": mfu_source,
    }
    peak = MappingProxyType({precision: figure * 1e12 for precision, figure in teraflops.items()})
    made = Accelerator(
        name=name,
        devices=devices,
        memory_gb=memory_gb,
        peak_flops=peak,
        bandwidth=gigabytes_per_second * 1e9,
        arch=arch,
        mfu=mfu,
        sources=MappingProxyType(sources),
        needs_torch=needs_torch,
        retired=retired,
        gpu_names=gpu_names,
    )
    return name, made
