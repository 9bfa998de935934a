"""The contract for a Hugging Face `Trainer`: `train(trainer, training)` instead of `trainer.train()`.

A checkpoint holds the files of the Trainer's own `checkpoint-N`, as `step-N`. `from_pretrained` and
`resume_from_checkpoint` accept it, and nothing is stored twice. The Trainer's saved random states are not
enough for an exact resume, because it fetches one batch ahead of the training, and that may draw random
numbers. So batches are a function of (seed, epoch, batch), and dropout of (seed, step). Must never know
models or data.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, TrainOutput

from orchestrator.training import EXIT_SAVED, Training
from orchestrator.training.adapters.stateless import seed_all, stateless


def train(trainer: Trainer, training: Training) -> TrainOutput:
    """Trains as `trainer.train()` does, and resumes if there is a checkpoint to resume from.

    Saves on request and at the end; without an orchestrator, saves as the arguments say. Reports what the
    Trainer logs. On SIGTERM it saves and exits with 75. Call it once. Raises ValueError for what it does not
    support: more than one device, saving or loading only the best checkpoint, a data set without positions.
    """
    if trainer.args.world_size > 1 or trainer.args.n_gpu > 1:
        raise ValueError("this adapter is for one process on one device")
    if trainer.args.save_strategy == SaveStrategy.BEST:
        raise ValueError("save_strategy='best' is not supported: a session must save when it ends")
    if trainer.args.load_best_model_at_end:
        raise ValueError(
            "load_best_model_at_end is not supported: checkpoints leave the Trainer's folder; "
            "choose the best one after the training"
        )
    loader = trainer.get_train_dataloader

    def exact() -> DataLoader[Any]:
        prepared: DataLoader[Any] = trainer.accelerator.prepare(stateless(loader(), trainer.args.seed))
        return prepared

    trainer.get_train_dataloader = exact  # type: ignore[method-assign]
    trainer.add_callback(_Contract(training))
    resume = training.resume_from
    return trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


class _Contract(TrainerCallback):
    """The Trainer calls it at each step. It is added last, so that it decides after the other callbacks."""

    def __init__(self, training: Training) -> None:
        self.training = training
        self.metrics: dict[str, float] = {}

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        seed_all(args.seed, state.global_step)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        every = int(state.save_steps) if args.save_strategy == SaveStrategy.STEPS else None
        asked = self.training.should_save(state.global_step, every)
        control.should_training_stop |= self.training.should_stop()
        control.should_save = asked or control.should_training_stop

    def on_evaluate(self, *given: Any, **_: Any) -> None:
        control: TrainerControl = given[2]
        control.should_save |= control.should_training_stop  # the evaluation may have ended the training

    def on_log(self, *given: Any, **named: Any) -> None:
        state: TrainerState = given[1]
        logs = named["logs"].items()
        found = {name: float(value) for name, value in logs if isinstance(value, int | float)}
        if "train_runtime" not in found:  # skips the summary after the end, a mean over all steps
            self.metrics |= found
            self.training.report(state.global_step, **found)

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        written = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        files = {path.name: path.read_bytes() for path in written.iterdir()}
        shutil.rmtree(written)
        last = control.should_training_stop
        self.training.save(state.global_step, {}, self.metrics, files=files, required=last)
        if last and self.training.should_stop() and state.global_step < state.max_steps:
            raise SystemExit(EXIT_SAVED)
