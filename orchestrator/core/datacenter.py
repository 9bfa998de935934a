"""NVIDIA's GPUs for servers and workstations, as rows of the catalogue.

They accumulate in fp32 at the full speed of their tensor cores. Decides nothing.
"""

from __future__ import annotations

from orchestrator.core.hardware import BF16, FACTS, FP16, FP32, MFU_FACTS, MFU_GUESS, Accelerator, row

# Both: docs/references/accelerators.md#torch-builds
_NO_PASCAL = (
    "a build for CUDA 12.6 or older: wheels from cu128 on lack sm_60, so memory can be allocated, but every "
    "operation fails"
)
_NO_VOLTA = "a build for CUDA 12.6 or older: since torch 2.11, wheels from cu128 on lack sm_70"


def rows() -> tuple[tuple[str, Accelerator], ...]:
    return (*_before_ampere(), *_ampere(), *_ada(), *_hopper_and_later())


def _before_ampere() -> tuple[tuple[str, Accelerator], ...]:
    return (
        row("K80half", "sm_37", memory_gb=12, gigabytes_per_second=240, teraflops={FP32: 4.1}, mfu=0.5,
            source=f"{FACTS}; one of the two GPUs of a Tesla K80", mfu_source=MFU_FACTS,
            retired="CUDA 12.0 removed Kepler (sm_37), and so did torch"),
        row("P100", "sm_60", memory_gb=16, gigabytes_per_second=732, teraflops={FP16: 18.7, FP32: 9.3},
            mfu=0.3, source=f"{FACTS}; no tensor cores", mfu_source=MFU_FACTS, needs_torch=_NO_PASCAL),
        row("P100-12GB", "sm_60", memory_gb=12, gigabytes_per_second=549, teraflops={FP16: 18.7, FP32: 9.3},
            mfu=0.3, source="NVIDIA Tesla P100 datasheet (PCIe, 12 GB); no tensor cores",
            mfu_source=MFU_FACTS, needs_torch=_NO_PASCAL),
        row("V100", "sm_70", memory_gb=32, gigabytes_per_second=900, teraflops={FP16: 125, FP32: 15.7},
            mfu=0.33, source=f"{FACTS}; fp32: NVIDIA V100 datasheet (SXM2)", mfu_source=MFU_FACTS,
            needs_torch=_NO_VOLTA),
        row("V100-16GB", "sm_70", memory_gb=16, gigabytes_per_second=900, teraflops={FP16: 125, FP32: 15.7},
            mfu=0.33, source="NVIDIA V100 datasheet (SXM2, 16 GB)", mfu_source=MFU_FACTS,
            needs_torch=_NO_VOLTA),
        row("TITANV", "sm_70", memory_gb=12, gigabytes_per_second=653, teraflops={FP16: 110, FP32: 13.8},
            mfu=0.33, source="NVIDIA TITAN V product page", needs_torch=_NO_VOLTA),
        row("T4", "sm_75", memory_gb=15, gigabytes_per_second=320, teraflops={FP16: 65, FP32: 8.1},
            mfu=0.3, source=f"{FACTS}; fp32: NVIDIA T4 datasheet", mfu_source=MFU_FACTS,
            memory_source=f"{FACTS}: 15 GB of its 16 are left to programs"),
        row("T4x2", "sm_75", devices=2, memory_gb=15, gigabytes_per_second=640,
            teraflops={FP16: 130, FP32: 16.2}, mfu=0.28, source=f"two T4; {FACTS}", mfu_source=MFU_FACTS),
        *(row(name, "sm_75", memory_gb=memory, gigabytes_per_second=speed, teraflops={FP16: fp16, FP32: fp32},
              mfu=0.3, source="NVIDIA Quadro RTX datasheets (Turing)")
          for name, memory, speed, fp16, fp32 in (
              ("QuadroRTX4000", 8, 416, 57, 7.1), ("QuadroRTX5000", 16, 448, 89.2, 11.2),
              ("QuadroRTX6000", 24, 672, 130.5, 16.3), ("QuadroRTX8000", 48, 672, 130.5, 16.3))),
    )  # fmt: skip


def _modern(
    name: str, arch: str, memory: float, speed: float, half: float, fp32: float, source: str, *,
    mfu: float, mfu_source: str = MFU_GUESS,
) -> tuple[str, Accelerator]:  # fmt: skip
    return row(
        name, arch, memory_gb=memory, gigabytes_per_second=speed,
        teraflops={FP16: half, BF16: half, FP32: fp32}, mfu=mfu, source=source, mfu_source=mfu_source,
    )  # fmt: skip


def _ampere() -> tuple[tuple[str, Accelerator], ...]:
    # name, GB, GB/s, fp16 and bf16, fp32
    boards = (
        ("A2", 16, 200, 18, 4.5), ("A10", 24, 600, 125, 31.2), ("A10G", 24, 600, 70, 35),
        ("A16", 16, 200, 17.9, 4.5), ("A40", 48, 696, 149.7, 37.4), ("RTXA2000", 6, 288, 31.9, 8.0),
        ("RTXA2000-12GB", 12, 288, 31.9, 8.0), ("RTXA4000", 16, 448, 76.7, 19.2),
        ("RTXA4500", 20, 640, 94.6, 23.7), ("RTXA5000", 24, 768, 111.1, 27.8),
        ("RTXA5500", 24, 768, 136.4, 34.1), ("RTXA6000", 48, 768, 154.8, 38.7),
    )  # fmt: skip
    return (
        *(_modern(name, "sm_86", memory, speed, half, fp32,
                  f"NVIDIA {name.removeprefix('RTX')} datasheet; half of its sparse figure", mfu=0.4)
          for name, memory, speed, half, fp32 in boards),
        _modern("A30", "sm_80", 24, 933, 165, 10.3, "NVIDIA A30 datasheet", mfu=0.4),
        _modern("A100", "sm_80", 40, 1555, 312, 19.5, "NVIDIA A100 datasheet, 40 GB", mfu=0.4),
        _modern("A100-80GB", "sm_80", 80, 2039, 312, 19.5,
                "NVIDIA A100 datasheet, 80 GB (SXM; PCIe has 1,935 GB/s)", mfu=0.4),
    )  # fmt: skip


def _ada() -> tuple[tuple[str, Accelerator], ...]:
    workstation = (
        ("RTX2000Ada", 16, 224, 48, 12.0), ("RTX4000SFFAda", 20, 280, 76.7, 19.2),
        ("RTX4000Ada", 20, 360, 106.9, 26.7), ("RTX4500Ada", 24, 432, 158.5, 39.6),
        ("RTX5000Ada", 32, 576, 261.1, 65.3), ("RTX6000Ada", 48, 960, 364.2, 91.1),
    )  # fmt: skip
    return (
        _modern("L4", "sm_89", 24, 300, 121, 30.3, "NVIDIA L4 datasheet", mfu=0.35),
        _modern("L40", "sm_89", 48, 864, 181, 90.5, "NVIDIA L40 datasheet", mfu=0.35),
        _modern("L40S", "sm_89", 48, 864, 362, 91.6, "NVIDIA L40S datasheet", mfu=0.35),
        *(_modern(name, "sm_89", memory, speed, half, fp32,
                  "NVIDIA RTX Ada Generation datasheet; a quarter of its sparse fp8 figure", mfu=0.4)
          for name, memory, speed, half, fp32 in workstation),
    )  # fmt: skip


def _hopper_and_later() -> tuple[tuple[str, Accelerator], ...]:
    return (
        _modern("RTXPRO6000", "sm_120", 96, 1597, 500, 120,
                "NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet; half of its sparse 1 PFLOP/s",
                mfu=0.35),
        _modern("H100", "sm_90", 80, 3350, 989, 67, "NVIDIA H100 datasheet (SXM)", mfu=0.35),
        _modern("H100PCIe", "sm_90", 80, 2000, 756, 51, "NVIDIA H100 PCIe datasheet", mfu=0.35),
        _modern("H100NVL", "sm_90", 94, 3900, 835, 60, "NVIDIA H100 NVL datasheet, one of its GPUs",
                mfu=0.35),
        _modern("H200", "sm_90", 141, 4800, 989, 67, f"{FACTS}; fp32: NVIDIA H200 datasheet (SXM)",
                mfu=0.35, mfu_source=MFU_FACTS),
        _modern("H200NVL", "sm_90", 141, 4800, 835, 60, "NVIDIA H200 datasheet (NVL)", mfu=0.35),
        _modern("GH200", "sm_90", 96, 4000, 989, 67, "NVIDIA GH200 datasheet (96 GB HBM3)", mfu=0.35),
        _modern("GH200-144GB", "sm_90", 144, 4900, 989, 67, "NVIDIA GH200 datasheet (144 GB HBM3e)",
                mfu=0.35),
        _modern("B200", "sm_100", 180, 8000, 2250, 75,
                "NVIDIA DGX B200 datasheet, an eighth of it; half of its sparse figure", mfu=0.35),
    )  # fmt: skip
