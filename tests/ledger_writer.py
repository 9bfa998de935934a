"""A controller that only appends to the journal, in a process of its own that a test kills.

It takes over the database and prints that. Then it appends two events to each of three runs, again and again,
and prints their versions after every commit. It runs until it is killed.
"""

from __future__ import annotations

import json
import sys

from orchestrator.core.event import Noted
from orchestrator.core.run import RunRecord
from orchestrator.errors import LedgerConflict
from orchestrator.ledger import Ledger, Proposal
from tests.walks import NOW, submission

RUNS = ("tiny-1", "tiny-2", "tiny-3")
EVENTS = 2  # an append
TEXT = "x" * 1000  # so that a commit is several pages


def main(url: str) -> None:
    ledger = Ledger.open(url)
    takeover = ledger.take_over("writer", now=NOW)
    if not ledger.summaries():
        for run in RUNS:
            ledger.submit(submission(run))
    records = [ledger.record(run) for run in RUNS]
    while True:
        sys.stdout.write(json.dumps({r.run: r.version for r in records}) + "\n")
        sys.stdout.flush()
        proposals = [Proposal(r, _events(r), NOW, inputs={"of": r.version}) for r in records]
        records = [_taken(answer) for answer in ledger.append_many(proposals, fence=takeover.fence)]


def _events(record: RunRecord) -> list[Noted]:
    return [Noted(NOW, f"{record.version}.{number} {TEXT}") for number in range(EVENTS)]


def _taken(answer: RunRecord | LedgerConflict) -> RunRecord:
    assert isinstance(answer, RunRecord)
    return answer


if __name__ == "__main__":
    main(sys.argv[1])
