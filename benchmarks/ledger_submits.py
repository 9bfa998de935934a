"""Submits per second, each durable before its answer, and the queries of a tick over 10,000 runs.

    python -m benchmarks.ledger_submits [--json] [--seconds S] [--runs N] [--url URL]

Uses SQLite in a temporary folder and a private PostgreSQL that syncs its commits, or the database of
`--url`, which must be empty. For comparison, the same run also makes plain appends with fsync to a
file in the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.core.event import Noted, Submitted
from orchestrator.core.job import Claim, Job, Precision, Profile, Work
from orchestrator.core.run import RunRecord
from orchestrator.ledger import Ledger, Proposal
from tests import postgresql

NOW = 1_790_000_000.0
BATCH = 100
_CLAIM = Claim((10.0, 25.0), 64, "T4", "a comparison", "2025-10-21")
_JOB = Job(
    name="benchmark",
    command=("python", "-m", "train", "--steps", "{steps}", "--micro-batch", "{micro_batch}"),
    work=Work(50_000, 64, group=8, parameters=80.3e6, flops_per_step=25.7e12),
    profiles=tuple((name, Profile(16, Precision.FP16, 12.0, _CLAIM)) for name in ("T4", "T4x2", "default")),
    bundle="b" * 64,
)


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def submits_per_second(ledger: Ledger, seconds: float) -> float:
    start = time.perf_counter()
    count = 0
    while (taken := time.perf_counter() - start) < seconds:
        ledger.submit(Submitted(f"first-{count:06d}", _JOB, NOW), due_at=None)
        count += 1
    return count / taken


def syncs_per_second(folder: Path, seconds: float) -> float:
    """The limit of the disk, and so of any ledger that syncs every commit."""
    start = time.perf_counter()
    count = 0
    with (folder / "syncs").open("wb", buffering=0) as file:
        while (taken := time.perf_counter() - start) < seconds:
            file.write(b"x" * 4096)
            os.fsync(file.fileno())
            count += 1
    return count / taken


def tick_questions(ledger: Ledger, runs: int) -> dict[str, float]:
    """Milliseconds of a tick's work with `runs` runs, all due."""
    records: list[RunRecord] = [
        ledger.submit(Submitted(f"tick-{number:06d}", _JOB, NOW), due_at=NOW) for number in range(runs)
    ]
    known = {record.run: record.version for record in records}
    proposals = [Proposal(record, [Noted(NOW, "tick")], NOW) for record in records[:BATCH]]
    found = {
        f"due_{runs}_known": timed(lambda: ledger.due(NOW, known=known)),
        f"due_{runs}_read": timed(lambda: ledger.due(NOW)),
        "next_due": timed(ledger.next_due),
        "anything_left": timed(ledger.anything_left),
        f"schedule_{runs}": timed(lambda: ledger.schedule([(record, NOW) for record in records])),
        f"append_many_{BATCH}": timed(lambda: ledger.append_many(proposals)),
        f"summaries_{runs}": timed(ledger.summaries),
    }
    return {f"{name}_ms": round(1000 * seconds, 1) for name, seconds in found.items()}


def measure(url: str, seconds: float, runs: int) -> dict[str, float]:
    with Ledger.open(url) as ledger:
        rate = round(submits_per_second(ledger, seconds), 1)
        return {"submits_per_second": rate, **tick_questions(ledger, runs)}


@contextmanager
def databases(given: str | None, folder: Path) -> Iterator[dict[str, str]]:
    if given is not None:
        yield {"given": given}
        return
    sqlite = {"sqlite": f"sqlite:///{folder / 'ledger.sqlite'}"}
    if postgresql.binaries() is None:
        sys.stderr.write(f"{postgresql.MISSING}\n")
        yield sqlite
        return
    with postgresql.running(durable=True) as server:
        yield sqlite | {"postgresql": server.url}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long to submit to each database")
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--url", help="an empty database to measure instead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, databases(options.url, Path(name)) as urls:
        found = {kind: measure(url, options.seconds, options.runs) for kind, url in urls.items()}
        found["disk"] = {"syncs_per_second": round(syncs_per_second(Path(name), 1.0), 1)}
    if options.json:
        print(json.dumps(found))
        return
    for kind, values in found.items():
        for what, value in values.items():
            print(f"{kind:12} {what:26} {value:12,.1f}")


if __name__ == "__main__":
    main()
