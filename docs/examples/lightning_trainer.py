import sys

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from orchestrator.training import Training
from orchestrator.training.adapters.lightning import fit

training = Training.from_environment()  # before anything slow: from here on SIGTERM means "save, then leave"


class Sums(torch.utils.data.Dataset):
    def __len__(self):
        return 416

    def __getitem__(self, index):  # random choices may be made anywhere: here, in the collation, in the model
        x = torch.linspace(0, index / 416, 16) + 0.1 * torch.rand(16)
        return x, x.sum(0, keepdim=True)


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Dropout(0.1), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, _):
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-2)


torch.manual_seed(0)
trainer = Trainer(
    max_steps=int(sys.argv[1]),
    accumulate_grad_batches=2,
    devices=1,
    log_every_n_steps=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
loader = DataLoader(Sums(), 8, shuffle=True, num_workers=int(sys.argv[2]))
fit(trainer, Model(), loader, training)  # instead of trainer.fit(module, loader)
