"""`… WORKERS ACCUMULATE [EVENT]`: a Lightning training with dropout, random items, validation and a scheduler
that depends on the validation.

26 items make epochs of 7 batches. At `term:STEP` and `kill:STEP` rank 0 sends itself that signal inside the
step. Each rank notes a random number of each batch in `drawn-RANK`. DEVICES says how many processes there
are, DATA where the items come from, and MORE further arguments of the Trainer, as JSON.
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
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset

from orchestrator.training import Training
from orchestrator.training.adapters.lightning import fit
from tests.training import disk as disk

WORKERS, ACCUMULATE, *EVENTS = sys.argv[1:]
SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL}


class Items(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.linspace(0, index / 26, 16) + 0.1 * torch.rand(16) * random.random() + np.random.random()


class Model(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1)
        )

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layers(batch), batch.sum(1, keepdim=True))

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        for event in EVENTS if self.trainer.is_global_zero else ():
            kind, step = event.split(":")
            if self.trainer.global_step + 1 == int(step):
                os.kill(os.getpid(), SIGNALS[kind])
        loss = self.loss(batch)
        with Path(f"drawn-{self.global_rank}").open("a") as notes:
            print(torch.rand(()).item(), file=notes)
        return loss

    def validation_step(self, batch: torch.Tensor, _: int) -> None:
        self.log("validation", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), 1e-2)
        never = -10.0  # no epoch is ever good enough, so the rate falls after each one
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=-never)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "validation"}}


training = Training.from_environment()
torch.manual_seed(1)
trainer = Trainer(
    max_epochs=3, accumulate_grad_batches=int(ACCUMULATE), devices=int(os.environ.get("DEVICES", "1")),
    accelerator="cpu", logger=False, log_every_n_steps=1, num_sanity_val_steps=1, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, **json.loads(os.environ.get("MORE", "{}")),
)  # fmt: skip
loader = DataLoader(Items(), 4, shuffle=True, num_workers=int(WORKERS))
module, val_loader = Model(), DataLoader(Items(), 8)
DATA = os.environ.get("DATA", "loader")
if DATA == "loader":
    fit(trainer, module, loader, training, val_dataloaders=val_loader, every=3)
else:
    data: Any = module if DATA == "module" else LightningDataModule()
    data.train_dataloader, data.val_dataloader = lambda: loader, lambda: val_loader
    fit(trainer, module, None if data is module else data, training, every=3)
