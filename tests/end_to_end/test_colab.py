"""A run on a local Colab, by real commands and Google's own command line: a machine that vanishes and a
session limit change no bit. CI trains without torch here, the long test trains the GraphMER demo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from orchestrator.core.event import Assigned
from orchestrator.core.lifecycle import Phase
from orchestrator.stores import catalog
from orchestrator.stores import checkpoints as stored
from tests.end_to_end.test_kaggle import OFTEN
from tests.end_to_end.test_kaggle import train_in_one_piece as train_demo
from tests.end_to_end.user import User, fingerprints, paced_demo, train_in_one_piece, wait_until
from tests.stand_ins.colab import LocalColab, local_colab

STEPS, PACE_SECONDS = 36, 2.5  # of the demo: more than one session limit on any machine


class ColabUser(User):
    """A user with an account on a local Colab, and a home store on this machine."""

    def __init__(self, folder: Path, colab: LocalColab, session_seconds: float) -> None:
        super().__init__(folder)
        self.colab = colab
        self.configure({
            "platforms": {"colab": {
                "type": "colab", "proxy": colab.url, "ca_file": str(colab.ca), "accelerators": ["cpu"],
                "threads": 1, "session_seconds": session_seconds, "wall_margin_seconds": 4.0,
                "slack_seconds": 60.0,
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


Job = Callable[[ColabUser, Path], tuple[str, Callable[[Path], dict[str, str]]]]
STEPS_COUNTED = 160


def hashes(user: ColabUser, _folder: Path) -> tuple[str, Callable[[Path], dict[str, str]]]:
    """A submitted training without torch, and how to train it in one piece."""
    work = {"total": STEPS_COUNTED, "global_batch": 8}
    run = user.submit(command="python train.py {steps} --pause 0.2", work=work)
    return run, lambda folder: train_in_one_piece(folder, "train.py", STEPS_COUNTED)


def demo(user: ColabUser, folder: Path) -> tuple[str, Callable[[Path], dict[str, str]]]:
    job = paced_demo(folder, STEPS, seconds=PACE_SECONDS, image=None, checkpoint=OFTEN)
    run = str(user.answer("submit", str(job))["run"])
    return run, lambda place: train_demo(place, STEPS, folder / "graphmer")


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("job", "seconds"), [(hashes, 30.0), pytest.param(demo, 90.0, marks=pytest.mark.soak)]
)
def test_a_vanished_machine_and_a_wall_change_no_bit(
    tmp_path: Path, colab: LocalColab, job: Job, seconds: float
) -> None:
    user = ColabUser(tmp_path / "user", colab, seconds)
    try:
        run, in_one_piece = job(user, tmp_path)
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
    whole = in_one_piece(tmp_path / "whole")
    kept = {name for name in whole if name.endswith((".safetensors", "state.json"))}
    found = fingerprints(tmp_path / "final")
    assert kept
    assert {name: found[name] for name in kept} == {name: whole[name] for name in kept}
