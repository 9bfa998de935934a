"""GraphMER on a GPU: its rate at batches that fill the memory, checkpoint stalls, and bitwise resume.

    python -m benchmarks.graphmer_gpu [--json] [--precision fp16] [--length 768] [--backend cpu --small]

It measures three things in one run. First, tokens per second and MFU of the reference config, with
micro-batches that double until the memory is full, and with activations kept or recomputed. A plain Hugging
Face encoder (BERT with the same width, layers, vocabulary and parameters per layer, and its own masked-token
loss) runs the same batches for comparison. Second, the stall per checkpoint, for a step of that size. Third,
whether a training that was saved, ended and resumed gives the same bits as an uninterrupted one. GraphMER
runs with deterministic algorithms, as in its trainings; the other encoder does not. `--small` shrinks the
model, to try the program on a CPU. Without a GPU, it says so and ends.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for deterministic matrix products

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "jobs" / "graphmer"))

from graphmer import config, flops, graph
from graphmer.corpus import Corpus
from graphmer.loop import Schedule, Trainer, be_deterministic
from graphmer.plan import Plan

from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import accelerator_of
from orchestrator.core.job import Precision
from orchestrator.training import Training
from orchestrator.training.devices import Device, find

WARM_UP, TIMED = 3, 10
SAVES = 5
SEED = 1337


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp16")
    parser.add_argument("--length", type=int, default=768)
    parser.add_argument("--backend", help="back end (default: cuda)")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--most", type=int, default=1024, help="the largest micro-batch to try")
    given = parser.parse_args()
    if given.backend is None and not torch.cuda.is_available():
        print("not run: this machine has no GPU")
        return
    bench = Bench(find(given.backend or "cuda"), given.precision, given.length, given.small)
    figures = bench.measure(given.most)
    if given.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:44} {value if isinstance(value, str | bool) else format(value, ',.4g')}")


class Bench:
    """One corpus and one device. Each measurement creates its own model and releases it."""

    def __init__(self, device: Device, precision: str, length: int, small: bool) -> None:
        self.device, self.precision, self.length = device, precision, length
        sizes = {"width": 128, "layers": 2, "heads": 4, "feed": 512} if small else {}
        self.settings = config.from_plain(
            {
                "data": {"curriculum": {0: length}, "workers": 0, "facts": 20_000 if small else None},
                "model": sizes,
            }
        )
        data = self.settings.data
        self.corpus = Corpus.build(
            graph.build(graph.sources(data.sources), data.facts),
            vocabulary=data.vocabulary, passage_tokens=length - data.leaves, held_out=data.held_out,
        )  # fmt: skip

    def measure(self, most: int) -> dict[str, Any]:
        figures: dict[str, Any] = {
            "device": self._name(),
            "torch": torch.__version__,
            "precision": self.precision,
        }
        fitting = 0
        for again in (False, True):
            label = "activations recomputed" if again else "activations kept"
            for micro_batch in self._doubling(most):
                rate = self._rate(lambda size=micro_batch, anew=again: self._trainer(size, anew), micro_batch)  # type: ignore[misc]
                if rate is None:
                    break
                fitting = micro_batch if not again else fitting
                figures |= self._told(f"graphmer, {label}, {micro_batch}", rate)
        for micro_batch in self._doubling(most):
            rate = self._rate(lambda size=micro_batch: self._plain(size), micro_batch)  # type: ignore[misc]
            if rate is None:
                break
            figures |= self._told(f"hugging face, {micro_batch}", rate)
        figures |= self._stalls(fitting or 8)
        figures["resume is bitwise"] = self._resumes()
        return figures

    def _doubling(self, most: int) -> Iterator[int]:
        micro_batch = self.settings.objectives.group
        while micro_batch <= most:
            yield micro_batch
            micro_batch *= 2

    def _trainer(self, micro_batch: int, anew: bool = False) -> Callable[[int], None]:
        trainer, plan = self._training(micro_batch, anew)
        batches = {step: _tensors(plan, step) for step in range(1, WARM_UP + TIMED + 1)}
        return lambda step: void(trainer.step(step, batches[step]))

    def _training(self, micro_batch: int, anew: bool = False) -> tuple[Trainer, Plan]:
        document = self.settings.plain()
        document["model"]["checkpoint_activations"] = anew
        settings = config.from_plain(document)
        torch.manual_seed(SEED)
        be_deterministic(self.device)
        trainer = Trainer(
            settings, Schedule(1000, micro_batch, 1, self.precision, SEED), self.corpus, self.device
        )
        data = settings.data
        plan = Plan(
            self.corpus,
            seed=SEED,
            global_batch=micro_batch,
            group=settings.objectives.group,
            phases=data.phases,
            leaves=data.leaves,
        )
        return trainer, plan

    def _plain(self, micro_batch: int) -> Callable[[int], None]:
        """A BERT with the same parameters per layer. Its feed-forward is 3 × the width,
        because it is not gated."""
        from transformers import BertConfig, BertForMaskedLM

        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False
        torch.backends.cuda.enable_cudnn_sdp(True)
        sizes = self.settings.model
        shape = BertConfig(
            vocab_size=self.settings.data.vocabulary,
            hidden_size=sizes.width,
            num_hidden_layers=sizes.layers,
            num_attention_heads=sizes.heads,
            intermediate_size=sizes.feed * 3 // 4,
            max_position_embeddings=self.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        model: torch.nn.Module = BertForMaskedLM(shape)
        model.to(self.device.torch)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
        scaler = torch.amp.GradScaler(self.device.autocast, enabled=self.precision == "fp16")
        generator = torch.Generator().manual_seed(SEED)
        tokens = torch.randint(
            2, self.settings.data.vocabulary, (micro_batch, self.length), generator=generator
        )
        asked = torch.rand(tokens.shape, generator=generator) < self.settings.data.mask_words
        tokens, labels = tokens.to(self.device.torch), torch.where(asked, tokens, -100).to(self.device.torch)
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision)

        def step(_number: int) -> None:
            with torch.autocast(self.device.autocast, kind, enabled=kind is not None):
                loss = model(input_ids=tokens, labels=labels).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

        return step

    def _rate(self, make: Callable[[], Callable[[int], None]], micro_batch: int) -> dict[str, float] | None:
        """Samples per second over whole steps, and the memory they took; None if it does not fit."""
        cuda = self.device.backend == "cuda"
        try:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            step = make()
            for number in range(1, WARM_UP + 1):
                step(number)
            self._wait()
            start = time.perf_counter()
            for number in range(WARM_UP + 1, WARM_UP + TIMED + 1):
                step(number)
            self._wait()
            samples = micro_batch * TIMED / (time.perf_counter() - start)
        except torch.OutOfMemoryError:
            return None
        finally:
            step = None  # type: ignore[assignment]  # releases its memory before the next
            if cuda:
                torch.cuda.empty_cache()
        memory = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0.0
        return {"samples": samples, "memory": memory}

    def _told(self, name: str, rate: dict[str, float]) -> dict[str, float]:
        figures = {f"{name}: tokens/s": rate["samples"] * self.length}
        if (peak := self._peak()) is not None:
            figures[f"{name}: MFU"] = rate["samples"] * flops.sample(self.settings, self.length) / peak
        if rate["memory"]:
            figures[f"{name}: GiB"] = rate["memory"]
        return figures

    def _stalls(self, micro_batch: int) -> dict[str, float]:
        trainer, plan = self._training(micro_batch)
        plain: list[float] = []
        saving: list[float] = []
        stalls: list[float] = []
        with tempfile.TemporaryDirectory() as folder:
            training = Training(Path(folder))
            training.resume(trainer.state())  # otherwise the first save allocates the memory for copies
            for number in range(1, 2 * SAVES + 2):
                if number % 2 == 0:
                    training.wait()
                start = time.perf_counter()
                trainer.step(number, _tensors(plan, number))
                training.should_save(number)
                self._wait()
                during_a_write = number % 2
                (saving if during_a_write else plain).append(time.perf_counter() - start)
                if number % 2 == 0:
                    start = time.perf_counter()
                    training.save(number, trainer.state())
                    stalls.append(time.perf_counter() - start)
            training.save(number, trainer.state(), required=True)
        return {
            "checkpoint: stall, first, ms": 1e3 * stalls[0],
            "checkpoint: stall, median of the others, ms": 1e3 * statistics.median(stalls[1:]),
            "checkpoint: step while it is written / step": statistics.median(saving[1:])
            / statistics.median(plain),
        }

    def _resumes(self) -> bool:
        """Compares eight steps in one go with eight steps that are ended after four and resumed."""
        ends = []
        with tempfile.TemporaryDirectory() as folder:
            for turns in (((1, 9),), ((1, 5), (5, 9))):
                for first, last in turns:
                    trainer, plan = self._training(8)
                    if first > 1:
                        Training(Path(folder), resume_from=Path(folder, "step-4")).resume(trainer.state())
                    for number in range(first, last):
                        trainer.step(number, _tensors(plan, number))
                    if last == 5:
                        Training(Path(folder)).save(4, trainer.state(), required=True)
                ends.append([p.detach().cpu().clone() for p in trainer.encoder.parameters()])
        return all(torch.equal(one, other) for one, other in zip(*ends, strict=True))

    def _wait(self) -> None:
        if self.device.backend == "cuda":
            torch.cuda.synchronize()

    def _name(self) -> str:
        return torch.cuda.get_device_name() if self.device.backend == "cuda" else str(self.device.torch)

    def _peak(self) -> float | None:
        """This GPU's peak in the catalogue; None if the catalogue does not have it."""
        name = accelerator_of(self._name())
        row = None if name is None else catalogue.get(name)
        return None if row is None else row.peak_flops.get(Precision(self.precision))


def _tensors(plan: Plan, step: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in plan[step].items()}


def void(_value: object) -> None:
    """Ignores the metrics of a step."""


if __name__ == "__main__":
    main()
