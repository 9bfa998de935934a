"""The accelerator quota of the account: what was used in the window, what is reserved, what is refused.

Counts session seconds, whatever the number of devices (docs/references/kaggle.md#quota).
Starts and ends nothing.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from tests.stand_ins.kaggle.settings import Settings, Warts

KINDS = ("gpu", "tpu")
_ROUNDING = 1e-6  # seconds


class Billed(Protocol):
    """A session as the quota sees it. Times are monotonic seconds."""

    kind: str

    def charge(self, until: float) -> float:
        """The seconds used since the last charge, up to `until`."""

    def reserved(self, now: float) -> float:
        """The seconds that it may still use; 0 once it has ended."""


class Quota:
    """The use of the current window in seconds. The first window begins with the server."""

    def __init__(self, settings: Settings, warts: Warts) -> None:
        self._settings = settings
        self._warts = warts
        self._allowed = {"gpu": settings.gpu_quota_seconds, "tpu": settings.tpu_quota_seconds}
        self._used = dict.fromkeys(KINDS, 0.0)
        self._has_run: set[str] = set()
        self._window_ends = time.monotonic() + settings.window_seconds

    def settle(self, sessions: Iterable[Billed], now: float) -> None:
        """Charges for sessions until now. At the end of the window, the use starts again at zero."""
        billed = [session for session in sessions if session.kind in KINDS]
        while now >= self._window_ends:
            self._charge(billed, self._window_ends)
            self._used = dict.fromkeys(KINDS, 0.0)
            self._window_ends += self._settings.window_seconds
        self._charge(billed, now)

    def is_used_up(self, kind: str) -> bool:
        return kind in KINDS and self._used[kind] >= self._allowed[kind]

    def use_up(self, kind: str, left_seconds: float) -> None:
        self._used[kind] = self._allowed[kind] - left_seconds

    def refusal(self, kind: str, sessions: Iterable[Billed], now: float) -> str:
        """Why a start is refused, or "" (docs/references/kaggle.md#refusals)."""
        if kind not in KINDS:
            return ""
        hours = f"maximum weekly {kind.upper()} quota of {self._allowed[kind] / 3600:.2f} hours"
        if self.is_used_up(kind):
            return f"M{hours[1:]} reached."
        projected = self._used[kind] + self._reserved(kind, sessions, now)
        if projected >= self._allowed[kind] - _ROUNDING:
            return f"Session cannot start because currently running sessions are projected to exceed {hours}."
        return ""

    def statistics(self, sessions: Iterable[Billed], now: float) -> dict[str, Any]:
        """GetAcceleratorQuotaStatistics. Durations are text (docs/references/kaggle.md#messages)."""
        ahead = self._warts.clock_ahead_seconds
        refresh = datetime.now(UTC) + timedelta(seconds=self._window_ends - now + ahead)
        reply: dict[str, Any] = {"quotaRefreshTime": refresh.strftime("%Y-%m-%dT%H:%M:%S.%fZ")}
        running = list(sessions)
        for kind in KINDS:
            reply[f"{kind}Quota"] = {
                "timeUsed": self._written(self._used[kind]),
                "timeReserved": self._written(self._reserved(kind, running, now)),
                "totalTimeAllowed": self._written(self._allowed[kind]),
                "minimumTimeAllowed": self._written(self._allowed[kind]),
                "isPayToScaleEnabled": False,
                "hasEverRun": kind in self._has_run,
            }
            if self._warts.quota_shape == "missing":
                reply[f"{kind}Quota"] = {"timeUsed": self._written(self._used[kind])}
        return reply

    def _written(self, seconds: float) -> Any:
        match self._warts.quota_shape:
            case "iso":
                return f"PT{int(seconds // 3600)}H{int(seconds % 3600 // 60)}M{seconds % 60:.3f}S"
            case "object":
                return {"seconds": str(int(seconds)), "nanos": int(seconds % 1 * 1e9)}
            case "number":
                return round(seconds, 3)
            case _:
                return _duration(seconds)

    def _reserved(self, kind: str, sessions: Iterable[Billed], now: float) -> float:
        return sum(session.reserved(now) for session in sessions if session.kind == kind)

    def _charge(self, billed: Iterable[Billed], until: float) -> None:
        for session in billed:
            seconds = session.charge(until)
            self._used[session.kind] += seconds
            if seconds > 0:
                self._has_run.add(session.kind)


def _duration(seconds: float) -> str:
    return f"{max(0.0, seconds):.3f}s"
