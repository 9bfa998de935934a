"""Ledgers of earlier versions with a run in every phase are opened, upgraded, and every run ends."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from orchestrator.core.event import Wished
from orchestrator.core.lifecycle import Phase, Wish
from orchestrator.ledger import Ledger
from orchestrator.ledger.database import Database
from orchestrator.ledger.migration import SCRIPTS
from orchestrator.ledger.tables import REVISION
from tests.core.runs import fold
from tests.ledger_dump import RUNS
from tests.postgresql import ledger_url
from tests.test_engine import FlakyLedger, Small, scenario

__all__ = ["ledger_url"]  # a fixture

DATA = Path(__file__).parent / "data"
DUMPS = sorted(DATA.glob("ledger-*.json.gz"))


def restored(dump: dict[str, Any], revision: str, url: str) -> None:
    """The ledger as the older version left it."""
    database = Database(url)
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    with database.write() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        tables = sa.MetaData()
        tables.reflect(connection)
        for name in ("runs", "events", "measurements"):
            rows = [{key: value for key, value in row.items() if key != "number"} for row in dump[name]]
            connection.execute(sa.insert(tables.tables[name]), rows)
        [control] = dump["controller"]
        connection.execute(sa.update(tables.tables["controller"]).values(control))
    database.close()


class Upgraded(Small):
    """The world of a dump: its ledger and its store. Its sessions are gone from the platform."""

    def __init__(self, folder: Path, url: str, dump: dict[str, Any]) -> None:
        self._url = url
        super().__init__(folder, box=scenario(slots=20))
        self.store._objects.update({key: base64.b64decode(data) for key, data in dump["store"].items()})

    def new_ledger(self, _folder: Path) -> FlakyLedger:
        return FlakyLedger.open(self._url)


def test_there_is_a_ledger_of_every_earlier_revision() -> None:
    earlier = {path.name.split("_")[0] for path in (SCRIPTS / "versions").glob("[0-9]*.py")} - {REVISION}
    assert {path.name.removeprefix("ledger-").split(".")[0] for path in DUMPS} == earlier


@pytest.mark.parametrize("path", DUMPS, ids=lambda path: path.name.split(".")[0])
def test_runs_of_an_older_ledger_go_on_to_their_end(path: Path, ledger_url: str, tmp_path: Path) -> None:
    dump = json.loads(gzip.decompress(path.read_bytes()))
    revision = path.name.removeprefix("ledger-").split(".")[0]
    restored(dump, revision, ledger_url)
    with Ledger.open(ledger_url) as ledger:
        assert {each.run: each.phase for each in ledger.summaries()} == {
            run: Phase.HELD if run == "faulted" else phase for run, (phase, _, _) in RUNS.items()
        }
        for run in RUNS:
            found = ledger.record(run)
            assert not any(each.trouble for each in ledger.history(run))
            again = fold(each.event for each in ledger.history(run))
            assert again.version == found.version
            new = {"strays": again.strays, "closed": again.closed, "place": again.place}
            assert replace(found, **new) == again, "but for new fields"  # type: ignore[arg-type]
    world = Upgraded(tmp_path, ledger_url, dump)
    try:
        come_to_their_ends(world)
    finally:
        world.ledger.close()


def come_to_their_ends(world: Small) -> None:
    world.restart("box", home_store="home")
    assert {world.record(run).store for run in RUNS} == {"home"}
    accepted = {run: {each.name for each in world.record(run).accepted} for run in RUNS}
    assert world.until(lambda: world.record("stopping").phase is Phase.HELD)
    for run in ("held", "stopping", "faulted"):
        world.ledger.wish(run, Wished(world.clock.now(), Wish.RELEASE))
    ends = {run: phase if phase.final else Phase.DONE for run, (phase, _, _) in RUNS.items()}
    reached = world.until(lambda: {run: world.record(run).phase for run in RUNS} == ends, seconds=24 * 3600.0)
    assert reached, {run: world.record(run).standing_reason for run in RUNS}
    for run in ("running", "held", "faulted"):
        resumed = [e.event.order.resume for e in world.ledger.history(run) if hasattr(e.event, "order")]
        assert accepted[run] & set(resumed), f"{run} resumed from its checkpoint"
