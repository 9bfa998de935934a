"""What the controller has seen of one session since it started: readings, and how long it saw nothing.

It stays in memory on purpose, and a new controller starts with new readings. Only time between readings that
follow each other quickly counts. So a laptop that slept, or a clock that jumped, makes no session look lost
(docs/decisions/005-readings-stay-in-memory.md).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from orchestrator.core.session import Observation, Sighting

READINGS_MIN = 3


@dataclass(frozen=True)
class Watch:
    """The readings of one session. Times are by the controller's monotonic clock. `*_seconds` are sums of the
    gaps between readings; each gap counts for at most twice the poll interval.

    `absent_*`: since the session or a new heartbeat was last seen. `silent_*`: since its heartbeat last
    changed. `pending_seconds` and `running_seconds`: how long it was seen to wait for its start, and to run,
    in total. `saving_seconds`: how long it was seen to save since it was last seen to run. `collected_at` is
    when the last collect was requested, and `collected` the newest checkpoint that the agent had committed
    then.
    """

    at: float
    observation: Observation | None = None
    readings: int = 0
    absent_readings: int = 0
    absent_seconds: float = 0.0
    silent_readings: int = 0
    silent_seconds: float = 0.0
    pending_seconds: float = 0.0
    running_seconds: float = 0.0
    saving_seconds: float = 0.0
    collected_at: float | None = None
    collected: str | None = None
    stop_asked_at: float | None = None
    stop_impossible: bool = False
    discard_asked_at: float | None = None

    def see(self, observation: Observation, at: float, poll_seconds: float) -> Watch:
        """The watch after one more reading."""
        gap = min(max(0.0, at - self.at), 2.0 * poll_seconds) if self.readings else 0.0
        beat, before = _beat(observation), _beat(self.observation)
        beats = self.observation is not None and beat is not None and beat != before
        absent = observation.sighting is Sighting.ABSENT and not beats
        saving = observation.sighting is Sighting.SAVING
        runs = observation.sighting is Sighting.RUNNING
        silent = absent or (self.observation is not None and beat == before and not saving)
        return replace(
            self,
            at=at,
            observation=observation,
            readings=self.readings + 1,
            absent_readings=self.absent_readings + 1 if absent else 0,
            absent_seconds=self.absent_seconds + gap if absent and self.absent_readings else 0.0,
            silent_readings=self.silent_readings + 1 if silent else 0,
            silent_seconds=self.silent_seconds + gap if silent else 0.0,
            pending_seconds=self.pending_seconds + gap * (observation.sighting is Sighting.PENDING),
            running_seconds=self.running_seconds + gap * runs,
            saving_seconds=0.0 if runs else self.saving_seconds + gap * saving,
        )

    def absent_for(self, seconds: float) -> bool:
        """Whether the last readings, several of them over at least so many seconds, found nothing."""
        return self.absent_readings >= READINGS_MIN and self.absent_seconds >= seconds

    def silent_for(self, seconds: float) -> bool:
        """Whether the last readings, several of them over at least so many seconds, had no new heartbeat."""
        return self.silent_readings >= READINGS_MIN and self.silent_seconds >= seconds


def _beat(observation: Observation | None) -> tuple[str, int] | None:
    status = None if observation is None else observation.status
    return None if status is None else (status.incarnation, status.heartbeat)
