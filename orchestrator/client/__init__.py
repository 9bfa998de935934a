"""What a person or a program may ask of the orchestrator, with no printing and no parsing of arguments.

`from orchestrator import Client` is the public Python API (docs/python.md); the command line is built on the
same class. Here are also the types of what its methods return. Their modules are imported when a name is
asked for: a listing starts without the config and the platforms.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from orchestrator.client.client import Client

if TYPE_CHECKING:
    from orchestrator.client.checkpoints import Checkpoint
    from orchestrator.client.logs import LogLine
    from orchestrator.client.planning import Plan
    from orchestrator.client.pulling import Pulled
    from orchestrator.client.routing import JudgedClaim, Routing
    from orchestrator.client.run import Run
    from orchestrator.client.sessions import SessionSummary
    from orchestrator.client.status import RunStatus
    from orchestrator.client.submitting import Submission
    from orchestrator.client.wishing import Then, WishAnswer
    from orchestrator.core.estimate import Hop
    from orchestrator.core.lifecycle import Phase
    from orchestrator.core.offer import Route
    from orchestrator.core.route import Verdict
    from orchestrator.core.run import RunRecord
    from orchestrator.freeze.leaving import Part
    from orchestrator.ledger import Owner, Stored

_HOMES = {
    "Checkpoint": "client.checkpoints",
    "Hop": "core.estimate",
    "JudgedClaim": "client.routing",
    "LogLine": "client.logs",
    "Owner": "ledger",
    "Part": "freeze.leaving",
    "Phase": "core.lifecycle",
    "Plan": "client.planning",
    "Pulled": "client.pulling",
    "Route": "core.offer",
    "Routing": "client.routing",
    "Run": "client.run",
    "RunRecord": "core.run",
    "RunStatus": "client.status",
    "SessionSummary": "client.sessions",
    "Stored": "ledger",
    "Submission": "client.submitting",
    "Then": "client.wishing",
    "Verdict": "core.route",
    "WishAnswer": "client.wishing",
}

__all__ = [
    "Checkpoint",
    "Client",
    "Hop",
    "JudgedClaim",
    "LogLine",
    "Owner",
    "Part",
    "Phase",
    "Plan",
    "Pulled",
    "Route",
    "Routing",
    "Run",
    "RunRecord",
    "RunStatus",
    "SessionSummary",
    "Stored",
    "Submission",
    "Then",
    "Verdict",
    "WishAnswer",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"orchestrator.{_HOMES[name]}"), name)
