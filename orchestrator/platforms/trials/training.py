"""The job of a trial: `training.py STEPS STEP_SECONDS PAYLOAD_BYTES` (docs/training-contract.md).

Its state after a step follows from the state before, so the last one shows whether every session continued
exactly where the one before had left. With each checkpoint it writes what it saw of its machine. Runs alone,
with the standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

STATE, SEEN, PAYLOAD = "state.json", "seen.json", "payload.bin"
INPUT = "/kaggle/input"
_FOLDERS_MAX = 40


def after(value: int, step: int) -> int:
    return (value * 6364136223846793005 + step) % (2**61 - 1)


def uninterrupted(steps: int) -> int:
    """The state after this many steps."""
    value = 0
    for step in range(1, steps + 1):
        value = after(value, step)
    return value


def seen() -> dict[str, object]:
    """What this machine is, in names and numbers."""
    gpus = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=True).stdout
    folders = sorted(str(path.relative_to(INPUT)) for path in Path(INPUT).rglob("*") if path.is_dir())
    return {
        "python": platform.python_version(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "gpus": gpus.split("\n")[:-1] if gpus else [],
        "tpu": os.environ.get("TPU_ACCELERATOR_TYPE", ""),
        "variables": sorted(name for name in os.environ if name.startswith(("KAGGLE", "COLAB"))),
        "folders": folders[:_FOLDERS_MAX],
        "links": sorted({path.name for path in Path(INPUT).rglob("*") if path.is_symlink()})[:_FOLDERS_MAX],
    }


def say(text: str) -> None:
    sys.stdout.write(f"trial: {text}\n")
    sys.stdout.flush()


def save(step: int, value: int, payload: int) -> None:
    folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
    target, draft = folder / f"step-{step}", folder / f"unfinished-{step}"
    if target.exists():
        return
    draft.mkdir()
    (draft / STATE).write_text(json.dumps({"step": step, "value": value}))
    (draft / SEEN).write_text(json.dumps(seen()))
    if payload:
        (draft / PAYLOAD).write_bytes(os.urandom(payload))
    draft.rename(target)


def main(steps: int, step_seconds: float, payload: int) -> int:
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    step, value = 0, 0
    resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
    if resume:
        state = json.loads(Path(resume, STATE).read_text())
        step, value = state["step"], state["value"]
    say(f"begins after step {step} of {steps}")
    request, asked = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"]), ""
    while step < steps and not stop.is_set():
        step += 1
        value = after(value, step)
        say(f"step {step}")
        with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
            progress.write(json.dumps({"step": step, "metrics": {"loss": 1.0 / step}}) + "\n")
        now = request.read_text() if request.exists() else ""
        if now != asked:
            asked = now
            save(step, value, payload)
        stop.wait(step_seconds)
    save(step, value, payload)
    return 0 if step == steps else 75


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
