"""A rig of the colab platform on a local Colab, for tests that break things.

It has sessions with real names, agents that misbehave, and the machines' side of things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.clock import SystemClock
from orchestrator.core.offer import Offer
from orchestrator.core.order import Order
from orchestrator.core.session import Observation, Sighting
from orchestrator.platforms import catalog
from orchestrator.platforms.colab.platform import ColabPlatform
from orchestrator.session.staging import Materials
from tests.conformance.platform_suite import LONG
from tests.conformance.test_platforms import ColabRig
from tests.stand_ins.colab import LocalColab, Settings, local_colab
from tests.stand_ins.colab.machine import Machine

RUN = "demo-7f3kq2vd"
FIRST, SECOND = (f"{RUN}-s{number:02d}" for number in (1, 2))
# Agents that replace ours: each has claimed its session, and says that it lives.
_CLAIMS = """
import json, pathlib, sys, threading
root = pathlib.Path(sys.argv[1])
outbox = root / "outbox"
(outbox / "log").mkdir(parents=True)
(outbox / "incarnation").write_text("other")
status = {"incarnation": "other", "heartbeat": 1, "written_at": 1.0, "state": "training"}
(outbox / "status.json").write_text(json.dumps(status))
"""
WAITS = f"""{_CLAIMS}
while not (root / "stop").exists():
    threading.Event().wait(0.05)
"""
SHIPS = WAITS.replace("training", "shipping")
DEAF = f"{_CLAIMS}\nthreading.Event().wait(600)\n"
FAILS = f"{_CLAIMS}\nsys.exit(3)\n"
LEAVES = f"""{_CLAIMS}
result = {{"incarnation": "other", "outcome": "stopped", "exit_code": 0, "step": None, "message": "left"}}
(outbox / "result.json").write_text(json.dumps(result))
"""


class Box(ColabRig):
    """The rig with real names. `use` changes its options."""

    platform: ColabPlatform

    def __init__(self, folder: Path, agent: Path, colab: LocalColab) -> None:
        super().__init__(folder, agent, colab)
        self.use(accelerators=["cpu", "T4", "H100"], visibility_seconds=0.5)

    def another_controller(self) -> ColabPlatform:
        folder = self.folder / "sessions"
        built = catalog.build("here", self.type, self.options, folder=folder, clock=SystemClock())
        assert isinstance(built, ColabPlatform)
        return built

    def use(self, **options: object) -> None:
        self.options |= options
        self.platform = self.another_controller()

    def order(self, session: str = FIRST, *, total: int = LONG, generation: int = 1, **changes: Any) -> Order:
        return super().order(session, total=total, generation=generation, **({"run": RUN} | changes))

    def materials_of(self, agent: str) -> Materials:
        path = self.folder / "other-agent.pyz"
        path.write_text(agent)
        return replace(self.materials(), agent=path)

    def prepared(self, agent: str = WAITS, session: str = FIRST, **changes: Any) -> Order:
        order = self.order(session, **changes)
        self.platform.prepare(order, self.materials_of(agent))
        return order

    def run(self, agent: str = WAITS, session: str = FIRST, **changes: Any) -> Order:
        order = self.prepared(agent, session, **changes)
        self.platform.launch(order)
        return order

    def until_seen(self, sighting: Sighting, session: str = FIRST) -> Observation:
        self.until(lambda: self.see(session).sighting is sighting)
        return self.see(session)

    def machines(self) -> list[Machine]:
        """Those that live."""
        return self.colab.account.living()

    def machine(self) -> Machine:
        [machine] = self.machines()
        return machine

    def forget(self) -> None:
        """Everything that this machine knew of sessions is lost."""
        for folder in ("sessions", "cli/sessions"):
            for path in (self.folder / "sessions" / folder).glob("*"):
                path.unlink()
        self.platform = self.another_controller()

    def offer(self, accelerator: str) -> Offer:
        return next(each for each in self.platform.survey() if each.accelerator == accelerator)


Boxes = Callable[..., Box]


@pytest.fixture
def boxes(tmp_path: Path, agent: Path, colab_python: None) -> Iterator[Boxes]:  # noqa: ARG001
    """Makes a box; its arguments are those of Settings."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Box:
            colab = stack.enter_context(local_colab(tmp_path / "colab", Settings(**settings)))
            return Box(tmp_path, agent, colab)

        yield make


@pytest.fixture
def box(boxes: Boxes) -> Box:
    return boxes()
