"""What the witness notes of real trainings: enough to tell what a resumed one did not get back."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.rehearsal.comparing import Lost, Resumption, Seen, resumption, trace
from tests.training.scripts import finish, started

SCENES = Path(__file__).with_name("scenes.py")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scenes")


def traced(folder: Path, kind: str, forgets: str | None = None) -> tuple[Seen, ...]:
    """The steps of a training; of the uninterrupted one only once."""
    path = folder / f"{kind}-{forgets}.jsonl"
    if not path.exists():
        words = (str(SCENES), kind, str(path), str(folder / f"{kind}.pt"))
        with started((*words, *([forgets] if forgets else [])), folder) as process:
            told = finish(process)
        assert process.returncode == 0, told
        assert "error" not in path.read_text(), path.read_text()
    return trace(path.read_text())


@pytest.mark.parametrize(
    ("kind", "forgets", "lost", "names"),
    [
        ("everything", "nothing", (), ()),
        ("everything", "model", (Lost.WEIGHTS,), ()),
        ("everything", "optimizer", (Lost.OPTIMIZER,), ()),
        ("everything", "scheduler", (Lost.STATE,), ("StepLR",)),
        ("everything", "average", (Lost.STATE,), ("Sequential",)),
        ("everything", "place", (Lost.DATA,), ()),
        ("everything", "order", (Lost.DATA, Lost.RANDOM), ("order",)),
        ("everything", "torch", (Lost.RANDOM,), ("torch",)),
        ("everything", "rng", (Lost.DATA, Lost.RANDOM), ("rng",)),
        ("everything", "python", (Lost.DATA, Lost.RANDOM), ("python",)),
        ("validates", "nothing", (Lost.RANDOM,), ("torch",)),  # after it has saved: a loader draws a seed
        ("compiled", "nothing", (), ()),
        ("adversaries", "nothing", (), ()),
        ("adversaries", "judge", (Lost.WEIGHTS,), ()),
        ("adversaries", "second", (Lost.OPTIMIZER,), ()),
        ("closure", "nothing", (), ()),
        ("closure", "optimizer", (Lost.OPTIMIZER,), ()),
    ],
)
def test_what_is_forgotten_is_seen(
    folder: Path, kind: str, forgets: str, lost: tuple[Lost, ...], names: tuple[str, ...]
) -> None:
    whole = traced(folder, kind)
    found = resumption(whole, traced(folder, kind, forgets))
    assert found is not None
    assert found.lost == lost
    assert (*found.states, *found.generators) == names
    assert found.later is None
    assert found.drifts_at is None


def test_one_of_two_models_that_is_not_saved_is_seen(folder: Path) -> None:
    found = resumption(traced(folder, "adversaries"), traced(folder, "adversaries", "maker"))
    assert found is not None
    assert {Lost.WEIGHTS, Lost.STATE} <= {*found.lost}


def test_passes_over_the_data_are_counted(folder: Path) -> None:
    whole = traced(folder, "everything")
    assert [seen.passes for seen in whole[:10]] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert {seen.batches for seen in whole} == {4}
    assert resumption(whole, whole[6:]) == Resumption(6, ())
