"""What a user may set about a notebook that they open."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, field_validator

from orchestrator.core.order import Order
from orchestrator.core.wording import unknown
from orchestrator.platforms.uplink_options import UplinkOptions

HOUR = 3600.0
# What Colab has (docs/references/colab.md#accelerators).
ACCELERATORS = ("T4", "L4", "A100", "H100", "RTXPRO6000", "TPUv5e-1", "TPUv6e-1", "cpu")
COLAB = "https://colab.research.google.com"


class NotebookOptions(UplinkOptions):
    """Sessions in one notebook of Google Colab, which a person opens and runs.

    The notebook runs on a machine with `accelerator`. `link` is where a person opens it: put in its address
    once it is uploaded. Colab ends a machine after `session_seconds` at the latest; a session leaves
    `wall_margin_seconds` before that. Jobs with secrets run only with `send_secrets`, because they travel
    through the home store, which must be encrypted. `this_machine`: the notebook runs on this machine, so it
    can open a home store that only this machine can.
    """

    uplink: Literal[True] = True
    accelerator: str = "T4"
    link: str = Field(default=COLAB, pattern=r"https?://\S+")
    memory_gb: float | None = Field(default=None, gt=0)
    threads: int = Field(default=2, ge=1)
    disk_gb: float = Field(default=50.0, gt=0)
    log_gb: float = Field(default=0.064, ge=0.002, le=1.0)
    send_secrets: bool = False
    this_machine: bool = False
    session_seconds: float = Field(default=12 * HOUR, gt=0)
    wall_margin_seconds: float = Field(default=0.25 * HOUR, ge=0)
    slack_seconds: float = Field(default=0.25 * HOUR, ge=0)
    pending_seconds: float = Field(default=300.0, gt=0)
    poll_seconds: float = Field(default=10.0, gt=0)
    setup_seconds: float = Field(default=300.0, ge=0)

    @field_validator("accelerator")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in ACCELERATORS:
            raise ValueError(unknown("accelerator", name, ACCELERATORS))
        return name

    def agent_settings(self, order: Order) -> str:
        """The agent's settings for this order, as JSON."""
        told = {
            "probe": True,
            "requirements": True,
            "heartbeat": min(5.0, self.poll_seconds),
            "log_total_bytes": int(self.log_gb * 1e9),
            "disk_bytes": int(max(self.disk_gb, order.disk_gb) * 1e9),
        }
        return json.dumps(told | self.uplink_settings())
