"""GPU names as nvidia-smi prints them, and the catalogue's names."""

from __future__ import annotations

import pytest

from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import accelerator_of, may_be, several


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "RTX3050Laptop"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "RTX3050-6GB"),
        ("NVIDIA GeForce RTX 3070", "RTX3070"),
        ("NVIDIA GeForce RTX 3070 Ti", "RTX3070Ti"),
        ("GeForce RTX 3090", "RTX3090"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA GeForce RTX 4090 D", "RTX4090D"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX4090Laptop"),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "RTX4060"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "RTX4070TiSuper"),
        ("NVIDIA GeForce RTX 2070 with Max-Q Design", "RTX2070"),
        ("NVIDIA GeForce GTX 1660 SUPER", "GTX1660Super"),
        ("Quadro RTX 6000", "QuadroRTX6000"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000Ada"),
        ("NVIDIA RTX 4000 SFF Ada Generation", "RTX4000SFFAda"),
        ("NVIDIA RTX A6000", "RTXA6000"),
        ("NVIDIA TITAN RTX", "TITANRTX"),
        ("Tesla T4", "T4"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla P100-PCIE-12GB", "P100-12GB"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("Tesla K80", "K80half"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("NVIDIA A100 80GB PCIe", "A100-80GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100PCIe"),
        ("NVIDIA H100 NVL", "H100NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200NVL"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "RTXPRO6000"),
        ("NVIDIA A100-SXM-64GB", None),
        ("NVIDIA GeForce GT 1030", None),
        ("Quadro P6000", None),
        ("NVIDIA T400 4GB", None),
        ("GRID T4-8Q", None),
        ("Apple M3", None),
        ("cpu", None),
        ("MPS", None),
        ("", None),
    ],
)
def test_a_name_is_a_row_or_none(name: str, row: str | None) -> None:
    assert accelerator_of(name) == row


@pytest.mark.parametrize(
    ("name", "mib", "row"),
    [
        ("NVIDIA GeForce RTX 3080", 10240, "RTX3080"),
        ("NVIDIA GeForce RTX 3080", 12288, "RTX3080-12GB"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16384, "RTX3080Laptop-16GB"),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 6144, "RTX3050-6GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, "RTX4060Ti-16GB"),
        ("NVIDIA GeForce RTX 4090", 24564, "RTX4090"),
        ("NVIDIA GeForce RTX 4090", 49140, None),  # a rebuilt card with twice the memory
        ("NVIDIA RTX 5000 Ada Generation Laptop GPU", 16376, None),
        ("NVIDIA A10G", 23028, "A10G"),
        ("Tesla T4", 15360, "T4"),
        ("NVIDIA GH200 480GB", 97871, "GH200"),
        ("NVIDIA GH200 480GB", 147456, "GH200-144GB"),
        ("NVIDIA B200", 183359, "B200"),
        ("NVIDIA H200", 143771, "H200"),
    ],
)
def test_the_memory_tells_rows_of_one_name_apart(name: str, mib: int, row: str | None) -> None:
    assert accelerator_of(name, mib * 1024**2 / 1e9) == row


def test_a_device_may_be_of_several_rows_until_its_memory_is_known() -> None:
    name = "NVIDIA GeForce RTX 3080"
    assert may_be(name, catalogue["RTX3080"])
    assert may_be(name, catalogue["RTX3080-12GBx2"])
    assert not may_be(name, catalogue["RTX3080Ti"])
    assert may_be("Tesla T4", catalogue["T4x2"])
    assert not may_be("NVIDIA A100-SXM4-40GB", catalogue["A100-80GB"])


@pytest.mark.parametrize(
    ("name", "row"),
    [("NVIDIA A100-SXM4-80GB", "A100"), ("NVIDIA A100 80GB PCIe", "A100x4"), ("NVIDIA H100 PCIe", "H100"),
     ("Tesla V100-SXM2-32GB", "V100-16GB")],
)  # fmt: skip
def test_a_larger_device_of_the_same_model_is_no_substitute(name: str, row: str) -> None:
    """Colab's A100 has 40 or 80 GB."""
    assert may_be(name, catalogue[row])


def test_several_of_a_kind() -> None:
    assert (several("T4", 1), several("T4", 2), several("RTX4090", 8)) == ("T4", "T4x2", "RTX4090x8")
    assert several("TPUv5e-1", 4) is None
    assert several("cpu", 2) is None
    assert several("T4x2", 2) is None
