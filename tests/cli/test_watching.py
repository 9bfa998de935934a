"""What the view of a run shows for a session whose work comes home only at its end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.cli.watching import checkpoint_text
from orchestrator.client.live import Live
from orchestrator.client.looking import Look
from orchestrator.core.offer import Uplink
from orchestrator.core.run import RunRecord
from tests.core.runs import NOW, TRAITS, accept, assigned, record, running, seen

FAR = replace(TRAITS, durable_mid_run=False, uplink=Uplink.NONE)


def look(found: RunRecord, saved: int | None) -> Look:
    observation = seen()
    assert observation.status is not None
    status = replace(observation.status, checkpoint_step=saved)
    live = Live("a", NOW, replace(observation, status=status))
    return Look(found, live, NOW, 0.0)


@pytest.mark.parametrize(
    ("durable", "home", "saved", "words"),
    [
        (False, None, None, "no checkpoint yet"),
        (
            False,
            None,
            120,
            "no checkpoint yet; 120 is saved on the platform and is collected when the session ends",
        ),
        (
            False,
            100,
            120,
            "checkpoint 100; 120 is saved on the platform and is collected when the session ends",
        ),
        (False, 100, 100, "checkpoint 100"),
        (True, 100, 120, "checkpoint 100"),
    ],
)
def test_what_is_saved_where_is_told(durable: bool, home: int | None, saved: int | None, words: str) -> None:
    begun = (assigned(traits=TRAITS if durable else FAR), *running()[1:])
    found = record(*begun, *([accept(home)] if home is not None else []))
    assert checkpoint_text(look(found, saved)) == words
