"""Options shared by all platforms whose sessions may ship their outbox to the run's home store.

They become the agent's settings and a part of the platform's traits. Knows no platform.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

BEAT_SECONDS = 5.0


class UplinkOptions(BaseModel):
    """With `uplink`, a process beside the agent ships the outbox to the run's home store: a checkpoint at
    most every `uplink_seconds`, and at most `uplink_daily_gb` a day (unset: no limit). Such a
    session is lost once nothing came from it for `uplink_silence_seconds`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    uplink: bool = False
    uplink_seconds: float = Field(default=60.0, ge=1)
    uplink_daily_gb: float | None = Field(default=None, gt=0)
    uplink_silence_seconds: float = Field(default=120.0, ge=1)

    def uplink_settings(self, beat_seconds: float = BEAT_SECONDS) -> dict[str, float]:
        """The agent's settings; empty without an uplink. A heartbeat comes every `beat_seconds`, or more
        often if checkpoints do."""
        if not self.uplink:
            return {}
        told = {"uplink_ship": self.uplink_seconds, "uplink_beat": min(beat_seconds, self.uplink_seconds)}
        if self.uplink_daily_gb is not None:
            told["uplink_daily_bytes"] = self.uplink_daily_gb * 1e9
        return told
