"""A torch training under the contract, with data from two worker processes."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.utils.data import DataLoader, IterableDataset

leaving = False


def leave(*_: object) -> None:
    global leaving
    leaving = True


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # like every worker, it dies of a signal
        step = 0
        while True:
            step += 1
            yield torch.tensor([step, os.getpid()])


signal.signal(signal.SIGTERM, leave)
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
resume_from = os.environ.get("ORCHESTRATOR_RESUME_FROM")
weights, step = torch.zeros(1, dtype=torch.int64), 0
if resume_from:
    weights, step = torch.load(Path(resume_from, "state.pt"))
pids = {os.getpid()}
progress = Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a")  # noqa: SIM115 - until the end
for batch in DataLoader(Endless(), batch_size=2, num_workers=2):
    step += 1
    weights += 1
    pids |= set(batch[:, 1].tolist())
    if len(pids) == 3 and not Path("pids").exists():
        Path("pids.tmp").write_text(json.dumps(sorted(pids, key=lambda pid: pid != os.getpid())))
        Path("pids.tmp").rename("pids")
    progress.write(json.dumps({"step": step, "metrics": {"loss": 0.5}}) + "\n")
    progress.flush()
    if leaving:
        folder = checkpoints / ".building"
        folder.mkdir()
        torch.save((weights, step), folder / "state.pt")
        folder.rename(checkpoints / f"step-{step}")
        sys.exit(75)
