"""The real Hugging Face Trainer under the contract: interrupted runs end like uninterrupted ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from orchestrator.training import Training
from orchestrator.training.adapters.recording import recorded, take_written
from orchestrator.training.layout import Shard
from orchestrator.training.native import size_of
from tests.training.frameworks import Library, drawn, keeps_the_contract
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


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The checkpoints of an uninterrupted run, by its arguments."""

    @cache
    def run(accumulate: int, ranks: int = 1) -> Path:
        folder = tmp_path_factory.mktemp("whole")
        assert LIBRARY.run(folder, TOY, 0, accumulate, ranks=ranks) == 0
        assert list((folder / "trainer").iterdir()) == []
        assert steps(folder / "checkpoints") == [3, 6, 9, TOTAL]
        return folder / "checkpoints"

    return run


@pytest.mark.parametrize(
    ("accumulate", "events", "workers", "ranks"),
    [
        (2, ("term:2", "kill:8"), 2, 1),  # inside the first epoch and in the middle of an accumulation window
        # at the end of an epoch, and after the first step of the next
        pytest.param(2, ("term:4", "term:5"), 0, 1, marks=pytest.mark.soak),
        (1, ("kill:9", "term:7"), 2, 1),  # an epoch's last step
        pytest.param(2, ("term:3", "kill:8"), 1, 2, marks=pytest.mark.soak),
    ],
)
def test_a_disturbed_run_ends_bit_for_bit_as_an_undisturbed_one(
    tmp_path: Path,
    wholes: Callable[..., Path],
    accumulate: int,
    events: tuple[str, ...],
    workers: int,
    ranks: int,
) -> None:
    whole = wholes(accumulate, ranks)
    LIBRARY.disturbed(tmp_path, TOY, workers, accumulate, events=events, ranks=ranks)
    assert same(whole / f"step-{TOTAL}", tmp_path / f"checkpoints/step-{TOTAL}")
    assert not same(whole / "step-9", whole / f"step-{TOTAL}")
    assert len(set(drawn(whole.parent))) == ranks * TOTAL, "a rank or a step repeats numbers of another"


def test_the_newest_checkpoints_stay_and_say_that_torch_was_deterministic(tmp_path: Path) -> None:
    more = json.dumps({"save_total_limit": 2, "full_determinism": True})
    assert LIBRARY.run(tmp_path, TOY, 0, 2, MORE=more) == 0
    assert steps(tmp_path / "checkpoints") == [9, TOTAL]
    for step in (9, TOTAL):
        said = (tmp_path / f"checkpoints/step-{step}/environment.json").read_bytes()
        assert json.loads(said) == {"deterministic": True}


def test_the_training_does_not_wait_for_the_disk(tmp_path: Path, wholes: Callable[..., Path]) -> None:
    LIBRARY.does_not_wait_for_the_disk(tmp_path / "slow", TOY, 3)
    assert same(tmp_path / "slow/checkpoints/step-3", wholes(2) / "step-3")


@pytest.mark.parametrize("background", [True, False])
def test_what_the_library_saves_is_copied_or_moved_but_never_read(tmp_path: Path, background: bool) -> None:
    from transformers import BertConfig, BertForMaskedLM

    model = BertForMaskedLM(
        BertConfig(vocab_size=3000, hidden_size=96, num_hidden_layers=1, num_attention_heads=2)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8)[None]).logits.sum().backward()
    optimizer.step()
    training, folder = Training(tmp_path / "c", background=background), tmp_path / "checkpoint-1"
    staged = training.stage(size_of(model.state_dict(), optimizer.state_dict()) + 4096)
    with recorded(staged, folder):
        model.save_pretrained(folder)
        torch.save(optimizer.state_dict(), folder / "optimizer.pt")
        torch.save(optimizer.state_dict(), tmp_path / "elsewhere.pt")
    assert (folder / "model.safetensors").exists() != background
    take_written(staged, folder, tmp_path / "c/.tmp-step-1")
    kinds = {
        name: type(given) for name, given in staged.files.items() if name.endswith((".safetensors", ".pt"))
    }
    assert all(issubclass(kind, Shard if background else Path) for kind in kinds.values())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    if background:
        for parameter in model.parameters():
            torch.nn.init.zeros_(parameter)
    target = training.save(1, {}, files=staged)
    training.wait()
    assert target is not None
    loaded = BertForMaskedLM.from_pretrained(target).state_dict()
    assert all(torch.equal(value, before[name]) for name, value in loaded.items())
    moments = torch.load(target / "optimizer.pt")["state"]
    assert torch.equal(moments[0]["exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert (tmp_path / "elsewhere.pt").exists()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["step-1"]


def test_the_example_keeps_the_contract_and_the_library_loads_its_checkpoint(tmp_path: Path) -> None:
    last, whole = keeps_the_contract(LIBRARY, ROOT / "docs/examples/huggingface_trainer.py", tmp_path, 120)
    assert same(last, whole)
    from transformers import BertForMaskedLM

    model = BertForMaskedLM.from_pretrained(last)
    saved = load_file(last / "model.safetensors")
    assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items() if name in saved)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps"},
            "load_best_model_at_end is not supported",
        ),
        ({"save_strategy": "best"}, "save_strategy='best' is not supported"),
        ({"save_only_model": True}, "save_only_model is not supported"),
        ({"ignore_data_skip": True}, "ignore_data_skip is not supported"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size is not supported"),
        ({"save_on_each_node": True}, "save_on_each_node is not supported"),
        ({"accelerator_config": {"dispatch_batches": True}}, "dispatch_batches is not supported"),
    ],
)
def test_what_an_exact_resume_cannot_keep_is_refused(
    tmp_path: Path, asked: dict[str, Any], said: str
) -> None:
    from transformers import Trainer, TrainingArguments

    from orchestrator.training.adapters.huggingface import train

    arguments = TrainingArguments(
        output_dir=str(tmp_path), metric_for_best_model="loss", report_to=[], **asked
    )
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, train_dataset=[1], eval_dataset=[1])
    with pytest.raises(ValueError, match=said):
        train(trainer, Training(tmp_path / "c"))


def test_uploads_of_checkpoints_are_refused(tmp_path: Path) -> None:
    from transformers import Trainer, TrainingArguments

    from orchestrator.training.adapters.huggingface import train

    trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments(str(tmp_path), report_to=[]))
    trainer.args.push_to_hub = True  # asked for at the beginning, the Trainer would look for the hub now
    with pytest.raises(ValueError, match="hub_strategy='end' only"):
        train(trainer, Training(tmp_path / "c"))


def test_ranks_that_the_trainer_does_not_know_of_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer, TrainingArguments

    from orchestrator.training.adapters.huggingface import train

    trainer = Trainer(torch.nn.Linear(1, 1), TrainingArguments(str(tmp_path), report_to=[]))
    monkeypatch.setenv("WORLD_SIZE", "2")  # as torchrun sets it
    with pytest.raises(ValueError, match=r"it needs TrainingArguments\(use_cpu=True\)"):
        train(trainer, Training(tmp_path / "c"))
