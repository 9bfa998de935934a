"""The faults and refusals that a test orders from the local Kaggle, one by one or at random.

Decides only which call shows which of them. What each looks like on the wire is in protocol.py.
"""

from __future__ import annotations

import threading
from random import Random

from tests.stand_ins.kaggle.settings import Fault

_CHAOTIC = [fault for fault in Fault if fault is not Fault.TIMEOUT]  # that one takes the client a minute


class Troubles:
    """`calls` has every call by name, in order, such as "SaveKernel", "upload", "download" or "logs".
    `faults_shown` counts those that failed."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.faults_shown = 0
        self.lock = threading.RLock()
        self._faults: dict[str, list[Fault]] = {}
        self._refusals: dict[str, list[str]] = {}
        self._chaos: Random | None = None
        self._chaos_rate = 0.0

    def fail(self, call: str, fault: Fault, times: int = 1) -> None:
        """Makes the next `times` calls of this name show the fault. Several requests are queued."""
        with self.lock:
            self._faults.setdefault(call, []).extend([fault] * times)

    def refuse(self, call: str, sentence: str, times: int = 1) -> None:
        """Answers the next `times` calls of this name with 200 and this `error`, without effect."""
        with self.lock:
            self._refusals.setdefault(call, []).extend([sentence] * times)

    def chaos(self, seed: int, rate: float) -> None:
        """From now on any request may fail, with this probability and in any way."""
        with self.lock:
            self._chaos, self._chaos_rate = Random(seed), rate

    def heal(self) -> None:
        """No fault and no refusal any more, whatever was ordered."""
        with self.lock:
            self._faults, self._refusals, self._chaos = {}, {}, None

    def take_fault(self, call: str) -> Fault | None:
        """Records the call and returns the fault that it must show."""
        with self.lock:
            self.calls.append(call)
            due = self._faults.get(call)
            if due:
                self.faults_shown += 1
                return due.pop(0)
            if self._chaos is None or self._chaos.random() >= self._chaos_rate:
                return None
            self.faults_shown += 1
            return self._chaos.choice(_CHAOTIC)

    def take_refusal(self, call: str) -> dict[str, str] | None:
        """The answer that refuses the call; None if it is not to be refused."""
        due = self._refusals.get(call)
        return {"error": due.pop(0)} if due else None
