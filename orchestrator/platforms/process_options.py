"""The options of a platform of type `process`, as the config gives them."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator import nvidia
from orchestrator.core.job import Kind
from orchestrator.core.own_accelerators import row_named
from orchestrator.platforms.session_options import SessionOptions


class ProcessOptions(SessionOptions):
    """Sessions as processes of this machine.

    If `memory_gb` is unset, it is the host's memory, and sessions are not limited to it. If `threads` is
    unset, the slots share the host's cores, whether they are free or not. From the controller's environment,
    the agent gets the usual variables without secrets, and the names in `pass_env`.

    `python`: the interpreter or environment that jobs without one of their own run in. If unset, it is the
    one that is active where they are submitted.

    With `gpus` (`all`, or indexes and UUIDs of nvidia-smi) and a GPU as `accelerator`, each session gets as
    many of these GPUs as the accelerator has devices, for itself. A call of nvidia-smi may take
    `nvidia_smi_seconds`.
    """

    internet: bool = True
    pass_env: tuple[str, ...] = ()
    python: str | None = Field(default=None, min_length=1)
    gpus: Literal["all"] | tuple[int | str, ...] | None = None
    nvidia_smi_seconds: float = Field(default=nvidia.SECONDS, gt=0, le=120)

    @field_validator("gpus", mode="before")
    @classmethod
    def _names_gpus(cls, given: object) -> object:
        if isinstance(given, list | tuple):
            if not given:
                raise ValueError("give `all`, or a list of indexes such as [0, 2]")
            if not all(_is_gpu(each) for each in given):
                raise ValueError("valid: `all`, or a list of indexes and UUIDs as `nvidia-smi -L` shows them")
        return given

    @model_validator(mode="after")
    def _gpus_are_of_a_kind(self) -> Self:
        if self.gpus is None:
            return self
        row = row_named(self.accelerator)
        if row is not None and row.kind is not Kind.GPU:
            raise ValueError(
                f"gpus needs the kind of these GPUs, such as `accelerator: RTX4090`: {self.accelerator} is "
                "no GPU"
            )
        if self.memory_gb is not None:
            raise ValueError("memory_gb limits sessions on the CPU; sessions with gpus have the GPU's memory")
        return self


def _is_gpu(given: object) -> bool:
    return type(given) in (int, str) and bool(re.fullmatch(r"[0-9]{1,3}|GPU-[0-9A-Za-z-]+", str(given)))
