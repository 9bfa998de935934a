import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class AutoEncoder(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 3))
        self.decoder = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64))

    def training_step(self, batch, batch_idx):
        (x,) = batch
        loss = nn.functional.mse_loss(self.decoder(self.encoder(x)), x)
        self.log("train_loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch, batch_idx):
        (x,) = batch
        self.log("val_loss", nn.functional.mse_loss(self.decoder(self.encoder(x)), x), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


def waves(n):
    """Sums of three sines with random phases."""
    t = torch.linspace(0, 6.28, 64)
    phases = torch.rand(n, 3, 1) * 6.28
    return TensorDataset(sum(torch.sin((k + 1) * t + phases[:, k]) for k in range(3)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--max_epochs", type=int, default=10)
    parser.add_argument("--ckpt_path", default=None)
    args = parser.parse_args()

    L.seed_everything(7)
    train_loader = DataLoader(waves(2000), batch_size=32, shuffle=True)
    val_loader = DataLoader(waves(200), batch_size=200)
    trainer = L.Trainer(
        max_epochs=args.max_epochs,
        accelerator="auto",
        callbacks=[ModelCheckpoint(save_top_k=-1)],
        logger=CSVLogger("."),
    )
    trainer.fit(AutoEncoder(), train_loader, val_loader, ckpt_path=args.ckpt_path)
