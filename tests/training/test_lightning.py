"""The real Lightning under the contract: interrupted runs end like uninterrupted ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from orchestrator.training import EXIT_SAVED, Training
from orchestrator.training.adapters.stateless import stateless
from tests.training.frameworks import Library, drawn, keeps_the_contract
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


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The checkpoints of an uninterrupted run, by its arguments."""

    @cache
    def run(accumulate: int, ranks: int = 1) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        assert LIBRARY.run(folder, TOY, 0, accumulate, ranks=ranks, DEVICES=ranks) == 0
        return folder / "checkpoints"

    return run


@pytest.mark.parametrize(
    ("accumulate", "events", "total", "workers", "data"),
    [
        # inside the first epoch and in the middle of an accumulation window
        pytest.param(2, ("term:2", "kill:8"), 12, 2, "loader", marks=pytest.mark.soak),
        # at the end of an epoch, and after the first step of the next
        pytest.param(2, ("term:4", "term:5"), 12, 0, "data module", marks=pytest.mark.soak),
        (1, ("kill:9", "term:7"), 21, 2, "loader"),  # an epoch's last step
        (9, ("term:1", "term:2"), 3, 0, "module"),  # every step is the last of an epoch
    ],
)
def test_a_disturbed_run_ends_bit_for_bit_as_an_undisturbed_one(
    tmp_path: Path,
    wholes: Callable[..., Path],
    accumulate: int,
    events: tuple[str, ...],
    total: int,
    workers: int,
    data: str,
) -> None:
    whole = wholes(accumulate)
    LIBRARY.disturbed(tmp_path, TOY, workers, accumulate, events=events, DATA=data)
    assert same(whole / f"step-{total}", tmp_path / f"checkpoints/step-{total}")
    assert steps(whole) == sorted({*range(3, total, 3), total})
    assert outcome(whole / f"step-{total}")["rate"] < 1e-3


@pytest.mark.soak
def test_two_processes_end_bit_for_bit_as_undisturbed_ones(
    tmp_path: Path, wholes: Callable[..., Path]
) -> None:
    """The first part is started by Lightning itself, and rank 0 gets the signal, as from the agent."""
    whole = wholes(2, 2)
    assert LIBRARY.run(tmp_path, TOY, 1, 2, "term:3", DEVICES=2) == EXIT_SAVED
    assert steps(tmp_path / "checkpoints") == [3]
    LIBRARY.disturbed(tmp_path, TOY, 1, 2, events=("kill:5",), ranks=2, DEVICES=2)
    assert same(whole / "step-6", tmp_path / "checkpoints/step-6")
    assert len(set(drawn(whole.parent))) == 2 * 12, "a rank or a batch repeats numbers of another"


def test_checkpoints_say_that_torch_was_deterministic(tmp_path: Path) -> None:
    more = json.dumps({"deterministic": True})
    assert LIBRARY.run(tmp_path, TOY, 0, 2, MORE=more) == 0
    said = (tmp_path / "checkpoints/step-12/environment.json").read_bytes()
    assert json.loads(said) == {"deterministic": True}


def test_the_training_does_not_wait_for_the_disk(tmp_path: Path, wholes: Callable[..., Path]) -> None:
    LIBRARY.does_not_wait_for_the_disk(tmp_path / "slow", TOY, 3)
    assert same(tmp_path / "slow/checkpoints/step-3", wholes(2) / "step-3")


@pytest.mark.parametrize("background", [True, False])
def test_a_checkpoint_is_copied_or_moved_but_never_read(tmp_path: Path, background: bool) -> None:
    from orchestrator.training.adapters.lightning import FILE, _Copies

    training, written = Training(tmp_path / "c", background=background), tmp_path / "c/.tmp-step-1.ckpt"
    copies, weights = _Copies(training), torch.ones(400_000)
    copies.save_checkpoint({"state_dict": {"weights": weights}, "epoch": 1}, written)
    assert written.exists() != background
    if background:
        weights.zero_()
    assert copies.staged is not None
    target = training.save(1, {}, files=copies.staged)
    training.wait()
    assert target is not None
    found = torch.load(target / FILE, weights_only=False)
    assert found["epoch"] == 1
    assert torch.equal(found["state_dict"]["weights"], torch.ones(400_000))
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-1"]


def test_what_has_ranks_or_files_of_its_own_is_refused(tmp_path: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.io import TorchCheckpointIO
    from lightning.pytorch.strategies import ModelParallelStrategy

    from orchestrator.training.adapters.lightning import fit

    class Foreign(TorchCheckpointIO):
        pass

    cases: list[tuple[dict[str, Any], str]] = [
        ({"devices": 2, "strategy": "ddp_spawn"}, "use strategy='ddp'"),
        ({"devices": 2, "strategy": ModelParallelStrategy()}, "ModelParallelStrategy is not supported"),
        ({"plugins": Foreign()}, "Foreign is not supported: leave the CheckpointIO plugin out"),
    ]
    for asked, said in cases:
        trainer = Trainer(accelerator="cpu", logger=False, **asked)
        with pytest.raises(ValueError, match=said):
            fit(trainer, LightningModule(), None, Training(tmp_path / "c"))


def test_several_training_loaders_are_refused(tmp_path: Path) -> None:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.plugins.io import AsyncCheckpointIO

    from orchestrator.training.adapters.lightning import fit

    loader: DataLoader[Any] = DataLoader(range(3))  # type: ignore[arg-type]
    several: list[Any] = [{"a": loader, "b": loader}, [loader, loader]]
    for given in several:
        trainer = Trainer(accelerator="cpu", logger=False, plugins=AsyncCheckpointIO())  # which is supported
        with pytest.raises(ValueError, match=f"one DataLoader is supported .*not {type(given).__name__}"):
            fit(trainer, LightningModule(), given, Training(tmp_path / "c"))


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


def test_every_rank_has_as_many_batches_of_the_same_size_and_all_items_are_taken() -> None:
    loader: DataLoader[Any] = DataLoader(range(26), 4, shuffle=True)  # type: ignore[arg-type]
    shares = [[batch.tolist() for batch in stateless(loader, 0, rank, 3)] for rank in range(3)]
    assert [[len(batch) for batch in share] for share in shares] == [[4, 4, 4]] * 3
    assert {item for share in shares for batch in share for item in batch} == set(range(26))
    tiny: DataLoader[Any] = DataLoader(range(2), 4)  # type: ignore[arg-type]
    assert [[b.tolist() for b in stateless(tiny, 0, rank, 3)] for rank in range(3)] == [[[0, 1, 0, 1]]] * 3
