"""Removes what a trial made on Kaggle, and judges whether it is gone at once.

Touches only kernels and datasets of the trial's own run.
"""

from __future__ import annotations

from orchestrator.core.wording import span
from orchestrator.errors import OrchestratorError
from orchestrator.platforms.kaggle.trial import assumptions as assumed
from orchestrator.platforms.kaggle.trial import evidence
from orchestrator.platforms.kaggle.trial.ground import Ground
from orchestrator.platforms.kaggle.trial.stay import Stay
from orchestrator.platforms.trials.assumption import FAILS
from orchestrator.platforms.trials.record import Record
from orchestrator.platforms.trials.waiting import Late


class Clearing:
    """The sessions of one trial that may have left something."""

    def __init__(self, ground: Ground, record: Record) -> None:
        self._ground = ground
        self._record = record
        self._stays: dict[str, Stay] = {}
        self._names: tuple[str, ...] | None = None  # as listed last
        self._hidden: tuple[str, ...] = ()  # kernels that were pushed and never shown
        self._since = 0.0  # when the last one was added: what is deleted since is looked for at once

    def add(self, stay: Stay) -> None:
        self._stays[stay.session] = stay
        self._names = None
        self._since = self._ground.clock.monotonic()

    def left(self) -> tuple[str, ...]:
        """What may still be on Kaggle. Makes no request."""
        if self._names is not None:
            return (*self._names, *self._hidden)
        made = (name for stay in self._stays.values() for name in stay.made)
        return tuple(dict.fromkeys((*made, *self._hidden)))

    def clear(self) -> None:
        """Removes everything. What cannot be removed stays in `left`."""
        if not self._stays:
            return
        self._ground.waiting.say("deleting what was made")
        seconds = self._ground.scale.late + self._ground.options.absence_seconds
        stuck = [stay for stay in reversed(self._stays.values()) if not self._is_removed(stay, seconds)]
        try:
            if stuck:
                self._force()
            else:
                self._prove()
        except (OrchestratorError, OSError) as error:
            self._ground.waiting.say(f"it is not known what is left: {error}")
        if self._names == ():
            self._stays.clear()

    def _is_removed(self, stay: Stay, seconds: float) -> bool:
        try:
            stay.remove(seconds)
        except (OrchestratorError, OSError) as error:
            self._ground.waiting.say(f"{stay.short}: {error}")
            return False
        if stay.is_hidden:
            self._hidden = (*self._hidden, stay.kernel)
        return True

    def _prove(self) -> None:
        clock, scale = self._ground.clock, self._ground.scale
        began, there = clock.monotonic(), self._listed()
        if not there:
            self._record.judge(assumed.DELETED, evidence.deleted(self._ground.heard, self._since))
        else:
            what = f"{', '.join(there)} to disappear from the account's lists"
            try:
                self._ground.waiting.until(what, scale.late, lambda: None if self._listed() else True)
                seconds = clock.monotonic() - began
                self._record.judge(
                    assumed.DELETED, (FAILS, f"still listed {span(seconds)} after the deletion")
                )
            except Late as late:
                self._record.judge(assumed.DELETED, (FAILS, str(late)))
                self._force()

    def _force(self) -> None:
        """Removes it as `doctor --clean` does."""
        platform = self._ground.platform(self._ground.options)
        for each in platform.leftovers():
            if each.run == self._ground.run:
                try:
                    platform.remove(each)
                except (OrchestratorError, OSError) as error:
                    self._ground.waiting.say(f"{each.name}: {error}")
        self._listed()

    def _listed(self) -> tuple[str, ...]:
        """Our kernels and datasets in the account's own lists."""
        client, run = self._ground.client, self._ground.run
        kernels = [each.slug for each in client.kernels() if run in f"{each.slug} {each.title}"]
        datasets = [each.slug for each in client.datasets() if run in each.slug]
        self._names = (*kernels, *datasets)
        return self._names
