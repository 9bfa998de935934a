"""The platform suite over a notebook: its worker, the agents and their uplinks are real processes.

`SurvivingSuite` does not apply. Sessions die with the notebook, and controllers only meet in one register:
`tests/mailbox_model.py` has every interleaving, and every crash between two changes of it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.engine import parcels
from orchestrator.platforms.notebook.platform import NotebookPlatform
from orchestrator.platforms.platform import Platform
from orchestrator.session.signing import Keys
from orchestrator.session.staging import Materials, Shipping, fetchable
from orchestrator.stores import checkpoints as stored
from orchestrator.stores.folder import FolderStore
from orchestrator.stores.opening import carried
from orchestrator.stores.store import Store
from orchestrator.uplink import archive
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.mailbox import Mailbox, Secret, place
from tests.conformance.platform_suite import PlatformSuite
from tests.conformance.test_platforms import RealRig, ShippedPlatform, agent, corrupted

__all__ = ["agent"]  # a fixture

KEYS = Keys("5e" * 32)


@pytest.fixture(scope="session")
def uplink(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("uplink") / "uplink.pyz"
    archive.build(path)
    return path


class FetchingPlatform(ShippedPlatform):
    """A platform whose sessions also fetch. The engine prepares none without its checkpoint in the store."""

    def __init__(self, inner: Platform, store: Store, program: Path) -> None:
        super().__init__(inner, store)
        self._program = program

    def prepare(self, order: Order, materials: Materials) -> None:
        if order.resume is not None:
            stored.read(self._store, order.run, order.resume)
        keys = SessionKeys(order.run, order.session)
        parcel = parcels.put(self._store, keys, fetchable(order, materials, staged=False), "", materials.say)
        home = wire.encode(carried(self._store))
        shipping = Shipping(self._program, home, this_machine=True, parcel=parcel)
        super().prepare(order, replace(materials, shipping=shipping))


class NotebookRig(RealRig):
    """A notebook whose worker is a real process. Its sessions keep their outboxes in a folder."""

    type = "notebook"
    budget_seconds = 20.0  # the result is shipped within it; on a busy machine in the next one, twice as long

    def __init__(self, folder: Path, agent: Path, program: Path) -> None:
        self.options = {
            "accelerator": "cpu", "threads": 1, "this_machine": True, "session_seconds": 120.0,
            "wall_margin_seconds": 2.0, "poll_seconds": 0.2, "uplink_seconds": 1,
        }  # fmt: skip
        self.program = program
        (folder / "store").mkdir()
        self.store = FolderStore(folder / "store")
        super().__init__(folder, agent)
        portable = carried(self.store)
        words = ("work", "here", "cpu", place(portable), str(folder / "notebook"))
        with (folder / "worker.log").open("wb") as log:
            self.worker = subprocess.Popen(
                [sys.executable, str(program), *words], stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        assert self.worker.stdin is not None
        self.worker.stdin.write(Secret("here", portable, KEYS).text().encode())
        self.worker.stdin.close()
        self.until(lambda: Mailbox(lambda: self.store, "here").worker() is not None)

    def another_controller(self) -> Platform:
        inner = super().another_controller()
        assert isinstance(inner, NotebookPlatform)
        inner.keep(KEYS, anew=False)
        inner.connect(Mailbox(lambda: self.store, "here"))
        return FetchingPlatform(inner, self.store, self.program)

    def trace(self, session: str) -> str:
        return str(self.folder / f"{session}.trace")

    def trainings(self, session: str) -> int:
        trace = Path(self.trace(session))
        return len(trace.read_text().splitlines()) if trace.exists() else 0

    def materials(self, resume: Path | None = None) -> Materials:  # noqa: ARG002
        """The checkpoint lies in the store, where the session reads it."""
        return super().materials()

    def corrupt(self, session: str) -> str:
        return corrupted(self.store, self.folder / f"{session}.altered")

    def close(self) -> None:
        """Its sessions die with it."""
        self.worker.kill()
        self.worker.wait()


class TestNotebook(PlatformSuite):
    @pytest.fixture
    def rig(self, tmp_path: Path, agent: Path, uplink: Path) -> Iterator[NotebookRig]:
        rig = NotebookRig(tmp_path, agent, uplink)
        yield rig
        rig.close()
