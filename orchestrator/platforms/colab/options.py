"""The options of a colab platform, and Colab's words for our accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from orchestrator.platforms.colab.values import CPU
from orchestrator.platforms.uplink_options import UplinkOptions
from orchestrator.user import expanded

HOUR = 3600.0
MIB = 1 << 20
# Ours → Colab's. Its command line takes an unknown word for an A100, so it is only given one of these
# (docs/references/colab.md#accelerators).
WORDS: Mapping[str, str] = MappingProxyType(
    {
        "T4": "T4",
        "L4": "L4",
        "A100": "A100",
        "H100": "H100",
        "RTXPRO6000": "G4",
        "TPUv5e-1": "V5E1",
        "TPUv6e-1": "V6E1",
        "cpu": CPU,
    }
)


class ColabOptions(UplinkOptions):
    """Sessions on machines of one Google account, which are started through Google's command line for Colab.

    `auth: oauth2` is a login of its own (`orchestrator colab login NAME`). `adc` uses `adc_file`, an
    authorized_user file of Google's. The command line needs Python 3.12 or newer: `python` says which one.
    `proxy` and `ca_file` are for networks that need them.

    `accelerators` are offered to jobs, if the account may use them. `high_mem`: machines with more memory,
    which use more units. `free_tier`: also without compute units, at your own risk (docs/colab.md#free-tier).
    `slots`: how many machines may run at once. A session ends by itself `wall_margin_seconds` before
    `session_seconds`. When it is asked to stop it may take `grace_seconds` to save and leave, and then
    `shipping_seconds` for as long as it says that it ships. A machine whose session has ended gives itself
    back after `linger_seconds`, if nobody did before. A machine may take `start_seconds` to start a session.
    """

    uplink: Literal[True] = True  # without it, a machine that vanishes takes everything with it
    auth: Literal["oauth2", "adc"] = "oauth2"
    adc_file: Path | None = None
    python: Path | None = None
    proxy: str | None = Field(default=None, pattern=r"https?://\S+")
    ca_file: Path | None = None
    accelerators: tuple[str, ...] = Field(default=tuple(WORDS), min_length=1)
    high_mem: bool = False
    free_tier: bool = False
    slots: int = Field(default=1, ge=1)
    threads: int = Field(default=2, ge=1)
    session_seconds: float = Field(default=12 * HOUR, gt=0)
    wall_margin_seconds: float = Field(default=HOUR, ge=0)
    slack_seconds: float = Field(default=0.5 * HOUR, ge=0)
    visibility_seconds: float = Field(default=120.0, gt=0)
    absence_seconds: float = Field(default=120.0, ge=0)
    poll_seconds: float = Field(default=30.0, gt=0)
    setup_seconds: float = Field(default=240.0, ge=0)
    start_seconds: float = Field(default=240.0, gt=0)
    linger_seconds: float = Field(default=900.0, ge=0)
    grace_seconds: float = Field(default=300.0, ge=0)
    shipping_seconds: float = Field(default=1800.0, ge=0)
    uplink_silence_seconds: float = Field(default=600.0, ge=1)

    @field_validator("accelerators")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        unknown = [each for each in names if each not in WORDS]
        if unknown:
            raise ValueError(f"Colab has no {', '.join(unknown)}; it has {', '.join(WORDS)}")
        return names

    @field_validator("adc_file", "python", "ca_file")
    @classmethod
    def _anywhere(cls, path: Path | None) -> Path | None:
        if path is not None and not expanded(path).is_absolute():
            raise ValueError("write an absolute path, or one that begins with ~/")
        return None if path is None else expanded(path)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.auth == "adc") != (self.adc_file is not None):
            raise ValueError("set adc_file together with `auth: adc`, and only then")
        if self.session_seconds <= self.wall_margin_seconds:
            raise ValueError("wall_margin_seconds is not shorter than a session: set a smaller one")
        return self
