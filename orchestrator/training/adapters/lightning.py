"""The contract for Lightning: `fit(trainer, module, loader, training)` instead of `trainer.fit(...)`.

A checkpoint holds Lightning's own file, `step-N/lightning.ckpt`, which `load_from_checkpoint` and `ckpt_path`
accept. Lightning decides what is in it. Its tensors are only copied while the training waits, and a thread
writes the file. Lightning's own AsyncCheckpointIO copies into new memory each time, then makes the whole file
in memory, and does not sync it.

That file has no random states, and no position inside an epoch (#17543, won't fix) unless the loader gives
one. So the loader gives its position, batches are a function of (seed, epoch, batch, rank), and dropout of
(seed, step, rank). Must never know models or data.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lightning.fabric.plugins.io import TorchCheckpointIO, XLACheckpointIO
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.plugins.io import AsyncCheckpointIO
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from lightning.pytorch.strategies.launchers import _MultiProcessingLauncher
from torch.utils.data import DataLoader, DistributedSampler

from orchestrator.training import Training
from orchestrator.training.adapters.stateless import Loader, seed_all, stateless
from orchestrator.training.native import Pickle, Staged, size_of
from orchestrator.training.writer import TEMPORARY

FILE = "lightning.ckpt"
_OTHERS_BYTES = 1024 * 1024  # what else has tensors: a scaler, callbacks


def fit(
    trainer: Trainer,
    module: LightningModule,
    loader: DataLoader[Any] | LightningDataModule | None,
    training: Training,
    *,
    val_dataloaders: Any = None,
    seed: int = 0,
    every: int | None = None,
) -> None:
    """Trains as `trainer.fit(module, loader)` does, and resumes if there is a checkpoint to resume from.

    `loader` may be a data module, or None if the module has a `train_dataloader`. Saves on request and at the
    end; without an orchestrator, also after each `every` steps. Reports the loss and the logged metrics every
    `log_every_n_steps`. On SIGTERM it saves and exits with 75. Call it once, with several processes in each.
    Raises ValueError for what it does not support, and says what to do instead.
    """
    _refuse(trainer)
    contract = _Contract(training, seed, every)
    trainer.callbacks.append(contract)  # type: ignore[attr-defined]
    # Lightning's own handler ends a training with an exception, even inside an accumulation window.
    trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]

    def exact(given: Any) -> _Batches:
        return _Batches(given, seed, trainer.global_rank, trainer.world_size)

    if loader is None or isinstance(loader, LightningDataModule):
        source: Any = module if loader is None else loader
        source.train_dataloader = _after(source.train_dataloader, exact)
        given: Any = loader
    else:
        given = exact(loader)
    resume = training.resume_from
    path = None if resume is None else str(resume / FILE)
    trainer.fit(module, given, val_dataloaders, ckpt_path=path)


def _refuse(trainer: Trainer) -> None:
    strategy = trainer.strategy
    name = type(strategy).__name__
    supported = isinstance(strategy, SingleDeviceStrategy | DDPStrategy)
    if not supported or isinstance(strategy, DeepSpeedStrategy):
        raise ValueError(
            f"{name} is not supported: its ranks save files of their own, or none. Use trainer.fit() with a "
            "ModelCheckpoint, and let the agent watch for its checkpoints: `checkpoint: {watch: ...}` "
            "(`orchestrator help any-script`)"
        )
    if isinstance(strategy.launcher, _MultiProcessingLauncher):
        raise ValueError(f"{name} that spawns or forks is not supported: use strategy='ddp', or torchrun")
    io = strategy.checkpoint_io
    inner = io.checkpoint_io if isinstance(io, AsyncCheckpointIO) else io
    if type(inner) not in (TorchCheckpointIO, XLACheckpointIO):
        raise ValueError(f"{type(inner).__name__} is not supported: leave the CheckpointIO plugin out")


def _after(asked: Callable[[], Any], then: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: then(asked())


class _Batches:
    """This rank's batches. Not a DataLoader, because Lightning would build that anew, with a sampler of its
    own."""

    def __init__(self, given: Any, seed: int, rank: int, ranks: int) -> None:
        if not isinstance(given, DataLoader):
            raise ValueError(f"one DataLoader is supported as the training data, not {type(given).__name__}")
        if isinstance(given.sampler, DistributedSampler):
            ranks = 1  # it has its share already
        self._loader: Loader = stateless(given, seed, rank, ranks)
        self.batch_sampler = self._loader.batch_sampler  # Lightning tells it the epoch

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._loader)

    def state_dict(self) -> dict[str, int]:
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._loader.load_state_dict(state)


class _Copies(TorchCheckpointIO):
    """Copies the tensors of a checkpoint instead of writing it."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.staged: Staged | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        try:
            pickle = Pickle(checkpoint)
        except Exception:  # noqa: BLE001 - Lightning drops what cannot be pickled, and says so
            self.staged = Staged(None)
        else:
            self.staged = self.training.stage(pickle.room)
            if self.staged.add(pickle, FILE):
                return
        super().save_checkpoint(checkpoint, path, storage_options)
        self.staged.files[FILE] = Path(path)


class _Contract(Callback):
    """Acts between two steps. After an epoch's last step it first waits for the end of the epoch (validation,
    schedulers), because Lightning does not repeat that on resume."""

    def __init__(self, training: Training, seed: int, every: int | None) -> None:
        self.training, self.seed, self.every = training, seed, every
        self.step, self.between_epochs = 0, False
        self.metrics: dict[str, float] = {}
        self._provided = False

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.step = trainer.global_step

    def on_train_batch_start(
        self, trainer: Trainer, _module: LightningModule, _batch: Any, number: int
    ) -> None:
        trainer.fit_loop.restarting = False  # otherwise ReduceLROnPlateau misses the end of a resumed epoch
        seed_all(self.seed, trainer.current_epoch, number, trainer.global_rank)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *_: Any) -> None:
        if trainer.global_step == self.step:  # inside an accumulation window
            return
        if not self._provided:
            optimizers = [each.state_dict() for each in trainer.optimizers]
            self.training.provide(size_of(module.state_dict(), optimizers) + _OTHERS_BYTES)
            self._provided = True
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
        files = self._files(trainer)
        self.training.save(trainer.global_step, {}, self.metrics, files=files, required=True)

    def _boundary(self, trainer: Trainer) -> None:
        self.step = trainer.global_step
        leaving = self.training.should_stop()
        if self.training.should_save(self.step, self.every) or leaving:
            files = self._files(trainer)
            if leaving:
                self._leave(trainer, files)
            self.training.save(self.step, {}, self.metrics, files=files)

    def _leave(self, trainer: Trainer, files: Staged) -> None:
        try:
            self.training.leave(self.step, {}, self.metrics, files=files)
        except SystemExit:
            if trainer.is_global_zero:
                raise
            # Lightning kills rank 0, which may still be ending, if a rank that it started exits with another
            # code. Only that of rank 0 counts.
            sys.exit(0)

    def _files(self, trainer: Trainer) -> Staged:
        before = trainer.strategy.checkpoint_io
        copies = trainer.strategy.checkpoint_io = _Copies(self.training)
        try:
            trainer.save_checkpoint(self.training.checkpoints / f"{TEMPORARY}{trainer.global_step}.{FILE}")
        finally:
            trainer.strategy.checkpoint_io = before
        return copies.staged or Staged(None)

    def _report(self, trainer: Trainer, outputs: Any) -> None:
        loss = outputs["loss"] if isinstance(outputs, dict) else outputs
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if loss is not None:
            self.metrics["loss"] = float(loss)
        self.training.report(trainer.global_step, **self.metrics)
