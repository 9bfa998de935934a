"""Bugs to plant in schedules, each as somebody might write it; see tests/simulation/bugs.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.core import schedule, slices
from orchestrator.engine import scheduling


def writes_the_fire_before_its_run(patch: pytest.MonkeyPatch) -> None:
    """In two transactions: a crash between them loses the run."""

    def carry_out(ledger: Any, folders: Any, given: Any, now: float, **options: Any) -> Any:
        class Apart:
            def __getattr__(self, name: str) -> Any:
                return getattr(ledger.schedules, name)

            def take(self, before: Any, steps: Any, **fence: Any) -> Any:
                after = ledger.schedules.take(before, replace(steps, submissions=()), **fence)
                for event in steps.submissions:
                    ledger.submit(event)
                return after

        class Split:
            schedules = Apart()

            def __getattr__(self, name: str) -> Any:
                return getattr(ledger, name)

        return real(Split(), folders, given, now, **options)  # type: ignore[arg-type]

    real = scheduling.carry_out
    patch.setattr(scheduling, "carry_out", carry_out)


def counts_from_now(patch: pytest.MonkeyPatch) -> None:
    """What was planned while no controller ran leaves no trace."""
    patch.setattr(schedule.Schedule, "counts_from", lambda _self, now: now - 30.0)


def takes_every_fire_for_late(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule, "_is_on_time", lambda _each, _now: False)


def forgets_the_end_of_the_window(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(slices, "is_over", lambda _record, _now: False)
    patch.setattr(slices, "worth", lambda _record, offers, _now: (list(offers), []))
    patch.setattr(slices, "leave_by", lambda _record, _offer: None)


def says_that_it_sleeps_at_every_look(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(schedule, "NEXT_TOLERANCE_SECONDS", -1.0)
