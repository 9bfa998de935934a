"""The profile that an accelerator uses: the most exact one wins."""

from __future__ import annotations

import pytest

from orchestrator.core.job import Job, Precision, Profile, Work
from orchestrator.core.offer import Offer, Traits
from orchestrator.core.own_accelerators import OwnAccelerator
from orchestrator.core.profiles import least_memory_gb, profile_key, profile_of

LAB = OwnAccelerator("lab-gpu", 30.0, "sm_89", ((Precision.FP16, 80.0), (Precision.FP32, 40.0)))
LAB_CPU = OwnAccelerator("lab-cpu", 64.0, "cpu", ((Precision.FP32, 2.0),))


def job(*keys: str) -> Job:
    profiles = tuple((key, Profile(number, Precision.FP32)) for number, key in enumerate(keys, start=1))
    return Job("demo", ("python",), Work(100, 64), profiles)


def offer(accelerator: str, own: OwnAccelerator | None = None) -> Offer:
    return Offer("box", accelerator, Traits(), own=own)


ALL = ("T4", "default", "gpu>=8GB", "gpu>=24GB", "gpu>=80GB", "gpu")


@pytest.mark.parametrize(
    ("accelerator", "key"),
    [
        ("T4", "T4"),
        ("T4x2", "gpu>=8GB"),
        ("RTX4090", "gpu>=24GB"),
        ("RTX4090x8", "gpu>=24GB"),  # the memory of one device
        ("H100", "gpu>=80GB"),
        ("GTX1650", "gpu"),
        ("TPUv5e-1", "default"),
        ("cpu", "default"),
        ("MPS", "default"),
        ("NoSuch", "default"),
    ],
)
def test_the_most_exact_profile_wins(accelerator: str, key: str) -> None:
    given = job(*ALL)
    assert profile_key(given, offer(accelerator)) == key
    assert profile_of(given, offer(accelerator)) == dict(given.profiles)[key]


def test_a_gpu_that_is_too_small_has_no_profile() -> None:
    assert profile_key(job("gpu>=24GB"), offer("RTX3060")) is None
    assert profile_of(job("gpu>=24GB"), offer("cpu")) is None
    assert profile_key(job("gpu"), offer("cpu")) is None


@pytest.mark.parametrize("finer", ["A100-80GB", "V100-16GB", "RTX3050Laptop", "A100-80GBx4"])
def test_a_finer_name_needs_its_own_profile_or_a_general_one(finer: str) -> None:
    older = finer.partition("-")[0].removesuffix("Laptop")
    assert profile_key(job(older), offer(finer)) is None
    assert profile_key(job(older, "gpu>=4GB"), offer(finer)) == "gpu>=4GB"
    assert profile_key(job(older, "default"), offer(finer)) == "default"


def test_the_users_own_accelerators_have_kinds_too() -> None:
    assert profile_key(job(*ALL), offer("lab-gpu", LAB)) == "gpu>=24GB"
    assert profile_key(job(*ALL), offer("lab-gpux4", LAB)) == "gpu>=24GB"
    assert profile_key(job("gpu", "default"), offer("lab-cpu", LAB_CPU)) == "default"
    assert profile_key(job("lab-gpu", *ALL), offer("lab-gpu", LAB)) == "lab-gpu"


@pytest.mark.parametrize(
    "key", ["gpu", "gpu>=GB", "gpu>=24", "gpu>24GB", "GPU>=24GB", "gpu>=24GB ", "gpu>=-1GB"]
)
def test_what_is_no_size(key: str) -> None:
    assert least_memory_gb(key) is None


def test_sizes() -> None:
    assert [least_memory_gb(key) for key in ("gpu>=24GB", "gpu>=7.5GB")] == [24.0, 7.5]
