"""`… WORKERS ACCUMULATE [EVENT]`: a Hugging Face training with dropout, random masking and uneven epochs.

26 items make epochs of 7 batches. At `term:STEP` and `kill:STEP` rank 0 sends itself that signal inside the
step. Each rank notes a random number of each step in `drawn-RANK`. MORE has further arguments, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)

from orchestrator.training import Training
from orchestrator.training.adapters.huggingface import train
from tests.training import disk as disk

WORKERS, ACCUMULATE, *EVENTS = sys.argv[1:]
SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


def masked(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    tokens = torch.tensor([item["input_ids"] for item in items])
    mask = torch.rand(tokens.shape) < 0.2 + 0.2 * random.random() * np.random.random()
    return {"input_ids": tokens.masked_fill(mask, 1), "labels": tokens.masked_fill(~mask, -100)}


class Events(TrainerCallback):
    def on_substep_end(self, *given: Any, **_: Any) -> None:
        self.on_pre_optimizer_step(*given)  # an accumulation window is open

    def on_pre_optimizer_step(self, *given: Any, **_: Any) -> None:
        state: TrainerState = given[1]
        for event in EVENTS if state.is_world_process_zero else ():
            kind, step = event.split(":")
            if state.global_step + 1 == int(step):
                os.kill(os.getpid(), SIGNALS[kind])

    def on_optimizer_step(self, args: TrainingArguments, *_: Any, **__: Any) -> None:
        with Path(f"drawn-{args.process_index}").open("a") as notes:
            print(torch.rand(()).item(), file=notes)


training = Training.from_environment()
torch.manual_seed(1)
config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
)
arguments = TrainingArguments(
    output_dir="trainer", use_cpu=True, max_steps=11, per_device_train_batch_size=4, learning_rate=1e-2,
    warmup_steps=3, gradient_accumulation_steps=int(ACCUMULATE), dataloader_num_workers=int(WORKERS),
    save_steps=3, logging_steps=1, ddp_find_unused_parameters=False, disable_tqdm=True, report_to=[],
    **json.loads(os.environ.get("MORE", "{}")),
)  # fmt: skip
items = [{"input_ids": [(i * 7 + j * j) % 60 + 3 for j in range(12)]} for i in range(26)]
trainer = Trainer(
    BertForMaskedLM(config), arguments, data_collator=masked, train_dataset=items, callbacks=[Events()]
)
train(trainer, training)
