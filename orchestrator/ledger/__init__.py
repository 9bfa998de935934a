"""The ledger: append-only events per run in SQL, and the record that they fold into.

Ledger            every change: submit, append, schedule, wish, take over      (ledger.py)
LedgerReader      every query, for the engine and for people                   (reading.py)
Notifications     what somebody is to be told, and was                           (notifications.py)
Takeover, Waiting control of this database, and the line for it                (takeover.py)
Owner, Standby    who controls it, and who waits                               (lock.py)
Damaged           a value that the database holds and that its column may not (tables.py)
Identity, Made    what tells it from its copies, and what it accepted          (identity.py)
Stored            what happened to a run, and from what it was decided           (journal.py)
"""

from __future__ import annotations

from orchestrator.ledger.identity import Identity, Made
from orchestrator.ledger.journal import Stored
from orchestrator.ledger.ledger import DUE_NOW, Ledger, Proposal
from orchestrator.ledger.lock import Owner, Standby
from orchestrator.ledger.reading import LedgerReader, RunSummary
from orchestrator.ledger.tables import Damaged
from orchestrator.ledger.takeover import Takeover, Waiting

__all__ = [
    "DUE_NOW", "Damaged", "Identity", "Ledger", "LedgerReader", "Made", "Owner", "Proposal", "RunSummary",
    "Standby", "Stored", "Takeover", "Waiting",
]  # fmt: skip
