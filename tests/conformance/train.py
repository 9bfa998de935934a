"""A training script that honours the contract and needs no packages: `train.py TOTAL PAUSE_SECONDS EVERY`.

Its state at step n follows from the state at step n - 1 through `trained`, so the final state shows whether
every session resumed at the right step. Each start adds a line to the file TRACE.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from pathlib import Path


def trained(value: int, step: int) -> int:
    return (value * 6364136223846793005 + step) % (2**61 - 1)


def uninterrupted(total: int) -> bytes:
    value = 0
    for step in range(1, total + 1):
        value = trained(value, step)
    return encode(total, value)


def encode(step: int, value: int) -> bytes:
    return json.dumps({"step": step, "value": value}).encode()


def save(step: int, value: int) -> None:
    folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
    target, temporary = folder / f"step-{step}", folder / f"unfinished-{step}"
    if not target.exists():
        temporary.mkdir()
        (temporary / "state.json").write_bytes(encode(step, value))
        (temporary / "frozen.bin").write_bytes(b"never changes" * 100)
        temporary.rename(target)


def main(total: int, pause: float, every: int) -> int:
    asked = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked.set())
    with Path(os.environ["TRACE"]).open("a") as trace:
        trace.write(f"{os.getpid()}\n")
    step, value = 0, 0
    resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
    if resume:
        state = json.loads((Path(resume) / "state.json").read_text())
        step, value = state["step"], state["value"]
    while step < total and not asked.is_set():
        step += 1
        value = trained(value, step)
        with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
            progress.write(json.dumps({"step": step, "metrics": {"loss": 1.0 / step}}) + "\n")
        if step % every == 0:
            save(step, value)
        asked.wait(pause)
    save(step, value)
    return 0 if step == total else 75


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
