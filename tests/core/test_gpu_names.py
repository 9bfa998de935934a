"""GPU names as nvidia-smi prints them, and the catalogue's names."""

from __future__ import annotations

import pytest

from orchestrator.core.gpu_names import accelerator_of, several


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "RTX3050"),
        ("NVIDIA GeForce RTX 3050 6GB Laptop GPU", "RTX3050"),
        ("NVIDIA GeForce RTX 3070", "RTX3070"),
        ("GeForce RTX 3090", "RTX3090"),
        ("Tesla T4", "T4"),
        ("Tesla P100-PCIE-16GB", "P100"),
        ("Tesla V100-SXM2-32GB", "V100"),
        ("Tesla K80", "K80half"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTXPRO6000"),
        ("NVIDIA GeForce RTX 3070 Ti", None),
        ("NVIDIA GeForce RTX 3050 Ti Laptop GPU", None),
        ("NVIDIA L40S", None),
        ("NVIDIA A10", None),
        ("NVIDIA T400 4GB", None),
        ("NVIDIA RTX 6000 Ada Generation", None),
        ("cpu", None),
        ("", None),
    ],
)
def test_a_name_is_a_row_or_none(name: str, row: str | None) -> None:
    assert accelerator_of(name) == row


def test_two_of_a_kind() -> None:
    assert (several("T4", 1), several("T4", 2)) == ("T4", "T4x2")
    assert several("RTX3050", 2) is None
    assert several("T4", 3) is None
