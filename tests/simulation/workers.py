"""Workers without threads: a task takes effect at a drawn moment, and its answer comes some time later.

A crash of the controller cuts tasks off: some have taken effect without an answer, some never begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from orchestrator.engine.engine import Brought
from tests.simulation.clock import VirtualClock


@dataclass
class _Task:
    effect_at: float
    answer_at: float
    lane: str
    task: Callable[[], Brought]
    answer: Brought | None = None


class SimulatedWorkers:
    def __init__(self, clock: VirtualClock, random: Random, slow: float) -> None:
        self._clock = clock
        self._random = random
        self._slow = slow  # the share of tasks that take minutes
        self._tasks: list[_Task] = []

    def start(
        self,
        lane: str,
        task: Callable[[], Brought],
        failed: Callable[[str], Brought],  # noqa: ARG002
    ) -> None:
        seconds = self._random.uniform(0.0, 5.0)
        if self._random.random() < self._slow:
            seconds = self._random.uniform(30.0, 400.0)
        at = self._clock.elapsed()
        self._tasks.append(_Task(at + seconds * self._random.random(), at + seconds, lane, task))

    def finished(self) -> list[Brought]:
        self._take_effect(self._clock.elapsed())
        done = [t for t in self._tasks if t.answer is not None and t.answer_at <= self._clock.elapsed()]
        self._tasks = [t for t in self._tasks if t not in done]
        return [t.answer for t in sorted(done, key=lambda t: t.answer_at) if t.answer is not None]

    def _take_effect(self, until: float) -> None:
        for task in sorted(self._tasks, key=lambda t: t.effect_at):
            if task.answer is None and task.effect_at <= until:
                task.answer = task.task()

    def next_effect(self) -> float:
        """When the next task takes effect, in the clock's elapsed seconds; infinity if there is none."""
        return min((task.effect_at for task in self._tasks if task.answer is None), default=math.inf)

    def next_answer(self) -> float:
        """When the next answer comes."""
        return min((task.answer_at for task in self._tasks), default=math.inf)

    def take_effect(self) -> None:
        """Lets tasks take effect up to the current time; their answers come later."""
        self._take_effect(self._clock.elapsed())

    def crash(self) -> None:
        """The controller is gone. Each task in progress took effect or not, and nobody gets its answer."""
        self._take_effect(self._clock.elapsed())
        for task in self._tasks:
            if task.answer is None and self._random.random() < 0.5:
                task.task()
        self._tasks = []
