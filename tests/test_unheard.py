"""Sessions that their platform sees, and whose outboxes do not answer. With the real engine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

from orchestrator.core.lifecycle import Phase
from orchestrator.engine.engine import Watchers
from orchestrator.errors import Transient
from orchestrator.platforms.platform import Sight
from orchestrator.platforms.simulated import SimulatedPlatform
from tests.seen import Canned
from tests.test_engine import Small, scenario


class Closed(Canned):
    def small(self, name: str) -> bytes | None:
        raise Transient(f"the store does not answer for {name}")


class Elsewhere:
    """Sees its sessions; once it is `shut`, their outboxes are out of reach."""

    def __init__(self, inner: SimulatedPlatform) -> None:
        self._inner = inner
        self.shut = False

    def __getattr__(self, verb: str) -> object:
        return getattr(self._inner, verb)

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        found = self._inner.observe(names)
        return (
            {name: replace(sight, outbox=Closed()) for name, sight in found.items()} if self.shut else found
        )


def test_a_session_of_which_nothing_is_heard_shows_why(tmp_path: Path) -> None:
    world = Small(tmp_path, box=scenario(), other=scenario())
    platform = Elsewhere(world.platforms["box"])
    world.platforms["box"] = cast("SimulatedPlatform", platform)
    world.restart("box", "other")
    told: list[tuple[str, str]] = []
    world.engine._watchers = Watchers(silence=lambda record, trouble: told.append((record.run, trouble)))
    for run in ("one", "two"):
        world.submit(run)
    assert world.until(lambda: all(world.record(run).phase is Phase.RUNNING for run in ("one", "two")))
    sessions = [world.record(run).session for run in ("one", "two")]
    [there] = [each.order.run for each in sessions if each is not None and each.order.platform == "box"]
    assert told == []
    platform.shut = True
    assert world.until(lambda: bool(told))
    assert {run for run, _ in told} == {there}
    assert all(trouble.startswith("the store does not answer for ") for _, trouble in told)
    world.ledger.close()
