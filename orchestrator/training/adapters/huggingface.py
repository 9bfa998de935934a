"""The contract for a Hugging Face `Trainer`: `train(trainer, training)` instead of `trainer.train()`.

A checkpoint holds the files of the Trainer's own `checkpoint-N`, as `step-N`. `from_pretrained` and
`resume_from_checkpoint` accept it, and nothing is stored twice. The Trainer's own code decides what is in
them, but their tensors are only copied while the training waits. A thread writes them (`recording`). The
helper's format would be as fast, but the library could not load it; moving the folder that the Trainer wrote
would be as small, but the training would wait for the disk.

The Trainer's saved random states are not enough for an exact resume, because it fetches one batch ahead of
the training, and that may draw random numbers. So batches are a function of (seed, epoch, batch, rank), and
dropout of (seed, step, rank). Must never know models or data.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from accelerate.data_loader import DataLoaderDispatcher, prepare_data_loader
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy, SaveStrategy, TrainOutput

from orchestrator.training import Training
from orchestrator.training.adapters.recording import recorded, take_written
from orchestrator.training.adapters.stateless import seed_all, stateless
from orchestrator.training.native import Staged, size_of
from orchestrator.training.writer import TEMPORARY

_OTHERS_BYTES = 1024 * 1024  # what else has tensors: random states, a scaler


def train(trainer: Trainer, training: Training) -> TrainOutput:
    """Trains as `trainer.train()` does, and resumes if there is a checkpoint to resume from.

    Saves on request and at the end; without an orchestrator, saves as the arguments say. Reports what the
    Trainer logs. On SIGTERM it saves and exits with 75. Call it once, with several processes in each. Raises
    ValueError for what it does not support, and says what to do instead.
    """
    _refuse(trainer)
    training.keep_newest(trainer.args.save_total_limit)
    contract = _Contract(trainer, training)
    given = trainer.get_train_dataloader
    rank, ranks = trainer.args.process_index, trainer.args.world_size

    def exact() -> DataLoader[Any]:
        loader = given()  # has this rank's share of the batches already
        if isinstance(loader, DataLoaderDispatcher):
            raise ValueError(
                "dispatch_batches is not supported: leave it out, so that each rank loads its own"
            )
        accelerator = trainer.accelerator
        prepared: DataLoader[Any] = prepare_data_loader(
            stateless(loader, trainer.args.seed, rank),
            accelerator.device,
            num_processes=1,
            process_index=0,
            put_on_device=accelerator.device_placement,
            non_blocking=accelerator.non_blocking,
        )
        return prepared

    trainer.get_train_dataloader = exact  # type: ignore[method-assign]
    trainer._save_checkpoint = contract.take  # type: ignore[method-assign]
    if ranks > 1:  # not needed, and each rank would write a file of its own into the folder of rank 0
        trainer._save_rng_state = _nothing  # type: ignore[method-assign]
    trainer.add_callback(contract)
    resume = training.resume_from
    return trainer.train(resume_from_checkpoint=None if resume is None else str(resume))


def _nothing(output_dir: str) -> None:
    """Saves no random states in `output_dir`."""


def _refuse(trainer: Trainer) -> None:
    args = trainer.args
    watched = (
        "its ranks save files of their own. Use trainer.train(), and let the agent watch for checkpoints: "
        "`checkpoint: {watch: ...}` (`orchestrator help any-script`)"
    )
    started = int(os.environ.get("WORLD_SIZE") or 1)
    wrong = {
        f"{started} processes were started, but the Trainer is alone in each: without a GPU, it needs "
        "TrainingArguments(use_cpu=True)": args.world_size < started,
        "FSDP is not supported: " + watched: trainer.is_fsdp_enabled or trainer.is_fsdp_xla_enabled,
        "DeepSpeed is not supported: " + watched: trainer.is_deepspeed_enabled,
        "a model that is sharded when it is loaded is not supported: " + watched: getattr(
            trainer, "is_distributed_loading_by_transformers", False
        ),
        f"one process with {args.n_gpu} GPUs is not supported: start one process for each "
        "(torchrun --nproc-per-node ...), or let it see one (CUDA_VISIBLE_DEVICES=0)": args.n_gpu > 1,
        "save_strategy='best' is not supported: a session must save when it ends": args.save_strategy
        == SaveStrategy.BEST,
        "load_best_model_at_end is not supported: checkpoints leave the Trainer's folder; "
        "choose the best one after the training": args.load_best_model_at_end,
        "save_on_each_node is not supported: rank 0 saves for all": args.save_on_each_node,
        "save_only_model is not supported: a resume needs the optimizer": args.save_only_model,
        "ignore_data_skip is not supported: a resume would see other batches": args.ignore_data_skip,
        "auto_find_batch_size is not supported: a resume would see other batches; set the size (in a job by "
        "{micro_batch})": args.auto_find_batch_size,
        "push_to_hub is supported with hub_strategy='end' only: checkpoints leave the Trainer's folder": (
            args.push_to_hub and args.hub_strategy != HubStrategy.END
        ),
    }
    for what, is_so in wrong.items():
        if is_so:
            raise ValueError(what)


class _Contract(TrainerCallback):
    """The Trainer calls it at each step. It is added last, so that it decides after the other callbacks."""

    def __init__(self, trainer: Trainer, training: Training) -> None:
        self.trainer, self.training = trainer, training
        self.metrics: dict[str, float] = {}
        self._library = trainer._save_checkpoint
        self._staged: Staged | None = None
        self._saved: int | None = None
        self._provided = False

    def take(self, model: Any, trial: Any) -> None:
        """In place of the Trainer's own saving: lets it decide what to save, and copies that."""
        step = self.trainer.state.global_step
        folder = Path(str(self.trainer.args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
        if not self.trainer.is_world_process_zero():
            self._library(model, trial)  # which may be a matter for all ranks
            return
        staged = self.training.stage(self._size())
        try:
            with recorded(staged, folder):
                self._library(model, trial)
            take_written(staged, folder, self.training.checkpoints / f"{TEMPORARY}{step}")
        except BaseException:
            staged.release()
            raise
        self._staged = staged

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **__: Any) -> None:
        seed_all(args.seed, state.global_step, args.process_index)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if not self._provided:
            self.training.provide(self._size())
            self._provided = True
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

    def on_save(self, *given: Any, **_: Any) -> None:
        state: TrainerState = given[1]
        control: TrainerControl = given[2]
        step, last = state.global_step, control.should_training_stop
        staged, self._staged = self._staged or Staged(None), None
        if last and self.training.should_stop() and step < state.max_steps:
            self.training.leave(step, {}, self.metrics, files=staged)
        self.training.save(step, {}, self.metrics, files=staged, required=last)
        self._saved = step

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **named: Any
    ) -> None:
        """Something may have ended the training after this class has decided."""
        if self._saved != state.global_step:
            control.should_training_stop = True
            self.trainer._save_checkpoint(named["model"], None)
            self.on_save(args, state, control)

    def _size(self) -> int:
        """The bytes of all that has tensors, with the gaps between files."""
        parts = (self.trainer.model, self.trainer.optimizer)
        return size_of(*(part.state_dict() for part in parts if part is not None)) + _OTHERS_BYTES
