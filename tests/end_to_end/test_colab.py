"""The GraphMER demo on a local Colab, by real commands and Google's own command line: a machine that vanishes
and a session limit change no bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.stores import catalog
from orchestrator.stores import checkpoints as stored
from tests.end_to_end.test_kaggle import OFTEN, train_in_one_piece
from tests.end_to_end.user import User, fingerprints, paced_demo, wait_until
from tests.stand_ins.colab import LocalColab, local_colab

STEPS, PACE_SECONDS = 36, 2.5  # more than one session limit on any machine


class ColabUser(User):
    """A user with an account on a local Colab, and a home store on this machine."""

    def __init__(self, folder: Path, colab: LocalColab) -> None:
        super().__init__(folder)
        self.colab = colab
        self.configure({
            "platforms": {"colab": {
                "type": "colab", "proxy": colab.url, "ca_file": str(colab.ca), "accelerators": ["cpu"],
                "threads": 1, "session_seconds": 90.0, "wall_margin_seconds": 4.0, "slack_seconds": 60.0,
                "visibility_seconds": 3.0, "absence_seconds": 3.0, "poll_seconds": 2.0, "setup_seconds": 1.0,
                "uplink_seconds": 1, "uplink_silence_seconds": 5,
            }},
            "stores": {"home": {"type": "folder", "path": "store"}},
        })  # fmt: skip
        token = self.home / "platforms" / "colab" / "cli" / "home" / ".config" / "colab-cli" / "token.json"
        token.parent.mkdir(parents=True)
        token.write_text(colab.login())

    def shipped(self, run: str) -> int:
        """The newest step in the home store."""
        store = catalog.build("home", "folder", {"path": "store"}, self.home)
        return max((ref.step for ref in stored.names(store, run)), default=-1)

    def resumed_at(self, run: str) -> list[int]:
        history = (each.event for each in self.history(run))
        return [event.order.resume_step for event in history if isinstance(event, Assigned)]


@pytest.fixture
def colab(tmp_path: Path, colab_python: None) -> Iterator[LocalColab]:  # noqa: ARG001
    with local_colab(tmp_path / "colab") as colab:
        yield colab


@pytest.mark.timeout(1800)
def test_the_demo_over_a_vanished_machine_and_a_wall_changes_no_bit(
    tmp_path: Path, colab: LocalColab
) -> None:
    user = ColabUser(tmp_path / "user", colab)
    try:
        job = paced_demo(tmp_path, STEPS, seconds=PACE_SECONDS, image=None, checkpoint=OFTEN)
        run = str(user.answer("submit", str(job))["run"])
        wait_until(
            lambda: user.shipped(run) > 0, lambda: f"a checkpoint of the first session\n{user.story(run)}"
        )
        before = len(user.resumed_at(run))
        [machine] = colab.account.living()
        colab.vanish(machine.endpoint)
        user.wait_for(run, lambda record: record.phase is Phase.DONE, "its end")
        steps, story = user.resumed_at(run), user.run("why", run)
        user.wait_for_silence()
        user.run("pull", run, "-o", str(tmp_path / "final"))
    finally:
        user.close()
    assert len(steps) >= 3, story  # one vanished, and one at least had to leave
    assert steps == sorted(steps), story
    assert steps[0] == 0 < steps[before] < steps[-1], story
    assert "gone from its platform" in story, story
    assert colab.account.living() == []
    whole = train_in_one_piece(tmp_path / "whole", STEPS, tmp_path / "graphmer")
    weights = {name for name in whole if name.endswith(".safetensors")}
    found = fingerprints(tmp_path / "final")
    assert weights
    assert {name: found[name] for name in weights} == {name: whole[name] for name in weights}
