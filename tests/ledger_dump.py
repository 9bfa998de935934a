"""A ledger with a run in every phase, and its store, as a file that later versions must open:

    python -m tests.ledger_dump tests/data/ledger-REVISION.json.gz

Made once by the last version of each revision of the tables, and never again. The rows of each table are
stored as that version wrote them, and the store's objects in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import select

from orchestrator.core.event import Faulted, Wished
from orchestrator.core.job import Work
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.ledger.tables import controller, events, measurements, runs
from orchestrator.platforms.simulated import Faults
from tests.test_engine import Small, scenario

TABLES = (runs, events, measurements)
SHORT, LONG = Work(total=300, global_batch=16), Work(total=1000, global_batch=16)
Act = Callable[[Small, str], None]


def progressed(world: Small, run: str) -> None:
    assert world.until(lambda: len(world.record(run).accepted) >= 1)


def asked(wish: Wish) -> Act:
    def act(world: Small, run: str) -> None:
        progressed(world, run)
        world.ledger.wish(run, Wished(world.clock.now(), wish))

    return act


def faulted(world: Small, run: str) -> None:
    progressed(world, run)
    event = Faulted(world.clock.now(), "met something that nobody foresaw")
    world.ledger.append(world.record(run), [event], due_at=None)


def nothing(_world: Small, _run: str) -> None:
    pass


# Run → its phase in the dump, what is done to it before, and its work.
RUNS: dict[str, tuple[Phase, Act, Work]] = {
    "queued": (Phase.QUEUED, nothing, SHORT),
    "preparing": (Phase.PREPARING, nothing, SHORT),
    "launching": (Phase.LAUNCHING, nothing, SHORT),
    "running": (Phase.RUNNING, progressed, LONG),
    "stopping": (Phase.STOPPING, asked(Wish.HOLD), LONG),
    "collecting": (Phase.COLLECTING, nothing, SHORT),
    "held": (Phase.HELD, asked(Wish.HOLD), LONG),
    "faulted": (Phase.RUNNING, faulted, LONG),
    "done": (Phase.DONE, nothing, SHORT),
    "failed": (Phase.FAILED, nothing, SHORT),
    "cancelled": (Phase.CANCELLED, asked(Wish.CANCEL), LONG),
}


def dump() -> dict[str, Any]:
    """Writes the dump. Every run has a world of its own, so that each stops at its phase."""
    found: dict[str, Any] = {table.name: [] for table in TABLES} | {"store": {}}
    for run, (phase, act, work) in RUNS.items():
        with tempfile.TemporaryDirectory() as folder:
            world = Small(Path(folder), box=scenario(faults=Faults(crash=float(phase is Phase.FAILED))))
            world.submit(run, work=work)
            act(world, run)
            assert world.until(world.phase(run, phase), seconds=8 * 3600.0), run
            with world.ledger._database.read() as connection:
                for table in TABLES:
                    found[table.name] += [dict(row._mapping) for row in connection.execute(select(table))]
                found[controller.name] = [
                    dict(row._mapping) for row in connection.execute(select(controller))
                ]
            objects = world.store._objects.items()
            found["store"] |= {key: base64.b64encode(data).decode() for key, data in objects}
            world.ledger.close()
    return found


if __name__ == "__main__":
    text = json.dumps(dump(), separators=(",", ":"))
    Path(sys.argv[1]).write_bytes(gzip.compress(text.encode(), mtime=0))
