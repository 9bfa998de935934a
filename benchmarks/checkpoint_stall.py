"""What a checkpoint costs the training: ours, torch.save in three ways and DCP's async_save, in one run.

    python -m benchmarks.checkpoint_stall [--json] [--rounds 7] [--folder .]

The state is that of a transformer with 80.3 M parameters and AdamW: 963 MB in 306 tensors
(docs/references/training.md#size-and-speed-of-a-checkpoint). Beside ours and DCP, it is saved as people do:
torch.save that the training waits for, of a deep copy in a thread, and of the state itself in a thread. For
each way:

- `stall`: the time until training can continue. Each round saves in each way in turn, and waits each time
  until everything is on the disk. `first` is our first save of the process. Its memory is touched before, as
  in a training.
- `step`: the median duration of steps while a checkpoint is written, divided by that of steps with nothing
  else; the two alternate. A step is a matrix product in all of torch's threads.
- `extra`: the most memory that saving took beyond the training's own, each way in a process of its own.
- `steps in it`: of how many steps there are values in one checkpoint while the training goes on; 1 if it is
  right. Here, a step writes its number into every tensor.

`stored` counts the blobs of an outbox after the second of two checkpoints, with 98 % of the parameters
frozen.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import statistics
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.saving.ways import WAYS, State, Way
from orchestrator.agent.folder import Folder
from orchestrator.agent.settings import Settings
from orchestrator.clock import SystemClock
from orchestrator.core.job import Keep, Precision
from orchestrator.core.order import Order
from orchestrator.session.committing import Outbox
from orchestrator.training import Training

LAYERS, WIDTH, VOCABULARY = 12, 768, 12_288
MARKED_BYTES_MIN = 1024  # smaller tensors are counters of the optimizer
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


def stalls(ways: dict[str, Way], rounds: int) -> Figures:
    threading.Event().wait(5.0)  # time for the steps before the first save
    figures = {"ours: first stall, ms": 1e3 * _saved(ways["ours"], 1)[0]}
    for name, way in ways.items():
        if name != "ours":
            _saved(way, 1)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for number in range(2, rounds + 2):
        for name, way in ways.items():
            taken[name].append(_saved(way, number))
    for name, seconds in taken.items():
        figures[f"{name}: stall, ms"] = 1e3 * statistics.median(s for s, _ in seconds)
        figures[f"{name}: worst stall, ms"] = 1e3 * max(s for s, _ in seconds)
        figures[f"{name}: written, s"] = statistics.median(w for _, w in seconds)
    for other in [name for name in ways if name != "ours"]:
        pairs = zip(taken["ours"], taken[other], strict=True)
        figures[f"ours / {other}"] = statistics.median(a[0] / b[0] for a, b in pairs)
    return figures


def _saved(way: Way, step: int) -> tuple[float, float]:
    """Seconds of the stall, and seconds until everything is written. Deletes what was written."""
    began = time.perf_counter()
    way.save(step)
    stalled = time.perf_counter() - began
    way.wait()
    written = time.perf_counter() - began
    way.clear()
    return stalled, written


def slowdowns(ways: dict[str, Way], rounds: int) -> Figures:
    """A step's duration while a checkpoint is written, divided by that of a step with nothing else."""
    left = torch.randn(1024, 1024)

    def step() -> float:
        began = time.perf_counter()
        torch.mm(left, left)
        return time.perf_counter() - began

    def median(more: Callable[[int], bool]) -> float:
        found = [step()]
        while more(len(found)):
            found.append(step())
        return statistics.median(found)

    ratios: dict[str, list[float]] = {name: [] for name in ways if name != "torch_save"}
    for number in range(100, 100 + rounds):
        for name, found in ratios.items():
            way = ways[name]
            alone = median(lambda count: count < 20)
            way.save(number)
            beside = median(lambda _, way=way: way.is_writing())  # type: ignore[misc]
            way.wait()
            way.clear()
            found.append(beside / alone)
    return {f"{name}: step while writing / step": statistics.median(r) for name, r in ratios.items()}


def mixtures(ways: dict[str, Way], state: State) -> Figures:
    """Of how many steps a checkpoint holds values, if the training goes on at once."""
    figures: Figures = {}
    for name, way in ways.items():
        step = 1
        _mark(state, step)
        way.save(1000)
        while way.is_writing():
            step += 1
            _mark(state, step)
        way.wait()
        found = {value for tensor in way.saved(1000) for value in _marks(tensor)}
        way.clear()
        figures[f"{name}: steps in it"] = len(found)
        figures[f"{name}: steps meanwhile"] = step - 1
    return figures


def _tensors(state: State) -> Iterator[torch.Tensor]:
    yield from state["model"].parameters()
    for moments in state["optimizer"].state.values():
        yield from (moments["exp_avg"], moments["exp_avg_sq"])


@torch.no_grad()
def _mark(state: State, step: int) -> None:
    for tensor in _tensors(state):
        tensor.fill_(step)


def _marks(tensor: torch.Tensor) -> tuple[float, ...]:
    if tensor.nbytes < MARKED_BYTES_MIN:
        return ()
    return tuple(tensor.unique().tolist())  # type: ignore[no-untyped-call]


def memory(folder: Path) -> Figures:
    """The most memory of each way beyond the training's own, in a process that does nothing else."""
    context = multiprocessing.get_context("spawn")
    figures = {}
    for name in WAYS:
        here, there = context.Pipe(duplex=False)
        inside = folder / f"memory-{name}"
        inside.mkdir()
        process = context.Process(target=_measured, args=(name, inside, there))
        process.start()
        there.close()
        figures[f"{name}: extra memory, MB"] = here.recv()
        process.join()
    return figures


def _measured(name: str, folder: Path, told: Connection) -> None:
    _quiet()
    state = with_moments(model())
    before = _kilobytes("VmRSS")
    way: Way = WAYS[name](folder, state)
    for step in (1, 2, 3):
        _saved(way, step)
    told.send((_kilobytes("VmHWM") - before) * 1024 / 1e6)
    way.close()


def _kilobytes(row: str) -> int:
    """A row of this process's memory; `VmHWM` is the peak since it was last asked for the present `VmRSS`."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    if row == "VmRSS":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # sets the peak to the present
    return next(int(line.split()[1]) for line in lines if line.startswith(row))


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


def _quiet() -> None:
    warnings.filterwarnings("ignore")  # DCP warns that there is only one process
    logging.disable(logging.WARNING)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, default=Path(), help="a folder on the disk to measure")
    options = parser.parse_args()
    _quiet()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix=".checkpoint-stall-") as name:
        folder = Path(name)
        figures = memory(folder)
        state = with_moments(model())
        held = sum(parameter.nbytes for parameter in state["model"].parameters())
        figures |= {"state, MB": 3 * held / 1e6, "threads": torch.get_num_threads()}
        ways: dict[str, Way] = {}
        for way in WAYS:
            (folder / way).mkdir()
            ways[way] = WAYS[way](folder / way, state)
        figures |= stalls(ways, options.rounds) | slowdowns(ways, options.rounds) | mixtures(ways, state)
        for each in ways.values():
            each.close()
        figures |= stored(folder / "session")
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:36} {value:10.3f}")
    print("target: our stall at most 0.125 of torch.save's and 1.0 of DCP's; 0.95 of the bytes saved")


if __name__ == "__main__":
    main()
