"""The real Hugging Face Trainer under the contract: interrupted runs end like uninterrupted ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.training import Training
from tests.training.frameworks import Library, keeps_the_contract
from tests.training.scripts import ROOT, steps

pytestmark = pytest.mark.timeout(1800)  # many starts of torch, on a machine that others use as well
TOY = Path(__file__).with_name("toy_huggingface.py")
TOTAL = 11
LIBRARY = Library("transformers")


def outcome(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Weights and the optimizer's moments."""
    found = load_file(checkpoint / "model.safetensors")
    moments = torch.load(checkpoint / "optimizer.pt")["state"]
    return found | {f"{n} {name}": t for n, parts in moments.items() for name, t in parts.items()}


def same(one: Path, other: Path) -> bool:
    first, second = outcome(one), outcome(other)
    assert first.keys() == second.keys()
    return all(torch.equal(tensor, second[name]) for name, tensor in first.items())


@pytest.mark.parametrize(
    ("accumulate", "events"),
    [
        (2, ("term:2", "kill:8")),  # inside the first epoch and in the middle of an accumulation window
        (2, ("term:4", "term:5")),  # at the end of an epoch, and after the first step of the next
        (1, ("kill:9", "term:7")),  # an epoch's last step
    ],
)
def test_a_disturbed_run_ends_bit_for_bit_as_an_undisturbed_one(
    tmp_path: Path, accumulate: int, events: tuple[str, ...]
) -> None:
    assert LIBRARY.run(tmp_path / "whole", TOY, 0, accumulate) == 0
    for workers in (0, 2):
        folder = tmp_path / f"disturbed-{workers}"
        LIBRARY.disturbed(folder, TOY, workers, accumulate, events=events)
        assert same(tmp_path / f"whole/checkpoints/step-{TOTAL}", folder / f"checkpoints/step-{TOTAL}")
    assert not same(tmp_path / "whole/checkpoints/step-9", tmp_path / f"whole/checkpoints/step-{TOTAL}")
    assert steps(tmp_path / "whole/checkpoints") == [3, 6, 9, TOTAL]
    assert list((tmp_path / "whole/trainer").iterdir()) == []


def test_the_example_keeps_the_contract_and_the_library_loads_its_checkpoint(tmp_path: Path) -> None:
    last, whole = keeps_the_contract(LIBRARY, ROOT / "docs/examples/huggingface_trainer.py", tmp_path, 120)
    assert same(last, whole)
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(last)
    saved = load_file(last / "model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items() if name in saved)


@pytest.mark.parametrize(
    "asked", [{"load_best_model_at_end": True, "eval_strategy": "steps"}, {"save_strategy": "best"}]
)
def test_what_an_exact_resume_cannot_keep_is_refused(tmp_path: Path, asked: dict[str, Any]) -> None:
    from transformers import Trainer, TrainingArguments

    from orchestrator.training.adapters.huggingface import train

    arguments = TrainingArguments(
        output_dir=str(tmp_path), metric_for_best_model="loss", report_to=[], **asked
    )
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=[1], eval_dataset=[1])
    with pytest.raises(ValueError, match="best"):
        train(trainer, Training(tmp_path / "c"))
