"""The training loop. Decides nothing about when to save or stop: it asks `training`.

Losses are sums divided by the counts of the whole global batch, and every batch is a function of (seed,
step). So micro-batches, devices and interruptions do not change the mathematics. Must never know
sessions or platforms.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from graphmer import evaluation, flops, graph, report, triples
from graphmer.config import Config, Data
from graphmer.corpus import Corpus
from graphmer.model import Encoder
from graphmer.objectives import Constraints, Loss
from graphmer.plan import Plan
from orchestrator.training import Frozen, Training, determinism
from orchestrator.training.devices import Device, part

REPORT_SECONDS = 1.0
SIGN_SECONDS = 60.0  # between signs of life while no step is made; after five minutes the agent sees a stall
HISTORY_STEPS = 50  # steps between two rows of the curves

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """How the model is trained. One step has `micro_batch × accumulate × devices` samples."""

    steps: int
    micro_batch: int
    accumulate: int
    precision: str
    seed: int
    devices: int = 1

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulate * self.devices


@dataclass(frozen=True)
class Identity:
    """What a checkpoint and the training that resumes from it must have in common. Restored first."""

    decisive: Mapping[str, Any]

    @classmethod
    def of(cls, config: Config, schedule: Schedule) -> Identity:
        given = {"steps": schedule.steps, "seed": schedule.seed, "global_batch": schedule.global_batch}
        parts = config.decisive().items()
        return cls(given | {f"{part}.{key}": value for part, keys in parts for key, value in keys.items()})

    def state_dict(self) -> dict[str, Any]:
        return dict(self.decisive)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Raises ValueError with every difference."""
        differs = [f"{k} {saved.get(k)} (here {v})" for k, v in self.decisive.items() if saved.get(k) != v]
        if differs:
            raise ValueError(f"the checkpoint belongs to another training: {', '.join(differs)}")


@dataclass
class History:
    """The rows of the curves, and the best MRR so far."""

    rows: list[dict[str, float]] = field(default_factory=list)
    best: float = -math.inf

    def state_dict(self) -> dict[str, Any]:
        return {"rows": [dict(row) for row in self.rows], "best": self.best}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self.rows, self.best = saved["rows"], saved["best"]


class Scaler:
    """The loss scale of fp16. Other precisions do not use it, and keep the saved scale unchanged."""

    def __init__(self, device: Device, precision: str) -> None:
        self.scaler = torch.amp.GradScaler(device.autocast, enabled=precision == "fp16")
        self._carried: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict() if self.scaler.is_enabled() else self._carried

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        self._carried = saved
        if saved and self.scaler.is_enabled():
            self.scaler.load_state_dict(saved)


class Trainee(nn.Module):
    """The encoder and its losses as one forward pass, which data parallelism needs."""

    def __init__(self, encoder: Encoder, loss: Loss, entities: Tensor) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss = loss
        self.entities = entities

    def forward(self, batch: Batch) -> dict[str, Tensor]:
        return self.loss.sums(self.encoder, self.encoder(batch, self.entities), batch)


class Trainer:
    """One process's share of the training: all of its state, and the step."""

    def __init__(self, config: Config, schedule: Schedule, corpus: Corpus, device: Device) -> None:
        self.config, self.schedule, self.corpus, self.device = config, schedule, corpus, device
        self.encoder = Encoder(config.model, corpus.vocabulary, len(corpus.relations)).to(device.torch)
        self.entities = torch.from_numpy(corpus.entity_tokens.astype(np.int64)).to(device.torch)
        self.loss = Loss(config.objectives, self.entities, Constraints.of(corpus.relations))
        trainee = Trainee(self.encoder, self.loss, self.entities)
        self.trainee: nn.Module = (
            trainee if device.ranks == 1 else nn.parallel.DistributedDataParallel(trainee)
        )
        self.optimizer = _optimizer(self.encoder, config)
        self.scaler = Scaler(device, schedule.precision)
        self.history = History()

    def state(self) -> dict[str, object]:
        """The content of a checkpoint, in the order of restoring."""
        return {
            "identity": Identity.of(self.config, self.schedule),
            "corpus": Frozen(self.corpus),
            "model": self.encoder,
            "optimizer": self.optimizer,
            "scaler": self.scaler,
            "history": self.history,
            "config": self.config.decisive(),
        }

    def step(self, number: int, batch: Batch) -> dict[str, float]:
        """Makes one optimizer step on a global batch and returns its losses. A step that fp16
        skips counts too."""
        schedule, scaler = self.schedule, self.scaler.scaler
        counts = self._counted(batch)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.optimizer.learning_rate * self._rate(number)
        losses: dict[str, Tensor] = {}
        for turn in range(schedule.accumulate):
            first = (turn * schedule.devices + self.device.rank) * schedule.micro_batch
            micro = self._moved(batch, first)
            with self._alone(turn < schedule.accumulate - 1):
                with self._precision():
                    sums = self.trainee(micro)
                    total = self.loss.total(sums, counts)
                whole = scaler.scale(total * schedule.devices)  # data parallelism takes the mean
                whole.backward()  # type: ignore[no-untyped-call]
            for name, value in (*sums.items(), ("loss", total)):
                part = value.detach() / counts[name] if name in counts else value.detach()
                losses[name] = losses[name] + part if name in losses else part
        scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.encoder.parameters(), self.config.optimizer.clip)
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        self.device.finish_step()
        return self._told(losses) | {"gradient_norm": float(norm)}

    def _counted(self, batch: Batch) -> dict[str, Tensor]:
        """The counts of a global batch on the device, copied as one vector. torch_xla would turn
        single numbers into shared inputs and constants, depending on their values, and compile another
        program at every step."""
        counts = self.loss.counts(batch)
        together = torch.stack(list(counts.values())).to(self.device.torch)
        return dict(zip(counts, together.unbind(), strict=True))

    def _moved(self, batch: Batch, first: int) -> Batch:
        """The rows of a micro-batch on the device. `edges` has one row per group."""
        group, size = self.config.objectives.group, self.schedule.micro_batch
        moved = {}
        for name, rows in batch.items():
            share = group if name == "edges" else 1
            part = rows[first // share : (first + size) // share]
            moved[name] = part.to(self.device.torch, non_blocking=True)
        return moved

    def _precision(self) -> contextlib.AbstractContextManager[None]:
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.schedule.precision)
        if kind is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.autocast, kind)

    def _alone(self, more: bool) -> contextlib.AbstractContextManager[None]:
        """Devices exchange gradients only with the last micro-batch."""
        if more and isinstance(self.trainee, nn.parallel.DistributedDataParallel):
            return self.trainee.no_sync()
        return contextlib.nullcontext()

    def _rate(self, step: int) -> float:
        warmup, steps = self.config.optimizer.warmup, self.schedule.steps
        if step <= warmup:
            return step / warmup
        return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))

    def _told(self, losses: Mapping[str, Tensor]) -> dict[str, float]:
        values = torch.stack([losses[name].float() for name in losses])
        if self.device.ranks > 1:
            torch.distributed.all_reduce(values)
        return dict(zip(losses, values.tolist(), strict=True))


def train(config: Config, schedule: Schedule, training: Training, device: Device) -> None:
    """Trains from the step where `training` starts to the last one, then evaluates and saves.

    Raises SystemExit(75) when asked to leave. Raises ValueError if the checkpoint belongs to another
    training, or if the batch cannot be divided into the config's groups.
    """
    if schedule.micro_batch % config.objectives.group:
        raise ValueError(
            f"--micro-batch: {schedule.micro_batch} is not a multiple of objectives.group "
            f"({config.objectives.group})"
        )
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(schedule.seed)
    if config.deterministic:
        be_deterministic(device)
    corpus = _corpus(config.data, training)
    trainer = Trainer(config, schedule, corpus, device)
    batches = _batches(config, schedule, corpus, training.start, device)
    training.resume(trainer.state())
    if device.rank == 0:
        parameters = sum(p.numel() for p in trainer.encoder.parameters())
        print(
            f"{parameters:,d} parameters on {device.torch} × {device.ranks}; from step {training.start}",
            flush=True,
        )
    metrics = _steps(trainer, training, batches)
    part()
    if device.rank == 0:
        _finish(trainer, training, metrics)


def be_deterministic(device: Device) -> None:
    """By force: an operation without a deterministic form ends the training. On a TPU it does nothing,
    because torch's switch does not reach TPU kernels. A resume there is graded as state-exact."""
    if device.backend in ("cpu", "cuda"):
        determinism.enforce()
        # By default torch fills all new memory, so that reads of unwritten memory agree. Nothing here reads
        # such.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def _steps(trainer: Trainer, training: Training, batches: Iterator[Batch]) -> dict[str, float]:
    """Makes the remaining steps and returns the metrics of the last one."""
    config, schedule = trainer.config, trainer.schedule
    metrics: dict[str, float] = {}
    shown = began = time.monotonic()
    for step in range(training.start + 1, schedule.steps + 1):
        batch = next(batches)
        metrics = trainer.step(step, batch)
        time.sleep(max(0.0, began + config.step_seconds_min - time.monotonic()))
        now = time.monotonic()
        rates = _rates(trainer, training, batch, now - began)
        training.report(step, **metrics, **rates)
        if now - shown >= REPORT_SECONDS and trainer.device.rank == 0:
            print(f"step {step}/{schedule.steps}  " + _words(metrics | rates), flush=True)
            shown = now
        began = now
        last = step == schedule.steps
        if step % HISTORY_STEPS == 0 or last:
            trainer.history.rows.append({"step": step, **metrics})
        best = False
        if step % config.evaluation.every == 0 and not last:
            metrics, best = _evaluated(trainer, training, step, metrics)
            best = _known_to_all(best, trainer.device)
            began = time.monotonic()
        if last:
            break
        asked = training.should_save(step)
        # Always save the step before the last: the work after the last step takes minutes before it is saved.
        if asked or best or step == schedule.steps - 1:
            training.save(step, trainer.state(), metrics)
        if training.should_stop():
            training.leave(step, trainer.state(), metrics)
    return metrics


def _evaluated(
    trainer: Trainer, training: Training, step: int, metrics: dict[str, float]
) -> tuple[dict[str, float], bool]:
    """The metrics, with those on held-out modules added, and whether the MRR is the best so far."""
    if trainer.device.rank != 0:
        return metrics, False
    limit = trainer.config.evaluation.facts
    found = evaluation.evaluate(trainer.encoder, trainer.corpus, trainer.entities, limit=limit)
    trainer.history.rows.append({"step": step, **found})
    training.report(step, **found)
    print("held out:  " + _words(found), flush=True)
    best = found["mrr"] > trainer.history.best
    trainer.history.best = max(trainer.history.best, found["mrr"])
    return metrics | found, best


def _known_to_all(best: bool, device: Device) -> bool:
    """Whether any rank says so: every rank must save, and only the first one evaluates."""
    if device.ranks == 1:
        return best
    said = torch.tensor(float(best), device=device.torch)
    torch.distributed.all_reduce(said)
    return bool(said)


def _finish(trainer: Trainer, training: Training, metrics: dict[str, float]) -> None:
    """Evaluates on all held-out facts and saves. If asked to leave, the next session
    repeats the evaluation."""
    steps, history = trainer.schedule.steps, trainer.history
    files: dict[str, bytes] = {}
    stop = signs_of_life(training, steps)
    try:
        if trainer.config.evaluation.report:
            told, seed = partial(print, flush=True), trainer.schedule.seed
            measured = report.measure(trainer.encoder, trainer.corpus, seed=seed, stop=stop, progress=told)
            found = measured["metrics"]
        else:
            measured = {}
            found = evaluation.evaluate(trainer.encoder, trainer.corpus, trainer.entities, stop=stop)
        found["frequency_mrr"] = report.frequency(trainer.corpus, stop).mrr
    except evaluation.Stopped:
        training.leave(steps, trainer.state(), metrics)
    history.rows.append({"step": steps, **found})
    if measured:
        about = Identity.of(trainer.config, trainer.schedule).state_dict()
        files = report.files(measured, history.rows, about)
    print("held out:  " + _words(found), flush=True)
    training.report(steps, **metrics, **found)
    training.save(steps, trainer.state(), metrics | found, files=files, required=True)


def signs_of_life(training: Training, step: int, every: float = SIGN_SECONDS) -> evaluation.Stop:
    """A function that tells evaluations whether to stop. It also reports the step again
    every `every` seconds."""
    last = time.monotonic()

    def stop() -> bool:
        nonlocal last
        if time.monotonic() - last >= every:
            last = time.monotonic()
            training.report(step)
        return training.should_stop()

    return stop


def _optimizer(encoder: Encoder, config: Config) -> torch.optim.AdamW:
    """Norms, biases and other vectors have no weight decay."""
    aims = config.optimizer
    matrices = [p for p in encoder.parameters() if p.ndim > 1]
    vectors = [p for p in encoder.parameters() if p.ndim <= 1]
    groups = [
        {"params": matrices, "weight_decay": aims.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, aims.learning_rate, betas=aims.betas, eps=aims.epsilon)


def _batches(
    config: Config, schedule: Schedule, corpus: Corpus, start: int, device: Device
) -> Iterator[Batch]:
    plan = Plan(
        corpus, seed=schedule.seed, global_batch=schedule.global_batch, group=config.objectives.group,
        phases=config.data.phases, leaves=config.data.leaves, mask_words=config.data.mask_words,
        mask_nodes=config.data.mask_nodes, packed=config.data.packed,
    )  # fmt: skip
    loader: DataLoader[Batch] = DataLoader(
        plan,  # type: ignore[arg-type]  # a mapping from steps, without a length
        batch_size=None,
        sampler=range(start + 1, schedule.steps + 1),
        num_workers=config.data.workers,
        pin_memory=device.backend == "cuda",
        generator=torch.Generator(),  # its own, so that building it does not use the training's
    )
    return iter(loader)


def _corpus(data: Data, training: Training) -> Corpus:
    """The corpus in the checkpoint, so that another machine's source changes nothing. The first session reads
    it from source."""
    saved = training.saved("corpus")
    if saved is not None:
        return Corpus.from_state(saved)
    sources = graph.sources(map(os.path.expandvars, data.sources))
    if data.triples is None:
        facts = graph.build(sources, data.facts)
    else:
        facts = triples.read(Path(os.path.expandvars(data.triples)), sources[0], data.facts)
    corpus = Corpus.build(
        facts,
        vocabulary=data.vocabulary,
        passage_tokens=max(length for _, length in data.phases) - data.leaves,
        held_out=data.held_out,
    )
    held_out = int(corpus.held_out.sum())
    if not 0 < held_out < len(corpus.held_out):
        raise ValueError(f"{', '.join(data.sources)}: too few modules to train on some and hold out others")
    print(
        f"{len(corpus.facts):,d} facts of {len(corpus.relations)} relations between "
        f"{len(corpus.entities):,d} entities; {len(corpus.held_out) - held_out:,d} passages to train on, "
        f"{held_out:,d} held out; {len(corpus.tokens):,d} tokens",
        flush=True,
    )
    return corpus


def _rates(trainer: Trainer, training: Training, batch: Batch, seconds: float) -> dict[str, float]:
    """Samples per second, and the share of the accelerators' peak that the model's FLOPs reach."""
    samples = trainer.schedule.global_batch / seconds
    rates = {"samples_per_second": samples}
    if training.peak_flops:
        rates["mfu"] = samples * flops.sample(trainer.config, batch["tokens"].shape[1]) / training.peak_flops
    return rates


def _words(metrics: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
