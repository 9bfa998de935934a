"""The catalogue of accelerators: the memory and peak speed of each, with sources.

Decides nothing. Must never know platforms, jobs or prices. `orchestrator.core.speed` learns how fast an
accelerator really is. If a vendor gives two figures, the catalogue has the dense one, without sparsity.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from orchestrator.core import datacenter, geforce
from orchestrator.core.hardware import BF16, FACTS, FP16, FP32, MFU_FACTS, Accelerator, row

__all__ = ["DEVICES_MAX", "Accelerator", "catalogue", "several_of", "split"]

DEVICES_MAX = 64  # a name such as H100x8 counts the GPUs of one machine
_SEVERAL = re.compile(r"(.+?)x([1-9][0-9]?)")
_TPU = "Google Cloud TPU system architecture, figures per chip"
_TPU_FP32 = "fp32 assumed a third of bf16, three bf16 passes a product"
_SHARE_TOGETHER = 0.93  # of one GPU's: T4x2 against T4 in docs/references/accelerators.md#share-of-the-peak


def _tpu() -> tuple[tuple[str, Accelerator], ...]:
    return (
        row("TPUv2-8", "tpu-v2", devices=8, memory_gb=8, gigabytes_per_second=2400,
             teraflops={BF16: 180, FP32: 60}, mfu=0.3, source=f"{FACTS}; {_TPU_FP32}",
             mfu_source=MFU_FACTS, memory_source=f"{FACTS}: 64 GB over eight cores",
             # docs/references/accelerators.md#retired
             retired="Colab replaced it with TPUv5e-1 in September 2025"),
        row("TPUv3-8", "tpu-v3", devices=8, memory_gb=16, gigabytes_per_second=3600,
             teraflops={BF16: 492, FP32: 164}, mfu=0.3, source=f"{_TPU}, times four; {_TPU_FP32}",
             # docs/references/kaggle.md#accelerators
             retired="Kaggle retired it and silently gives a TPUv5e-8"),
        row("TPUv5e-1", "tpu-v5e", memory_gb=16, gigabytes_per_second=819,
             teraflops={BF16: 197, FP32: 65.7}, mfu=0.35, source=f"{FACTS}; {_TPU_FP32}",
             mfu_source=MFU_FACTS),
        row("TPUv5e-8", "tpu-v5e", devices=8, memory_gb=16, gigabytes_per_second=6552,
             teraflops={BF16: 1576, FP32: 525}, mfu=0.3, source=f"eight TPUv5e-1; {FACTS}; {_TPU_FP32}"),
        row("TPUv6e-1", "tpu-v6e", memory_gb=32, gigabytes_per_second=1640,
             teraflops={BF16: 918, FP32: 306}, mfu=0.35, source=f"Google Cloud TPU v6e page; {_TPU_FP32}"),
    )  # fmt: skip


def _cpu() -> tuple[tuple[str, Accelerator], ...]:
    # The peak is that of a large host, so that it bounds every host. The expected share is what eight AVX2
    # cores at 3 GHz reach, at 0.3 of their own 0.77 TFLOP/s.
    source = "AMD EPYC 9654 datasheet: 96 cores at 3.55 GHz, 32 fp32 FLOP a cycle, twice as many in bf16"
    return (
        row("cpu", "cpu", memory_gb=8, gigabytes_per_second=460, teraflops={FP32: 10.9, BF16: 21.8},
             mfu=0.02, source=source, memory_source="assumption: a small host; the offer knows better",
             mfu_source="assumption: eight AVX2 cores at 3 GHz, 0.3 of their peak"),
    )  # fmt: skip


def _mps() -> tuple[tuple[str, Accelerator], ...]:
    # Its arch is no GPU's for packages: torch has one build for Macs, and nothing of CUDA.
    return (
        row("MPS", "mps", memory_gb=8, gigabytes_per_second=819, teraflops={FP16: 28.4, FP32: 28.4}, mfu=0.1,
            source="Apple M3 Ultra, 80 GPU cores: assumed 0.355 TFLOP/s a core, in fp16 as in fp32",
            memory_source="assumption: what a Mac of 16 GB leaves to its GPU; the memory is unified",
            mfu_source="assumption: most Macs have an eighth to a half of these cores"),
    )  # fmt: skip


def several_of(one: Accelerator, count: int) -> Accelerator:
    """`count` devices of this single one, used together, such as `T4x2`."""
    source = {part: f"{count} × {one.name}: {text}" for part, text in one.sources.items()}
    source["mfu"] = f"assumption: {_SHARE_TOGETHER:g} of one {one.name}'s, as T4x2 against T4"
    return Accelerator(
        name=f"{one.name}x{count}",
        devices=count,
        memory_gb=one.memory_gb,
        peak_flops=MappingProxyType({each: count * figure for each, figure in one.peak_flops.items()}),
        bandwidth=count * one.bandwidth,
        arch=one.arch,
        mfu=round(one.mfu * _SHARE_TOGETHER, 3),
        sources=MappingProxyType(source),
        needs_torch=one.needs_torch,
        retired=one.retired,
        gpu_names=one.gpu_names,
    )


def split(name: str) -> tuple[str, int] | None:
    """`RTX4090x2` as `RTX4090` and 2; None for a name that counts nothing, or more than is allowed."""
    match = _SEVERAL.fullmatch(name)
    count = int(match[2]) if match else 0
    return (match[1], count) if match and 2 <= count <= DEVICES_MAX else None


class _Catalogue(Mapping[str, Accelerator]):
    """The rows by name. Several GPUs of a row follow from it by rule, so iteration lists only the rows."""

    def __init__(self, rows: Iterable[tuple[str, Accelerator]]) -> None:
        self._listed = dict(rows)
        self._several: dict[str, Accelerator] = {}

    def __getitem__(self, name: str) -> Accelerator:
        found = self._listed.get(name) or self._several.get(name)
        parts = split(name) if found is None and isinstance(name, str) else None
        one = None if parts is None else self._listed.get(parts[0])
        if parts is not None and one is not None and one.arch.startswith("sm_") and one.devices == 1:
            found = self._several.setdefault(name, several_of(one, parts[1]))
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)


catalogue: Mapping[str, Accelerator] = _Catalogue(
    (*datacenter.rows(), *geforce.rows(), *_tpu(), *_cpu(), *_mps())
)
"""Every accelerator by its name; names are case-sensitive. Several of a GPU are there too (`RTX4090x2`)."""
