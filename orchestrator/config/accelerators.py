"""The section `accelerators`: devices that the catalogue lacks, as the user describes them.

The one place that knows how one is written; `doctor --measure` prints what it understands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from orchestrator.core.accelerators import catalogue, split
from orchestrator.core.job import Precision
from orchestrator.core.own_accelerators import Own, OwnAccelerator
from orchestrator.core.profiles import DEFAULT, GPU
from orchestrator.spec.document import Problem, shown
from orchestrator.spec.fields import Section

NAME = r"^[A-Za-z][A-Za-z0-9._-]*$"
NAME_LENGTH_MAX = 60
OWN_MAX = 100
_KEY = "accelerators"
_ROW = "a mapping such as {memory_gb: 24, arch: sm_89, teraflops: {fp16: 165, fp32: 82.6}}"
_FIGURES = "a mapping such as {fp16: 82.6, bf16: 82.6, fp32: 41.3}: what it computes natively"
_Teraflops = Annotated[
    float, Field(gt=0, le=1e5, allow_inf_nan=False, description="TFLOP/s, a number above zero")
]


class _TeraflopsSection(Section):
    fp16: _Teraflops | None = None
    bf16: _Teraflops | None = None
    fp32: _Teraflops | None = None


class AcceleratorSection(Section):
    """One device; several of a GPU are named by rule."""

    memory_gb: Annotated[
        float, Field(gt=0, le=1e5, allow_inf_nan=False, description="memory in GB, a number above zero")
    ]
    teraflops: _TeraflopsSection = Field(description=_FIGURES)
    arch: Annotated[
        str, Field(pattern=r"^(sm_[0-9]{2,3}|cpu)$", description="sm_NN as CUDA says, such as sm_89, or cpu")
    ]
    gigabytes_per_second: Annotated[
        float, Field(ge=0, le=1e6, allow_inf_nan=False, description="memory bandwidth in GB/s")
    ] = 0.0
    gpu_names: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        default=[], max_length=20, description="a list of the names that nvidia-smi gives it"
    )


Accelerators = dict[
    Annotated[str, Field(max_length=NAME_LENGTH_MAX, description="a name of letters and digits")],
    Annotated[AcceleratorSection, Field(description=_ROW)],
]


def build(section: Accelerators | None) -> Own:
    return {
        name: OwnAccelerator(
            name,
            given.memory_gb,
            given.arch,
            tuple(
                (precision, figure)
                for precision in Precision
                if (figure := getattr(given.teraflops, precision.value)) is not None
            ),
            given.gigabytes_per_second,
            tuple(given.gpu_names),
        )
        for name, given in (section or {}).items()
    }


def readable(tree: object) -> Own:
    """What of the section can be read, so that one wrong row does not make its name unknown elsewhere."""
    names = tree if isinstance(tree, dict) else {}
    return {
        name: OwnAccelerator(name, 1.0, "sm_00", ((Precision.FP32, 1.0),))
        for name in names
        if isinstance(name, str)
    }


def accelerator_problems(tree: object) -> Iterator[Problem]:
    """What is wrong with the names, and with what does not go together."""
    known = {name.lower(): name for name in catalogue}
    names: dict[str, str] = {}
    for name, given in tree.items() if isinstance(tree, dict) else ():
        if not isinstance(name, str):
            continue
        low = name.lower()
        told = _name_problem(name, known)
        if told is None and low in names:
            told = f"differs from {names[low]!r} in upper and lower case only; give it another name"
        names.setdefault(low, name)
        if told is not None:
            yield Problem((_KEY, name), told)
        if isinstance(given, dict):
            yield from _row_problems(name, given)


def _name_problem(name: str, known: dict[str, str]) -> str | None:
    if low := known.get(name.lower()):
        return f"the catalogue already has {low}, with figures and sources; use that, or give another name"
    if name.lower() in (DEFAULT, GPU):
        return f"{shown(name)} means something else in a job's profiles; give another name"
    if split(name) is not None:
        return (
            f"given {shown(name)}, which ends as if it counted devices; valid: a name for one device, as "
            "several are NAMEx2, NAMEx4 and so on"
        )
    if not re.fullmatch(NAME, name):
        return f"given {shown(name)}; valid: a letter, then letters, digits, dots, hyphens and underscores"
    return None


def _row_problems(name: str, given: dict[str, object]) -> Iterator[Problem]:
    figures = given.get("teraflops")
    if isinstance(figures, dict) and not any(value is not None for value in figures.values()):
        yield Problem((_KEY, name, "teraflops"), f"given nothing; valid: {_FIGURES}")
    if given.get("arch") == "cpu" and given.get("gpu_names"):
        yield Problem((_KEY, name, "gpu_names"), "given for arch cpu; valid: only with an arch such as sm_89")
