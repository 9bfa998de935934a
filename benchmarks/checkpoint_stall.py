"""What a checkpoint costs the training: ours, a blocking torch.save and DCP's async_save, in one run.

    python -m benchmarks.checkpoint_stall [--json] [--rounds 7] [--folder .]

The state is that of a transformer with 80.3 M parameters and AdamW: 963 MB in 306 tensors
(docs/references/training.md#size-and-speed-of-a-checkpoint). A stall is the time until training can continue.
Each round saves in each way in turn, and waits each time until everything is on the disk. `first` is the
first save of the process. Its memory is touched before, as in a training. A step is a matrix product in all
of torch's threads. The slowdown is the median duration of steps while a checkpoint is written, divided by
that of steps with nothing else; the two alternate. `stored` counts the blobs of an outbox after the second of
two checkpoints, with 98 % of the parameters frozen.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

from orchestrator.agent.folder import Folder
from orchestrator.agent.settings import Settings
from orchestrator.clock import SystemClock
from orchestrator.core.job import Keep, Precision
from orchestrator.core.order import Order
from orchestrator.session.committing import Outbox
from orchestrator.training import Training

LAYERS, WIDTH, VOCABULARY = 12, 768, 12_288
State = dict[str, Any]
Figures = dict[str, float]


def model() -> torch.nn.Module:
    """Parameters with the shapes of the reference GraphMER. It computes nothing."""
    shapes = [(VOCABULARY, WIDTH)]
    for _ in range(LAYERS):
        shapes += [(3 * WIDTH, WIDTH), (WIDTH, WIDTH), (4 * WIDTH, WIDTH), (WIDTH, 2 * WIDTH)]
    shapes += [(1, WIDTH)] * (LAYERS * 4 + 5)  # norms and biases
    return torch.nn.ParameterList(torch.randn(shape) for shape in shapes)


def with_moments(module: torch.nn.Module) -> State:
    """The module, and an AdamW that has made one step."""
    optimizer = torch.optim.AdamW(module.parameters(), 1e-4)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": module, "optimizer": optimizer}


class Ways:
    """Each method saves the same state to the same disk, and returns the seconds until
    training can continue."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder, self.state = folder, state
        self.training = Training(folder / "ours")
        self.training.resume(state)
        self.training.report(0)  # as after a training's first step; now the memory is allocated
        unpinned = StagingOptions(
            use_pinned_memory=False, use_non_blocking_copy=False, use_async_staging=False
        )
        self.stager = DefaultStager(unpinned)

    def ours(self, step: int) -> tuple[float, float]:
        return self._timed(lambda: self.training.save(step, self.state), self.training.wait)

    def torch_save(self, step: int) -> tuple[float, float]:
        return self._timed(lambda: self._blocking(step), lambda: None)

    def dcp(self, step: int) -> tuple[float, float]:
        answers: list[Any] = []

        def save() -> None:
            plain = {name: part.state_dict() for name, part in self.state.items()}
            target = self.folder / f"dcp-{step}"
            answers.append(async_save(plain, checkpoint_id=target, async_stager=self.stager, no_dist=True))

        return self._timed(save, lambda: answers[0].result())

    def _blocking(self, step: int) -> None:
        with (self.folder / f"torch-{step}").open("wb") as file:
            torch.save({name: part.state_dict() for name, part in self.state.items()}, file)
            file.flush()
            os.fsync(file.fileno())

    def _timed(self, save: Callable[[], object], wait: Callable[[], object]) -> tuple[float, float]:
        """Seconds of the stall, and seconds until everything is written. Deletes what was written."""
        began = time.perf_counter()
        save()
        stalled = time.perf_counter() - began
        wait()
        written = time.perf_counter() - began
        for path in self.folder.iterdir():
            for old in path.glob("step-*") if path.name == "ours" else [path]:
                shutil.rmtree(old) if old.is_dir() else old.unlink()
        return stalled, written


def stalls(ways: Ways, rounds: int) -> Figures:
    threading.Event().wait(5.0)  # time for the steps before the first save
    figures = {"ours_first_ms": 1e3 * ways.ours(1)[0]}
    for way in (ways.torch_save, ways.dcp):
        way(1)
    taken: dict[str, list[tuple[float, float]]] = {"ours": [], "torch_save": [], "dcp": []}
    for number in range(2, rounds + 2):
        for name, seconds in taken.items():
            seconds.append(getattr(ways, name)(number))
    for name, seconds in taken.items():
        figures[f"{name}_median_ms"] = 1e3 * statistics.median(s for s, _ in seconds)
        figures[f"{name}_worst_ms"] = 1e3 * max(s for s, _ in seconds)
        figures[f"{name}_written_s"] = statistics.median(w for _, w in seconds)
    for other in ("torch_save", "dcp"):
        pairs = zip(taken["ours"], taken[other], strict=True)
        figures[f"ours_over_{other}"] = statistics.median(a[0] / b[0] for a, b in pairs)
    return figures


def slowdown(ways: Ways, rounds: int) -> Figures:
    """A step's duration while a checkpoint is written, divided by that of a step with nothing else."""
    left = torch.randn(1024, 1024)

    def step() -> float:
        began = time.perf_counter()
        torch.mm(left, left)
        return time.perf_counter() - began

    def median(enough: Callable[[int], bool]) -> float:
        found: list[float] = []
        while not enough(len(found)):
            found.append(step())
        return statistics.median(found)

    ratios, shares = [], []
    for number in range(100, 100 + rounds):
        alone = median(lambda count: count >= 20)
        target = ways.training.checkpoints / f"step-{number}"
        ways.training.save(number, ways.state)
        began = time.perf_counter()
        beside = median(lambda count, target=target: count > 0 and target.exists())  # type: ignore[misc]
        shares.append(time.perf_counter() - began)
        ways.training.wait()
        shutil.rmtree(target)
        ratios.append(beside / alone)
    return {"step_while_writing": statistics.median(ratios), "writing_s": statistics.median(shares)}


def stored(folder: Path) -> Figures:
    """Bytes that a second checkpoint with 98 % frozen parameters adds to an outbox, relative to its size."""
    module = model()
    left = 0.02 * sum(parameter.numel() for parameter in module.parameters())
    for parameter in module.parameters():
        trained = parameter.ndim == 2 and parameter.numel() <= left
        left -= parameter.numel() if trained else 0
        parameter.requires_grad_(trained)
    state = with_moments(module)
    order = Order(
        run="bench-abcdefgh", session="bench-abcdefgh-s01", generation=1, platform="here", accelerator="cpu",
        devices=1, command=("true",), bundle="", global_batch=1, micro_batch=1, precision=Precision.FP32,
        steps_total=2, seed=0, keep=Keep(),
    )  # fmt: skip
    session = Folder(folder)
    session.lay_out()
    outbox = Outbox(session, order, "0" * 8, {}, SystemClock(), Settings().part_bytes)
    training, sizes, whole = Training(session.checkpoints), [0], 0
    for step in (1, 2):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(1.0) if parameter.requires_grad else None
        saved = training.save(step, state, required=True)
        assert saved is not None
        manifest = outbox.commit(saved)
        assert manifest is not None
        whole = manifest.size
        sizes.append(sum(blob.stat().st_size for blob in (session.outbox / "blobs").iterdir()))
    frozen = sum(p.numel() for p in module.parameters() if not p.requires_grad)
    return {
        "frozen_share": frozen / sum(p.numel() for p in module.parameters()),
        "second_checkpoint_mb": whole / 1e6,
        "second_checkpoint_added_mb": (sizes[2] - sizes[1]) / 1e6,
        "bytes_saved": 1.0 - (sizes[2] - sizes[1]) / whole,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")  # DCP warns that there is only one process
    logging.disable(logging.WARNING)
    state = with_moments(model())
    held = sum(parameter.nbytes for parameter in state["model"].parameters())
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".checkpoint-stall-") as name:
        folder = Path(name)
        ways = Ways(folder, state)
        figures = {"state_mb": 3 * held / 1e6, "threads": torch.get_num_threads()}
        figures |= stalls(ways, options.rounds) | slowdown(ways, options.rounds)
        figures |= stored(folder / "session")
        ways.stager.close()
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")
    print("target: our stall at most 0.125 of torch.save's and 1.0 of DCP's; 0.95 of the bytes saved")


if __name__ == "__main__":
    main()
