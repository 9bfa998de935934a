"""The ledger: append-only events per run in SQL, and the record that they fold into.

Ledger            every change: submit, append, schedule, wish, take over      (ledger.py)
LedgerReader      every query, for the engine and for people                   (reading.py)
Stored            what happened to a run, and from what it was decided         (journal.py)
Takeover, Owner   who controls this database                                   (takeover.py)
"""

from __future__ import annotations

from orchestrator.ledger.journal import Stored
from orchestrator.ledger.ledger import DUE_NOW, Ledger, Proposal
from orchestrator.ledger.reading import LedgerReader, RunSummary
from orchestrator.ledger.takeover import Owner, Takeover

__all__ = ["DUE_NOW", "Ledger", "LedgerReader", "Owner", "Proposal", "RunSummary", "Stored", "Takeover"]
