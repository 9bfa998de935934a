"""The real Lightning under the contract: interrupted runs end like uninterrupted ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from orchestrator.training.adapters.stateless import stateless
from tests.training.frameworks import Library, keeps_the_contract
from tests.training.scripts import ROOT, steps

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
TOY = Path(__file__).with_name("toy_lightning.py")
LIBRARY = Library("lightning")


def outcome(checkpoint: Path) -> dict[str, Any]:
    """Weights, the optimizer's moments and the learning rate."""
    found = torch.load(checkpoint / "lightning.ckpt", weights_only=False)
    optimizer = found["optimizer_states"][0]
    moments = {f"{n} {name}": t for n, parts in optimizer["state"].items() for name, t in parts.items()}
    rate = torch.tensor(optimizer["param_groups"][0]["lr"], dtype=torch.float64)
    return {**found["state_dict"], **moments, "rate": rate}


def same(one: Path, other: Path) -> bool:
    first, second = outcome(one), outcome(other)
    assert first.keys() == second.keys()
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("accumulate", "events", "total"),
    [
        (2, ("term:2", "kill:8"), 12),  # inside the first epoch and in the middle of an accumulation window
        (2, ("term:4", "term:5"), 12),  # at the end of an epoch, and after the first step of the next
        (1, ("kill:9", "term:7"), 21),  # an epoch's last step
        (9, ("term:1", "term:2"), 3),  # every step is the last of an epoch
    ],
)
def test_a_disturbed_run_ends_bit_for_bit_as_an_undisturbed_one(
    tmp_path: Path, accumulate: int, events: tuple[str, ...], total: int
) -> None:
    assert LIBRARY.run(tmp_path / "whole", TOY, 0, accumulate) == 0
    for workers in (0, 2):
        folder = tmp_path / f"disturbed-{workers}"
        LIBRARY.disturbed(folder, TOY, workers, accumulate, events=events)
        assert same(tmp_path / f"whole/checkpoints/step-{total}", folder / f"checkpoints/step-{total}")
    assert steps(tmp_path / "whole/checkpoints") == sorted({*range(3, total, 3), total})
    assert outcome(tmp_path / f"whole/checkpoints/step-{total}")["rate"] < 1e-3


def loaded(checkpoint: Path) -> torch.nn.Module:
    """The model that the library loads from a checkpoint of the example."""
    # Here, because it takes seconds, and every worker of a test run imports this file.
    from lightning.pytorch import LightningModule

    class Model(LightningModule):
        """It has the shape of the example's model."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
            )

    return Model.load_from_checkpoint(checkpoint)


def test_the_example_keeps_the_contract_and_the_library_loads_its_checkpoint(tmp_path: Path) -> None:
    last, whole = keeps_the_contract(LIBRARY, ROOT / "docs/examples/lightning_trainer.py", tmp_path, 120)
    assert same(last, whole)
    model = loaded(last / "lightning.ckpt")
    saved = outcome(last)
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())


def test_a_loader_without_positions_is_refused() -> None:
    class Endless(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    for loader in (DataLoader(Endless()), DataLoader([1, 2, 3], batch_size=None)):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="this loader has no positions"):
            stateless(loader, 0)
