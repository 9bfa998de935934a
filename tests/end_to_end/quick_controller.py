"""A controller in a hurry: `python -m tests.end_to_end.quick_controller HOME`, until SIGTERM.

The times that a user can set are in the home's config. This sets the others: the product's pauses are made
for sessions of hours, and here sessions last for seconds. Changes nothing else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from types import FrameType, ModuleType

from orchestrator.client import Client
from orchestrator.core import closing, decide, reports
from orchestrator.core.event import Event
from orchestrator.core.run import RunRecord
from orchestrator.engine import surveying as engine_surveying
from orchestrator.platforms.kaggle import answers, client, platform, refusals, staging, stopping, surveying

PAUSES: Mapping[ModuleType, Mapping[str, float]] = {
    engine_surveying: {"SURVEY_SECONDS": 2.0, "OUTAGE_SECONDS": 1.0},
    closing: {
        "CAPACITY_SECONDS": 0.5, "CAPACITY_SECONDS_MAX": 4.0, "DATED_SECONDS_MAX": 4.0,
        "REFUSED_SECONDS": 1.0, "FRUITLESS_SECONDS": 0.2,
    },
    reports: {"RETRY_SECONDS": 0.3, "RETRY_SECONDS_MAX": 2.0},
    decide: {
        "STOP_AGAIN_SECONDS": 1.0, "DISCARD_AGAIN_SECONDS": 1.0, "AWAITED_AGAIN_SECONDS": 2.0,
        "LOOK_AGAIN_SECONDS": 4.0, "LOOK_AGAIN_SECONDS_MIN": 1.0, "RETRY_SECONDS_MAX": 2.0,
    },
    answers: {"FIRST_SECONDS": 0.02, "PAUSE_SECONDS_MAX": 0.2},
    client: {"PROVEN_SECONDS": 2.0},
    stopping: {"CANCEL_SECONDS_MAX": 5.0},
    platform: {"_LOG_SECONDS_MAX": 1.0},
    refusals: {"SLOT_SECONDS": 1.0, "PROJECTED_SECONDS": 2.0, "_LEFT_SECONDS": 2.0},
    staging: {"_LOOK_SECONDS": 0.1, "_LOOK_SECONDS_MAX": 0.5},
    surveying: {"AGAIN_SECONDS": 3.0, "SURPRISING_SECONDS": 5.0},
}  # fmt: skip


def main(home: str) -> None:
    for module, pauses in PAUSES.items():
        for name, seconds in pauses.items():
            assert isinstance(getattr(module, name), float | int), f"{module.__name__} has no {name}"
            setattr(module, name, seconds)
    stop_asked = False

    def stop(_signal: int, _frame: FrameType | None) -> None:
        nonlocal stop_asked
        stop_asked = True

    signal.signal(signal.SIGTERM, stop)
    Client(home).controller.run(stopped=lambda: stop_asked, told=_told, say=_say)
    os._exit(0)  # as the command does: unfinished actions are idempotent


def _told(record: RunRecord, event: Event) -> None:
    _say(f"{record.run} {event}"[:600])


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
