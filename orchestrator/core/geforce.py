"""NVIDIA's GPUs for desktops and laptops, as rows of the catalogue.

GeForce cards accumulate fp16 products in fp32 at half the speed of their tensor cores, and training needs
that: the figures are those. Decides nothing.
"""

from __future__ import annotations

from orchestrator.core.hardware import BF16, FACTS, FP16, FP32, MFU_FACTS, MFU_GUESS, Accelerator, row

_TURING = "NVIDIA Turing TU102 architecture whitepaper and GeForce product pages"
_TURING_16 = "NVIDIA GeForce GTX 16 product pages; no tensor cores, fp16 at twice the rate of fp32"
_AMPERE = "NVIDIA Ampere GA102 architecture whitepaper"
_ADA = "NVIDIA Ada GPU architecture whitepaper and GeForce product pages"
_BLACKWELL = "NVIDIA RTX Blackwell GPU architecture whitepaper and GeForce product pages"
_LAPTOP = "NVIDIA's comparison of GeForce laptop GPUs: cores × 2 × highest boost clock, which few reach"
_SHARE_LAPTOP = "assumption: less than a desktop's, because a laptop's power is limited"


def rows() -> tuple[tuple[str, Accelerator], ...]:
    return (*_turing(), *_ampere(), *_ada(), *_blackwell(), *_laptops())


def _turing() -> tuple[tuple[str, Accelerator], ...]:
    # name, GB, GB/s, fp32
    tensor = (
        ("RTX2060", 6, 336, 6.5), ("RTX2060-12GB", 12, 336, 7.2), ("RTX2060Super", 8, 448, 7.2),
        ("RTX2070", 8, 448, 7.5), ("RTX2070Super", 8, 448, 9.1), ("RTX2080", 8, 448, 10.1),
        ("RTX2080Super", 8, 496, 11.2), ("RTX2080Ti", 11, 616, 13.4),
    )  # fmt: skip
    plain = (
        ("GTX1650", 4, 128, 3.0), ("GTX1650Super", 4, 192, 4.4), ("GTX1660", 6, 192, 5.0),
        ("GTX1660Super", 6, 336, 5.0), ("GTX1660Ti", 6, 288, 5.4),
    )  # fmt: skip
    return (
        *(row(name, "sm_75", memory_gb=memory, gigabytes_per_second=speed,
              teraflops={FP16: round(4 * fp32, 1), FP32: fp32}, mfu=0.3,
              source=f"{_TURING}; fp16 accumulating in fp32: four times fp32")
          for name, memory, speed, fp32 in tensor),
        *(row(name, "sm_75", memory_gb=memory, gigabytes_per_second=speed,
              teraflops={FP16: 2 * fp32, FP32: fp32}, mfu=0.3, source=_TURING_16)
          for name, memory, speed, fp32 in plain),
        row("TITANRTX", "sm_75", memory_gb=24, gigabytes_per_second=672,
            teraflops={FP16: 130.5, FP32: 16.3}, mfu=0.3, source=f"{_TURING}; accumulates at full speed"),
    )  # fmt: skip


def _modern(
    name: str, arch: str, memory: float, speed: float, fp32: float, source: str, *, mfu: float = 0.4,
    mfu_source: str = MFU_GUESS,
) -> tuple[str, Accelerator]:  # fmt: skip
    """From GA10x on: fp16 and bf16, accumulating in fp32, at twice the rate of fp32."""
    half = round(2 * fp32, 1)
    return row(
        name, arch, memory_gb=memory, gigabytes_per_second=speed,
        teraflops={FP16: half, BF16: half, FP32: fp32}, mfu=mfu, source=source, mfu_source=mfu_source,
    )  # fmt: skip


def _ampere() -> tuple[tuple[str, Accelerator], ...]:
    source = f"{_AMPERE}, accumulating in fp32"
    rest = (
        ("RTX3050-6GB", 6, 168, 6.8), ("RTX3060", 12, 360, 12.7), ("RTX3060-8GB", 8, 240, 12.7),
        ("RTX3060Ti", 8, 448, 16.2), ("RTX3070", 8, 448, 20.3), ("RTX3070Ti", 8, 608, 21.7),
        ("RTX3080", 10, 760, 29.8), ("RTX3080-12GB", 12, 912, 30.6), ("RTX3080Ti", 12, 912, 34.1),
        ("RTX3090Ti", 24, 1008, 40.0),
    )  # fmt: skip
    return (
        row("RTX3050", "sm_86", memory_gb=8, gigabytes_per_second=224,
            teraflops={FP16: 18.2, BF16: 18.2, FP32: 9.1}, mfu=0.35,
            source=f"{FACTS}, accumulating in fp32; bf16 the same and fp32 half of it, as all GA10x",
            mfu_source=MFU_FACTS),
        row("RTX3090", "sm_86", memory_gb=24, gigabytes_per_second=936,
            teraflops={FP16: 71, BF16: 71, FP32: 35.6}, mfu=0.45,
            source=f"{FACTS}, accumulating in fp32; bf16 and fp32: {_AMPERE}", mfu_source=MFU_FACTS),
        *(_modern(name, "sm_86", memory, speed, fp32, source) for name, memory, speed, fp32 in rest),
    )  # fmt: skip


def _ada() -> tuple[tuple[str, Accelerator], ...]:
    all_of = (
        ("RTX4060", 8, 272, 15.1), ("RTX4060Ti", 8, 288, 22.1), ("RTX4060Ti-16GB", 16, 288, 22.1),
        ("RTX4070", 12, 504, 29.1), ("RTX4070Super", 12, 504, 35.5), ("RTX4070Ti", 12, 504, 40.1),
        ("RTX4070TiSuper", 16, 672, 44.1), ("RTX4080", 16, 717, 48.7), ("RTX4080Super", 16, 736, 52.2),
        ("RTX4090D", 24, 1008, 73.5), ("RTX4090", 24, 1008, 82.6),
    )  # fmt: skip
    source = f"{_ADA}, accumulating in fp32"
    return tuple(_modern(name, "sm_89", memory, speed, fp32, source) for name, memory, speed, fp32 in all_of)


def _blackwell() -> tuple[tuple[str, Accelerator], ...]:
    all_of = (
        ("RTX5050", 8, 320, 13.2), ("RTX5060", 8, 448, 19.2), ("RTX5060Ti", 8, 448, 23.7),
        ("RTX5060Ti-16GB", 16, 448, 23.7), ("RTX5070", 12, 672, 30.9), ("RTX5070Ti", 16, 896, 43.9),
        ("RTX5080", 16, 960, 56.3), ("RTX5090", 32, 1792, 104.8),
    )  # fmt: skip
    source = f"{_BLACKWELL}, accumulating in fp32"
    return tuple(_modern(name, "sm_120", memory, speed, fp32, source) for name, memory, speed, fp32 in all_of)


def _laptops() -> tuple[tuple[str, Accelerator], ...]:
    """Those that are not the desktop's card of the same name with the same memory."""
    all_of = (
        ("RTX3050Laptop", "sm_86", 4, 192, 7.1), ("RTX3050TiLaptop", "sm_86", 4, 192, 8.7),
        ("RTX3060Laptop", "sm_86", 6, 336, 13.1), ("RTX3080Laptop", "sm_86", 8, 448, 21.0),
        ("RTX3080Laptop-16GB", "sm_86", 16, 448, 21.0), ("RTX3080TiLaptop", "sm_86", 16, 512, 23.6),
        ("RTX4050Laptop", "sm_89", 6, 192, 12.1), ("RTX4070Laptop", "sm_89", 8, 256, 20.0),
        ("RTX4080Laptop", "sm_89", 12, 432, 33.9), ("RTX4090Laptop", "sm_89", 16, 576, 39.7),
        ("RTX5070Laptop", "sm_120", 8, 384, 23.2), ("RTX5070TiLaptop", "sm_120", 12, 672, 28.4),
        ("RTX5080Laptop", "sm_120", 16, 896, 40.7), ("RTX5090Laptop", "sm_120", 24, 896, 50.4),
    )  # fmt: skip
    return tuple(
        _modern(name, arch, memory, speed, fp32, _LAPTOP, mfu=0.3, mfu_source=_SHARE_LAPTOP)
        for name, arch, memory, speed, fp32 in all_of
    )
