"""What a save costs a training of Hugging Face or Lightning: under the adapter, and by the library itself.

    python -m benchmarks.adapter_saves [--json] [--rounds 5] [--folder .]

The model has 33 M parameters and an AdamW, so a checkpoint has 400 MB. Each library trains in two processes
of its own, one after the other: as it is, saving at every sixth step, and under the adapter at the same
steps. A stall is the time from the end of such a step to the beginning of the next one, less that of other
steps. `memory` is the peak after the first step, less what there was then, in sizes of a checkpoint. The
adapter has two buffers, each as large as a checkpoint.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

EVERY = 6
LAYERS, WIDTH = 8, 2048


class Timer:
    """The pauses between steps, and the peak of memory."""

    def __init__(self) -> None:
        self.pauses: dict[int, float] = {}
        self._step, self._ended, self._before = 0, 0.0, 0.0

    def began(self) -> None:
        if self._step:
            self.pauses[self._step] = time.perf_counter() - self._ended

    def ended(self) -> None:
        self._step += 1
        if self._step == 1:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            self._before = _memory("VmRSS")
        self._ended = time.perf_counter()

    def figures(self, state_bytes: float) -> dict[str, float]:
        saves = [pause for step, pause in self.pauses.items() if step % EVERY == 0]
        others = [pause for step, pause in self.pauses.items() if step % EVERY and step > 1]
        return {
            "stall_ms": 1e3 * (statistics.median(saves) - statistics.median(others)),
            "stall_worst_ms": 1e3 * (max(saves) - statistics.median(others)),
            "memory": (_memory("VmHWM") - self._before) / state_bytes,
        }


def _memory(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith(name))


def _layers() -> torch.nn.Sequential:
    return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))


def huggingface(timer: Timer, steps: int, *, ours: bool) -> None:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from orchestrator.training import Training
    from orchestrator.training.adapters.huggingface import train

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers()

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layers(x).square().mean()}

    class Times(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            timer.began()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            timer.ended()

    arguments = TrainingArguments(
        "trainer", max_steps=steps, per_device_train_batch_size=64, save_steps=EVERY, logging_steps=1,
        disable_tqdm=True, report_to=[], use_cpu=True,
    )  # fmt: skip
    data = [{"x": torch.ones(WIDTH)}] * (64 * steps)
    trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Times()])
    if ours:
        train(trainer, Training.from_environment())
    else:
        trainer.train()


def lightning(timer: Timer, steps: int, *, ours: bool) -> None:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.callbacks import ModelCheckpoint

    from orchestrator.training import Training
    from orchestrator.training.adapters.lightning import fit

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers()

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss: torch.Tensor = self.layers(batch).square().mean()
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    class Times(Callback):
        def on_train_batch_start(self, *_: Any) -> None:
            timer.began()

        def on_train_batch_end(self, *_: Any) -> None:
            timer.ended()

    own = [] if ours else [ModelCheckpoint("own", every_n_train_steps=EVERY, save_top_k=-1)]
    trainer = Trainer(
        max_steps=steps, accelerator="cpu", devices=1, logger=False, enable_checkpointing=not ours,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Times(), *own],
    )  # fmt: skip
    data: Any = [torch.ones(WIDTH)] * (64 * (steps + 1))
    loader = torch.utils.data.DataLoader(data, 64)
    if ours:
        fit(trainer, Model(), loader, Training.from_environment(), every=EVERY)
    else:
        trainer.fit(Model(), loader)


WAYS = {"huggingface": huggingface, "lightning": lightning}


def measure(name: str, ours: str, rounds: int) -> dict[str, float]:
    """In a process of its own."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    timer, steps = Timer(), EVERY * rounds + 1
    WAYS[name](timer, steps, ours=bool(ours))
    return timer.figures(3 * 4 * LAYERS * WIDTH * (WIDTH + 1))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk to measure")
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        name, ours = options.measure
        print("\n" + json.dumps(measure(name, ours, options.rounds)))
        return
    figures: dict[str, float] = {}
    root = str(Path(__file__).resolve().parent.parent)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), root]),
    }
    for name in WAYS:
        for ours in ("", "ours"):
            with tempfile.TemporaryDirectory(dir=options.folder, prefix=".adapter-saves-") as folder:
                words = [
                    "-m",
                    "benchmarks.adapter_saves",
                    "--rounds",
                    str(options.rounds),
                    "--measure",
                    name,
                    ours,
                ]
                done = subprocess.run(
                    [sys.executable, *words],
                    cwd=folder,
                    env=environ,
                    check=True,
                    capture_output=True,
                    text=True,
                )
                found = json.loads(done.stdout.splitlines()[-1])
                figures |= {f"{name} {ours or 'alone'} {what}": value for what, value in found.items()}
        for what in ("stall_ms", "stall_worst_ms"):
            figures[f"{name} {what} ratio"] = figures[f"{name} ours {what}"] / figures[f"{name} alone {what}"]
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:10.3f}")


if __name__ == "__main__":
    main()
