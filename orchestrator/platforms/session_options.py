"""Options shared by all platforms whose sessions run on the user's own machines.

They become the platform's traits, and orders are checked against them. Knows neither processes nor
containers.
"""

from __future__ import annotations

import json
from typing import Self

from pydantic import Field, model_validator

from orchestrator.core.offer import Traits, Uplink
from orchestrator.core.order import Order
from orchestrator.errors import Rejected
from orchestrator.platforms.uplink_options import UplinkOptions

PENDING_SECONDS_MAX = 600.0  # between the launch and the agent's start: there is no queue


class SessionOptions(UplinkOptions):
    """If `session_seconds` is unset, there is no session limit. A session that was asked to stop is killed
    after `grace_seconds`.

    With `fetch`, which needs `uplink`, a session gets its source, inputs and checkpoint from the run's home
    store instead of through the controller.

    A session may use `disk_gb` of disk, or what its job needs if that is more; null means no limit. It keeps
    `log_gb` of its log: the beginning and the newest part.
    """

    accelerator: str = Field(default="cpu", min_length=1)
    memory_gb: float | None = Field(default=None, gt=0)
    slots: int = Field(default=1, ge=1)
    threads: int | None = Field(default=None, ge=1)
    session_seconds: float | None = Field(default=None, gt=0)
    wall_margin_seconds: float = Field(default=0.0, ge=0)
    slack_seconds: float = Field(default=30.0, ge=0)
    grace_seconds: float = Field(default=300.0, gt=0)
    visibility_seconds: float = Field(default=5.0, gt=0)
    poll_seconds: float = Field(default=1.0, gt=0)
    setup_seconds: float = Field(default=5.0, ge=0)
    disk_gb: float | None = Field(default=50.0, gt=0)
    log_gb: float = Field(default=0.064, ge=0.002, le=1.0)
    fetch: bool = False

    @model_validator(mode="after")
    def _fetches_through_the_uplink(self) -> Self:
        if self.fetch and not self.uplink:
            raise ValueError("fetch: true needs uplink: true, because the uplink fetches")
        return self

    def agent_settings(self, order: Order) -> str:
        """The agent's limits for this order, as JSON."""
        told = {"log_total_bytes": int(self.log_gb * 1e9)} | self.uplink_settings()
        if self.disk_gb is not None:
            told["disk_bytes"] = int(max(self.disk_gb, order.disk_gb) * 1e9)
        return json.dumps(told)

    def traits(
        self, *, internet: bool, custom_images: bool = False, needs_image: bool = False, machine: str = ""
    ) -> Traits:
        """Traits of sessions whose outbox the controller reads directly, even while they run."""
        return Traits(
            session_seconds=self.session_seconds,
            wall_margin_seconds=self.wall_margin_seconds,
            slack_seconds=self.slack_seconds,
            uplink=Uplink.STORE if self.uplink else Uplink.SHARED,
            silence_seconds=self.uplink_silence_seconds if self.uplink else Traits.silence_seconds,
            durable_mid_run=True,
            fetches=self.fetch,
            visibility_seconds=self.visibility_seconds,
            pending_seconds_max=PENDING_SECONDS_MAX,
            poll_seconds=self.poll_seconds,
            setup_seconds=self.setup_seconds,
            custom_images=custom_images,
            needs_image=needs_image,
            owned=True,
            metered=False,
            internet=internet,
            machine=machine,
        )

    def check(self, order: Order, platform: str) -> None:
        """Raises Rejected for an order that is not for the platform of this name."""
        if order.platform != platform or order.accelerator != self.accelerator:
            asked, mine = f"{order.accelerator} on {order.platform}", f"{self.accelerator} on {platform}"
            raise Rejected(f"the order is for {asked}; this is {mine}")
