"""What the agent tells the engine: the heartbeat in status.json, and result.json at the end.

Gathers what the other modules found out. Decides nothing.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

from orchestrator.agent.folder import Folder, write_whole
from orchestrator.clock import Clock
from orchestrator.core import bounds, wire
from orchestrator.core.gpu_use import GpuUse
from orchestrator.core.mask import Mask
from orchestrator.core.order import AgentStatus, Result
from orchestrator.files import remove_file, remove_tree
from orchestrator.session.layout import RESULT, STATUS


@dataclass(frozen=True)
class Clocks:
    """The session's budget on the machine's clocks; `started` is on `clock.elapsed`."""

    clock: Clock
    started: float
    budget: float | None

    def elapsed(self) -> float:
        """Seconds since the session began, including the time the machine slept."""
        return self.clock.elapsed() - self.started

    def deadline(self) -> float | None:
        """The end of the budget in unix seconds, by the wall clock as it is now."""
        return None if self.budget is None else self.clock.now() + self.budget - self.elapsed()


class Report:
    """Set the attributes as they become known. `beat` writes them when a heartbeat is due or when something
    changed. `mask` removes the secrets from every text that is written."""

    def __init__(self, folder: Folder, incarnation: str, clock: Clock, period: float) -> None:
        self._folder = folder
        self._incarnation = incarnation
        self._clock = clock
        self._period = period
        self._beats = 0
        self._next = 0.0
        self._last: object = None
        self._warnings: tuple[str, ...] = ()
        self.mask = Mask()
        self.clocks: Clocks | None = None
        self.resume_step: int | None = None
        self.step: int | None = None
        self.rate: float | None = None
        self.loss: float | None = None
        self.checkpoint: str | None = None
        self.checkpoint_step: int | None = None
        self.save_seconds: float | None = None
        self.unshipped_seconds: float | None = None
        self.gpu_use: GpuUse | None = None

    def warn(self, text: str) -> bool:
        """Adds a warning once; returns whether it is new."""
        text = bounds.text(self.mask.text(text), bounds.WARNING_BYTES_MAX)
        if text in self._warnings:
            return False
        self._warnings = (*self._warnings, text)[-bounds.WARNINGS_MAX :]
        return True

    def beat(self, state: str) -> None:
        """Writes the status once per period, or at once for a new state, checkpoint or warning."""
        now, noticed = self._clock.monotonic(), (state, self.checkpoint, self._warnings)
        if now < self._next and noticed == self._last:
            return
        self._beats += 1
        self._next, self._last = now + self._period, noticed
        with suppress(OSError):  # a full disk costs a heartbeat, not the training
            write_whole(self._folder.outbox / STATUS, self._encoded(state), durable=False)

    def end(self, result: Result) -> bool:
        """Writes the last status, then the result, and returns whether the result could be written.

        First frees the space that was reserved for it. On a full disk it removes more of the session's files.
        """
        self._last = None
        message, tail = self.mask.text(result.message), self.mask.text(result.tail)
        message = bounds.text(message, bounds.MESSAGE_BYTES_MAX)
        result = replace(result, message=message, tail=bounds.text(tail, bounds.TAIL_BYTES_MAX))
        with suppress(OSError):
            remove_file(self._folder.ballast)
        self.beat("ended")
        for make_room in (None, self._folder.resume, self._folder.checkpoints):
            if make_room is not None:
                with suppress(OSError):
                    remove_tree(make_room)
            with suppress(OSError):
                write_whole(self._folder.outbox / RESULT, wire.encode(result))
                return True
        return False

    def _encoded(self, state: str) -> bytes:
        """The status, with the newest warnings that fit: one character may take twelve bytes in JSON."""
        status = self._status(state)
        while len(data := wire.encode(status)) > bounds.STATUS_BYTES_MAX and status.warnings:
            status = replace(status, warnings=status.warnings[1:])
        return data

    def _status(self, state: str) -> AgentStatus:
        return AgentStatus(
            incarnation=self._incarnation,
            heartbeat=self._beats,
            written_at=self._clock.now(),
            state=state,
            step=self.resume_step if self.step is None else self.step,
            steps_per_second=self.rate,
            loss=self.loss,
            checkpoint=self.checkpoint,
            checkpoint_step=self.checkpoint_step,
            save_seconds=self.save_seconds,
            deadline=None if self.clocks is None else self.clocks.deadline(),
            warnings=self._warnings,
            unshipped_seconds=self.unshipped_seconds,
            gpu_use=self.gpu_use,
        )
