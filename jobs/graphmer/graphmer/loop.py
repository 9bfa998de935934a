"""The training loop and its evaluation. Decides nothing about when to save or stop: it asks `training`.

Losses are sums divided by the counts of the whole global batch, so that no division into micro-batches
changes the mathematics. Must never know sessions or platforms.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader

from graphmer import chains, data, graph
from graphmer.config import Config
from graphmer.model import Encoder
from orchestrator.training import Training

REPORT_SECONDS = 1.0
Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Schedule:
    """How it is trained; one step is `micro_batch × accumulate` samples."""

    steps: int
    micro_batch: int
    accumulate: int
    precision: str
    seed: int

    @property
    def global_batch(self) -> int:
        return self.micro_batch * self.accumulate


@dataclass(frozen=True)
class Identity:
    """What a checkpoint must share with the training that goes on from it; restored first of all."""

    corpus: str
    seed: int
    global_batch: int

    def state_dict(self) -> dict[str, object]:
        return asdict(self)

    def load_state_dict(self, saved: dict[str, object]) -> None:
        """Raises ValueError that names what differs."""
        differs = [f"{k} {saved.get(k)} (here {v})" for k, v in asdict(self).items() if saved.get(k) != v]
        if differs:
            raise ValueError(f"the checkpoint is of another training: {', '.join(differs)}")


def train(config: Config, schedule: Schedule, training: Training) -> None:
    """Trains from wherever `training` stands to the last step, evaluates and saves.

    Raises SystemExit(75) when asked to leave, ValueError where the checkpoint is of another corpus.
    """
    torch.use_deterministic_algorithms(True)
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(schedule.seed)
    corpus = _corpus(config)
    model = Encoder(len(corpus.vocabulary), config.roots, config.width, config.layers, config.heads)
    model.to(config.device)
    optimizer, scheduler = _optimizer(model, config, schedule.steps)
    batches = _batches(corpus, config, schedule, training.start)
    identity = Identity(corpus.fingerprint(), schedule.seed, schedule.global_batch)
    state = {"identity": identity, "model": model, "optimizer": optimizer, "scheduler": scheduler}
    training.restore(state)
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{parameters:,d} parameters; from step {training.start}", flush=True)

    metrics: dict[str, float] = {}
    shown = began = time.monotonic()
    for step in range(training.start + 1, schedule.steps + 1):
        metrics = _step(model, optimizer, next(batches), schedule)
        scheduler.step()
        now = time.monotonic()
        training.report(step, **metrics, samples_per_second=schedule.global_batch / (now - began))
        if now - shown >= REPORT_SECONDS:
            print(f"step {step}/{schedule.steps}  " + _words(metrics), flush=True)
            shown = now
        began = now
        if step == schedule.steps:
            break
        if training.should_save(step):
            training.save(step, state, metrics)
        if training.should_stop():
            training.leave(step, state, metrics)
    metrics |= evaluate(model, corpus, config)
    print("held out:  " + _words(metrics), flush=True)
    training.report(schedule.steps, **metrics)
    training.save(schedule.steps, state, metrics, required=True)


def _optimizer(
    model: Encoder, config: Config, steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.AdamW(
        model.parameters(), config.learning_rate, betas=(0.9, 0.98), weight_decay=config.weight_decay
    )
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: _rate(done + 1, config.warmup, steps))
    return optimizer, rates


def _batches(corpus: chains.Corpus, config: Config, schedule: Schedule, start: int) -> Iterator[Batch]:
    table = data.Table(corpus.train, config.roots, config.leaves)
    plan = data.Plan(table, schedule.seed, schedule.global_batch, _masks(config))
    loader: DataLoader[Batch] = DataLoader(
        plan,  # type: ignore[arg-type]  # a map from steps, of no length
        batch_size=None,
        sampler=range(start + 1, schedule.steps + 1),
        num_workers=config.workers,
        generator=torch.Generator(),  # its own, so that building it draws nothing from the training's
    )
    return iter(loader)


def _masks(config: Config) -> data.Masks:
    return data.Masks(config.mask_words, config.mask_nodes)


def _corpus(config: Config) -> chains.Corpus:
    source = Path(config.source) if config.source else graph.standard_library()
    facts = graph.build(source, config.triples)
    corpus = chains.encode(
        facts,
        roots=config.roots,
        leaves=config.leaves,
        vocabulary=config.vocabulary,
        held_out=config.held_out,
    )
    if not corpus.train or not corpus.held_out:
        raise ValueError(f"{source}: too few modules to train on some and hold out others")
    relations = len({triple.relation for triple in facts.triples})
    print(
        f"{len(facts.triples):,d} triples of {relations} relations; {len(corpus.train):,d} chains to train "
        f"on, {len(corpus.held_out):,d} held out; {len(corpus.vocabulary):,d} words",
        flush=True,
    )
    return corpus


def _rate(step: int, warmup: int, steps: int) -> float:
    if step <= warmup:
        return step / warmup
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (step - warmup) / max(1, steps - warmup))))


def _step(
    model: Encoder,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    schedule: Schedule,
) -> dict[str, float]:
    words, nodes = (max(1, int((batch[k] != data.IGNORED).sum())) for k in ("word_targets", "node_targets"))
    loss, hits = 0.0, 0
    for i in range(0, schedule.global_batch, schedule.micro_batch):
        micro = {
            name: rows[i : i + schedule.micro_batch].to(model.bias.device) for name, rows in batch.items()
        }
        with torch.autocast(model.bias.device.type, torch.bfloat16, enabled=schedule.precision == "bf16"):
            word_loss, _, node_loss, node_hits = _losses(model, micro)
        part = word_loss / words + node_loss / nodes
        part.backward()  # type: ignore[no-untyped-call]
        loss += part.item()
        hits += int(node_hits)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"loss": loss, "node_accuracy": hits / nodes}


def _losses(model: Encoder, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums over the masked words and the masked nodes: cross entropy and right guesses, of each."""
    hidden = model(batch["words"], batch["places"], batch["relations"])
    sums: list[Tensor] = []
    for kind in ("word_targets", "node_targets"):
        asked = batch[kind] != data.IGNORED
        logits = model.guess(hidden[asked])
        targets = batch[kind][asked]
        sums += [functional.cross_entropy(logits.float(), targets, reduction="sum")]
        sums += [(logits.argmax(-1) == targets).sum()]
    return sums[0], sums[1], sums[2], sums[3]


@torch.no_grad()
def evaluate(model: Encoder, corpus: chains.Corpus, config: Config) -> dict[str, float]:
    """Held-out accuracy on masked nodes and words, and that of guessing by frequency.

    The baseline names the relation's most frequent tail in training. Tails outside the vocabulary are
    wrong for both: they count in proportion to their share of all held-out facts.
    """
    table = data.Table(corpus.held_out, config.roots, config.leaves)
    frequent = _frequent(corpus)
    word_hits = node_hits = words = nodes = guessed = 0
    for arrays in data.held_out(table, 64, _masks(config)):
        batch = {name: torch.from_numpy(rows).to(model.bias.device) for name, rows in arrays.items()}
        _, right_words, _, right_nodes = _losses(model, batch)
        word_hits += int(right_words)
        node_hits += int(right_nodes)
        words += int((arrays["word_targets"] != data.IGNORED).sum())
        nodes += int((arrays["node_targets"] != data.IGNORED).sum())
        guessed += int((frequent[arrays["relations"]] == arrays["node_targets"]).sum())
    facts = [tail for chain in corpus.held_out for _, _, tail in chain.leaves]
    known = 1 - facts.count(chains.UNKNOWN) / len(facts)
    return {
        "held_out_node_accuracy": known * node_hits / max(1, nodes),
        "held_out_node_accuracy_by_frequency": known * guessed / max(1, nodes),
        "held_out_word_accuracy": word_hits / max(1, words),
    }


def _frequent(corpus: chains.Corpus) -> NDArray[np.int64]:
    """By relation (0: none), the tail that training saw most often; ties go to the lower word id."""
    counts = Counter((relation, tail) for chain in corpus.train for _, relation, tail in chain.leaves)
    best = np.full(len(graph.RELATIONS) + 1, data.IGNORED - 1, dtype=np.int64)
    for (relation, tail), _ in sorted(counts.items(), key=lambda item: (item[1], -item[0][1])):
        if tail != chains.UNKNOWN:
            best[relation + 1] = tail
    return best


def _words(metrics: dict[str, float]) -> str:
    return "  ".join(f"{name} {value:.4f}" for name, value in metrics.items())
