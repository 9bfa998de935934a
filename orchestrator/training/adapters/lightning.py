"""The contract for Lightning: `fit(trainer, module, loader, training)` instead of `trainer.fit(...)`.

A checkpoint holds Lightning's own file, `step-N/lightning.ckpt`, which `load_from_checkpoint` and `ckpt_path`
accept. That file has no random states, and no position inside an epoch (#17543, won't fix) unless the loader
gives one. So the loader gives its position, batches are a function of (seed, epoch, batch), and dropout of
(seed, step). Must never know models or data.
"""

from __future__ import annotations

import signal
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch.utils.data import DataLoader

from orchestrator.training import EXIT_SAVED, Training
from orchestrator.training.adapters.stateless import seed_all, stateless

FILE = "lightning.ckpt"


def fit(
    trainer: Trainer,
    module: LightningModule,
    loader: DataLoader[Any],
    training: Training,
    *,
    val_dataloaders: Any = None,
    seed: int = 0,
    every: int | None = None,
) -> None:
    """Trains as `trainer.fit(module, loader)` does, and resumes if there is a checkpoint to resume from.

    Saves on request and at the end; without an orchestrator, also after each `every` steps. Reports the loss
    and the logged metrics every `log_every_n_steps`. On SIGTERM it saves and exits with 75. Call it once.
    Raises ValueError for more than one process, or for an iterable data set.
    """
    if trainer.world_size > 1:
        raise ValueError("this adapter is for one process on one device")
    trainer.callbacks.append(_Contract(training, seed, every))  # type: ignore[attr-defined]
    resume = training.resume_from
    trainer.fit(
        module,
        stateless(loader, seed),
        val_dataloaders,
        ckpt_path=None if resume is None else str(resume / FILE),
    )


class _Contract(Callback):
    """Acts between two steps. After an epoch's last step it first waits for the end of the epoch (validation,
    schedulers), because Lightning does not repeat that on resume."""

    def __init__(self, training: Training, seed: int, every: int | None) -> None:
        self.training, self.seed, self.every = training, seed, every
        self.step, self.between_epochs = 0, False
        self.metrics: dict[str, float] = {}
        self._on_signal = signal.getsignal(signal.SIGTERM)

    def on_sanity_check_start(self, *_: Any) -> None:
        self._take_signal()

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self._take_signal()
        self.step = trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, _module: LightningModule, _batch: Any, number: int
    ) -> None:
        trainer.fit_loop.restarting = False  # otherwise ReduceLROnPlateau misses the end of a resumed epoch
        seed_all(self.seed, trainer.current_epoch, number)

    def on_train_batch_end(self, trainer: Trainer, _module: LightningModule, outputs: Any, *_: Any) -> None:
        if trainer.global_step == self.step:  # inside an accumulation window
            return
        if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._report(trainer, outputs)
        if not trainer.is_last_batch:
            self._boundary(trainer)

    def on_train_epoch_start(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step != self.step:
            self.between_epochs = True
            self._boundary(trainer)
            self.between_epochs = False

    def on_save_checkpoint(
        self, _trainer: Trainer, _module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Between two epochs, Lightning's file still points into the first. A resume from it would skip the
        next one."""
        if self.between_epochs:
            loop = checkpoint["loops"]["fit_loop"]
            batches, epochs = loop["epoch_loop.batch_progress"], loop["epoch_progress"]
            batches["current"] = dict.fromkeys(batches["current"], 0)
            batches["is_last_batch"] = False
            for count in epochs.values():
                count["ready"] = count["completed"]

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self._save(trainer, required=True)

    def _boundary(self, trainer: Trainer) -> None:
        self.step = trainer.global_step
        leaving = self.training.should_stop()
        if self.training.should_save(self.step, self.every):
            self._save(trainer, required=leaving)
        if leaving:
            raise SystemExit(EXIT_SAVED)

    def _save(self, trainer: Trainer, *, required: bool) -> None:
        scratch = self.training.checkpoints / f".tmp-{FILE}"
        trainer.save_checkpoint(scratch)
        files = {FILE: scratch.read_bytes()}
        scratch.unlink()
        self.training.save(trainer.global_step, {}, self.metrics, files=files, required=required)

    def _report(self, trainer: Trainer, outputs: Any) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if loss is not None:
            self.metrics["loss"] = float(loss)
        self.training.report(trainer.global_step, **self.metrics)

    def _take_signal(self) -> None:
        """Puts our handler back: Lightning's ends a training with an exception, even inside an accumulation
        window."""
        signal.signal(signal.SIGTERM, self._on_signal)
