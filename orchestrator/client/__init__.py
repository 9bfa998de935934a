"""Everything that a person or a program can ask of the orchestrator, without printing or parsing arguments.

`from orchestrator import Client` is the public Python API (docs/python.md). The command line is built on the
same class. The types that its methods return are here, too. Their modules are imported on first use, so that
a listing starts without the config and the platforms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from orchestrator.client.client import Client

if TYPE_CHECKING:
    from orchestrator.client.adopting import Adoption, Came
    from orchestrator.client.backing_up import BackUp
    from orchestrator.client.checkpoints import Checkpoint
    from orchestrator.client.checkup import Finding
    from orchestrator.client.controlling import Controller, Started, Stopped
    from orchestrator.client.curves import Curves
    from orchestrator.client.deliveries import Notification, NotifyTest
    from orchestrator.client.health import Health
    from orchestrator.client.leftovers import Leftovers, Orphan, Removal
    from orchestrator.client.logs import LogLine
    from orchestrator.client.moving import Move
    from orchestrator.client.notifications import Notifications
    from orchestrator.client.outlooking import Fits, Outlook
    from orchestrator.client.outputs import PulledOutputs
    from orchestrator.client.planning import Plan
    from orchestrator.client.pruning import Pruned, PrunePlan
    from orchestrator.client.pulling import Pulled
    from orchestrator.client.quota import NoAnswer, Pool, Quotas
    from orchestrator.client.registering import (
        Registration,
        ScheduleChange,
        ScheduleRemoval,
        ScheduleStatus,
    )
    from orchestrator.client.replaying import Replay
    from orchestrator.client.restoring import Restored, Revived
    from orchestrator.client.routing import JudgedClaim, Routing
    from orchestrator.client.run import Run
    from orchestrator.client.sessions import SessionSummary
    from orchestrator.client.setting_up import SetUp
    from orchestrator.client.status import RunStatus
    from orchestrator.client.stored import StoredRun
    from orchestrator.client.submitting import Submission
    from orchestrator.client.wishing import Then, WishAnswer
    from orchestrator.core.curves import Curve
    from orchestrator.core.foreseen import Forecast
    from orchestrator.core.layout import Standing
    from orchestrator.core.lifecycle import Phase
    from orchestrator.core.offer import Hop, Route
    from orchestrator.core.outlook import Alone, Expected
    from orchestrator.core.replay import Answer, Step
    from orchestrator.core.route import Verdict
    from orchestrator.core.run import RunRecord
    from orchestrator.freeze.leaving import Part
    from orchestrator.freeze.left_out import LeftOut
    from orchestrator.hindsight.comparing import Compared, Comparison, Totals
    from orchestrator.hindsight.playing import Played
    from orchestrator.ledger import Owner, Standby, Stored
    from orchestrator.rehearsal.judging import Exactness, Rehearsed
    from orchestrator.rehearsal.legs import Leg

_HOMES = {
    "Adoption": "client.adopting",
    "Alone": "core.outlook",
    "BackUp": "client.backing_up",
    "Answer": "core.replay",
    "Came": "client.adopting",
    "Checkpoint": "client.checkpoints",
    "Compared": "hindsight.comparing",
    "Comparison": "hindsight.comparing",
    "Controller": "client.controlling",
    "Curve": "core.curves",
    "Curves": "client.curves",
    "Exactness": "rehearsal.judging",
    "Expected": "core.outlook",
    "Finding": "client.checkup",
    "Fits": "client.outlooking",
    "Forecast": "core.foreseen",
    "Health": "client.health",
    "Hop": "core.offer",
    "JudgedClaim": "client.routing",
    "LeftOut": "freeze.ignoring",
    "Leftovers": "client.leftovers",
    "Leg": "rehearsal.legs",
    "LogLine": "client.logs",
    "Move": "client.moving",
    "NoAnswer": "client.quota",
    "Notification": "client.deliveries",
    "Notifications": "client.notifications",
    "NotifyTest": "client.deliveries",
    "Orphan": "client.leftovers",
    "Outlook": "client.outlooking",
    "Owner": "ledger",
    "Part": "freeze.leaving",
    "Phase": "core.lifecycle",
    "Plan": "client.planning",
    "Played": "hindsight.playing",
    "Pool": "client.quota",
    "PrunePlan": "client.pruning",
    "Pruned": "client.pruning",
    "Pulled": "client.pulling",
    "PulledOutputs": "client.outputs",
    "Quotas": "client.quota",
    "Registration": "client.registering",
    "Rehearsed": "rehearsal.judging",
    "Removal": "client.leftovers",
    "Restored": "client.restoring",
    "Revived": "client.restoring",
    "Replay": "client.replaying",
    "Route": "core.offer",
    "Routing": "client.routing",
    "Run": "client.run",
    "RunRecord": "core.run",
    "RunStatus": "client.status",
    "ScheduleChange": "client.registering",
    "ScheduleRemoval": "client.registering",
    "ScheduleStatus": "client.registering",
    "SessionSummary": "client.sessions",
    "SetUp": "client.setting_up",
    "Standing": "core.layout",
    "Standby": "ledger",
    "Started": "client.controlling",
    "Stopped": "client.controlling",
    "Step": "core.replay",
    "Stored": "ledger",
    "StoredRun": "client.stored",
    "Submission": "client.submitting",
    "Then": "client.wishing",
    "Totals": "hindsight.comparing",
    "Verdict": "core.route",
    "WishAnswer": "client.wishing",
}

__all__ = [
    "Adoption",
    "Alone",
    "Answer",
    "BackUp",
    "Came",
    "Checkpoint",
    "Client",
    "Compared",
    "Comparison",
    "Controller",
    "Curve",
    "Curves",
    "Exactness",
    "Expected",
    "Finding",
    "Fits",
    "Forecast",
    "Health",
    "Hop",
    "JudgedClaim",
    "LeftOut",
    "Leftovers",
    "Leg",
    "LogLine",
    "Move",
    "NoAnswer",
    "Notification",
    "Notifications",
    "NotifyTest",
    "Orphan",
    "Outlook",
    "Owner",
    "Part",
    "Phase",
    "Plan",
    "Played",
    "Pool",
    "PrunePlan",
    "Pruned",
    "Pulled",
    "PulledOutputs",
    "Quotas",
    "Registration",
    "Rehearsed",
    "Removal",
    "Replay",
    "Restored",
    "Revived",
    "Route",
    "Routing",
    "Run",
    "RunRecord",
    "RunStatus",
    "ScheduleChange",
    "ScheduleRemoval",
    "ScheduleStatus",
    "SessionSummary",
    "SetUp",
    "Standby",
    "Standing",
    "Started",
    "Step",
    "Stopped",
    "Stored",
    "StoredRun",
    "Submission",
    "Then",
    "Totals",
    "Verdict",
    "WishAnswer",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"orchestrator.{_HOMES[name]}"), name)
