"""The ledger: append-only events per run in SQL, and the record that they fold into.

Ledger            every change: submit, append, schedule, wish, take over      (ledger.py)
LedgerReader      every query, for the engine and for people                   (reading.py)
Takeover, Owner   who controls this database                                   (takeover.py)
Waiting, Standby  who waits for its turn                                       (takeover.py)
"""

from __future__ import annotations

from orchestrator.ledger.ledger import DUE_NOW, Ledger, Proposal
from orchestrator.ledger.reading import LedgerReader, RunSummary, Stored
from orchestrator.ledger.takeover import Owner, Standby, Takeover, Waiting

__all__ = [
    "DUE_NOW", "Ledger", "LedgerReader", "Owner", "Proposal", "RunSummary", "Standby", "Stored", "Takeover",
    "Waiting",
]  # fmt: skip
