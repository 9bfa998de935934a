"""The catalogue of accelerators: the memory and peak speed of each, with sources.

Decides nothing. Must never know platforms, jobs or prices. `orchestrator.core.speed` learns how fast an
accelerator really is. If a vendor gives two figures, the catalogue has the dense one, without sparsity.
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
    the accelerator is no longer available. `sources` gives the source of each field.
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


_FACTS = "docs/references/accelerators.md#peaks"
_MFU_FACTS = "assumption, docs/references/accelerators.md#share-of-the-peak"
_MFU_GUESS = "assumption: as its kind in docs/references/accelerators.md#share-of-the-peak"
_AMPERE = "NVIDIA Ampere GA102 architecture whitepaper"
_TPU = "Google Cloud TPU system architecture, figures per chip"
_TPU_FP32 = "fp32 assumed a third of bf16, three bf16 passes a product"
# Both: docs/references/accelerators.md#torch-builds
_NO_PASCAL = (
    "a build for CUDA 12.6 or older: wheels from cu128 on lack sm_60, so memory can be allocated, but every "
    "operation fails"
)
_NO_VOLTA = "a build for CUDA 12.6 or older: since torch 2.11, wheels from cu128 on lack sm_70"


def _row(
    name: str,
    arch: str,
    *,
    memory_gb: float,
    gigabytes_per_second: float,
    teraflops: Mapping[Precision, float],
    mfu: float,
    source: str,
    mfu_source: str = _MFU_GUESS,
    memory_source: str = "",
    devices: int = 1,
    needs_torch: str | None = None,
    retired: str | None = None,
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
    row = Accelerator(
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
    )
    return name, row


def _cuda() -> tuple[tuple[str, Accelerator], ...]:
    return (
        _row("K80half", "sm_37", memory_gb=12, gigabytes_per_second=240, teraflops={FP32: 4.1}, mfu=0.5,
             source=f"{_FACTS}; one of the two GPUs of a Tesla K80", mfu_source=_MFU_FACTS,
             retired="CUDA 12.0 removed Kepler (sm_37), and so did torch"),
        _row("P100", "sm_60", memory_gb=16, gigabytes_per_second=732, teraflops={FP16: 18.7, FP32: 9.3},
             mfu=0.3, source=f"{_FACTS}; no tensor cores", mfu_source=_MFU_FACTS, needs_torch=_NO_PASCAL),
        _row("V100", "sm_70", memory_gb=32, gigabytes_per_second=900, teraflops={FP16: 125, FP32: 15.7},
             mfu=0.33, source=f"{_FACTS}; fp32: NVIDIA V100 datasheet (SXM2)", mfu_source=_MFU_FACTS,
             needs_torch=_NO_VOLTA),
        _row("T4", "sm_75", memory_gb=15, gigabytes_per_second=320, teraflops={FP16: 65, FP32: 8.1},
             mfu=0.3, source=f"{_FACTS}; fp32: NVIDIA T4 datasheet", mfu_source=_MFU_FACTS,
             memory_source=f"{_FACTS}: 15 GB of its 16 are left to programs"),
        _row("T4x2", "sm_75", devices=2, memory_gb=15, gigabytes_per_second=640,
             teraflops={FP16: 130, FP32: 16.2}, mfu=0.28, source=f"two T4; {_FACTS}", mfu_source=_MFU_FACTS),
        _row("RTX3050", "sm_86", memory_gb=8, gigabytes_per_second=224,
             teraflops={FP16: 18.2, BF16: 18.2, FP32: 9.1}, mfu=0.35,
             source=f"{_FACTS}, accumulating in fp32; bf16 the same and fp32 half of it, as all GA10x",
             mfu_source=_MFU_FACTS),
        _row("RTX3070", "sm_86", memory_gb=8, gigabytes_per_second=448,
             teraflops={FP16: 40.6, BF16: 40.6, FP32: 20.3}, mfu=0.4,
             source=f"{_AMPERE}, accumulating in fp32"),
        _row("RTX3090", "sm_86", memory_gb=24, gigabytes_per_second=936,
             teraflops={FP16: 71, BF16: 71, FP32: 35.6}, mfu=0.45,
             source=f"{_FACTS}, accumulating in fp32; bf16 and fp32: {_AMPERE}", mfu_source=_MFU_FACTS),
        _row("L4", "sm_89", memory_gb=24, gigabytes_per_second=300,
             teraflops={FP16: 121, BF16: 121, FP32: 30.3}, mfu=0.35, source="NVIDIA L4 datasheet"),
        _row("A100", "sm_80", memory_gb=40, gigabytes_per_second=1555,
             teraflops={FP16: 312, BF16: 312, FP32: 19.5}, mfu=0.4,
             source="NVIDIA A100 datasheet, 40 GB"),
        _row("RTXPRO6000", "sm_120", memory_gb=96, gigabytes_per_second=1597,
             teraflops={FP16: 500, BF16: 500, FP32: 120}, mfu=0.35,
             source="NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; half of its sparse 1 PFLOP/s"),
        _row("H100", "sm_90", memory_gb=80, gigabytes_per_second=3350,
             teraflops={FP16: 989, BF16: 989, FP32: 67}, mfu=0.35, source="NVIDIA H100 datasheet (SXM)"),
        _row("H200", "sm_90", memory_gb=141, gigabytes_per_second=4800,
             teraflops={FP16: 989, BF16: 989, FP32: 67}, mfu=0.35,
             source=f"{_FACTS}; fp32: NVIDIA H200 datasheet (SXM)", mfu_source=_MFU_FACTS),
    )  # fmt: skip


def _tpu() -> tuple[tuple[str, Accelerator], ...]:
    return (
        _row("TPUv2-8", "tpu-v2", devices=8, memory_gb=8, gigabytes_per_second=2400,
             teraflops={BF16: 180, FP32: 60}, mfu=0.3, source=f"{_FACTS}; {_TPU_FP32}",
             mfu_source=_MFU_FACTS, memory_source=f"{_FACTS}: 64 GB over eight cores",
             # docs/references/accelerators.md#retired
             retired="Colab replaced it with TPUv5e-1 in September 2025"),
        _row("TPUv3-8", "tpu-v3", devices=8, memory_gb=16, gigabytes_per_second=3600,
             teraflops={BF16: 492, FP32: 164}, mfu=0.3, source=f"{_TPU}, times four; {_TPU_FP32}",
             # docs/references/kaggle.md#accelerators
             retired="Kaggle retired it and silently substitutes another machine"),
        _row("TPUv5e-1", "tpu-v5e", memory_gb=16, gigabytes_per_second=819,
             teraflops={BF16: 197, FP32: 65.7}, mfu=0.35, source=f"{_FACTS}; {_TPU_FP32}",
             mfu_source=_MFU_FACTS),
        _row("TPUv5e-8", "tpu-v5e", devices=8, memory_gb=16, gigabytes_per_second=6552,
             teraflops={BF16: 1576, FP32: 525}, mfu=0.3, source=f"eight TPUv5e-1; {_FACTS}; {_TPU_FP32}"),
        _row("TPUv6e-1", "tpu-v6e", memory_gb=32, gigabytes_per_second=1640,
             teraflops={BF16: 918, FP32: 306}, mfu=0.35, source=f"Google Cloud TPU v6e page; {_TPU_FP32}"),
    )  # fmt: skip


def _cpu() -> tuple[tuple[str, Accelerator], ...]:
    # The peak is that of a large host, so that it bounds every host. The expected share is what eight AVX2
    # cores at 3 GHz reach, at 0.3 of their own 0.77 TFLOP/s.
    source = "AMD EPYC 9654 datasheet: 96 cores at 3.55 GHz, 32 fp32 FLOP a cycle, twice as many in bf16"
    return (
        _row("cpu", "cpu", memory_gb=8, gigabytes_per_second=460, teraflops={FP32: 10.9, BF16: 21.8},
             mfu=0.02, source=source, memory_source="assumption: a small host; the offer knows better",
             mfu_source="assumption: eight AVX2 cores at 3 GHz, 0.3 of their peak"),
    )  # fmt: skip


catalogue: Mapping[str, Accelerator] = MappingProxyType(dict((*_cuda(), *_tpu(), *_cpu())))
"""Every accelerator by its name; names are case-sensitive."""
