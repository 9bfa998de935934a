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
    from orchestrator.client.checkpoints import Checkpoint
    from orchestrator.client.checkup import Finding
    from orchestrator.client.controlling import Controller, Started
    from orchestrator.client.health import Health
    from orchestrator.client.leftovers import Leftovers, Orphan, Removal
    from orchestrator.client.logs import LogLine
    from orchestrator.client.moving import Move
    from orchestrator.client.planning import Plan
    from orchestrator.client.pruning import Pruned, PrunePlan
    from orchestrator.client.pulling import Pulled
    from orchestrator.client.quota import NoAnswer, Pool, Quotas
    from orchestrator.client.replaying import Replay
    from orchestrator.client.routing import JudgedClaim, Routing
    from orchestrator.client.run import Run
    from orchestrator.client.sessions import SessionSummary
    from orchestrator.client.setting_up import SetUp
    from orchestrator.client.status import RunStatus
    from orchestrator.client.stored import StoredRun
    from orchestrator.client.submitting import Submission
    from orchestrator.client.wishing import Then, WishAnswer
    from orchestrator.core.lifecycle import Phase
    from orchestrator.core.offer import Hop, Route
    from orchestrator.core.replay import Answer, Step
    from orchestrator.core.route import Verdict
    from orchestrator.core.run import RunRecord
    from orchestrator.freeze.leaving import Part
    from orchestrator.hindsight.comparing import Compared, Comparison, Totals
    from orchestrator.hindsight.playing import Played
    from orchestrator.ledger import Owner, Stored

_HOMES = {
    "Adoption": "client.adopting",
    "Answer": "core.replay",
    "Came": "client.adopting",
    "Checkpoint": "client.checkpoints",
    "Compared": "hindsight.comparing",
    "Comparison": "hindsight.comparing",
    "Controller": "client.controlling",
    "Finding": "client.checkup",
    "Health": "client.health",
    "Hop": "core.estimate",
    "JudgedClaim": "client.routing",
    "Leftovers": "client.leftovers",
    "LogLine": "client.logs",
    "Move": "client.moving",
    "NoAnswer": "client.quota",
    "Orphan": "client.leftovers",
    "Owner": "ledger",
    "Part": "freeze.leaving",
    "Phase": "core.lifecycle",
    "Plan": "client.planning",
    "Played": "hindsight.playing",
    "Pool": "client.quota",
    "PrunePlan": "client.pruning",
    "Pruned": "client.pruning",
    "Pulled": "client.pulling",
    "Quotas": "client.quota",
    "Removal": "client.leftovers",
    "Replay": "client.replaying",
    "Route": "core.offer",
    "Routing": "client.routing",
    "Run": "client.run",
    "RunRecord": "core.run",
    "RunStatus": "client.status",
    "SessionSummary": "client.sessions",
    "SetUp": "client.setting_up",
    "Started": "client.controlling",
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
    "Answer",
    "Came",
    "Checkpoint",
    "Client",
    "Compared",
    "Comparison",
    "Controller",
    "Finding",
    "Health",
    "Hop",
    "JudgedClaim",
    "Leftovers",
    "LogLine",
    "Move",
    "NoAnswer",
    "Orphan",
    "Owner",
    "Part",
    "Phase",
    "Plan",
    "Played",
    "Pool",
    "PrunePlan",
    "Pruned",
    "Pulled",
    "Quotas",
    "Removal",
    "Replay",
    "Route",
    "Routing",
    "Run",
    "RunRecord",
    "RunStatus",
    "SessionSummary",
    "SetUp",
    "Started",
    "Step",
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
