"""A training that sleeps: `napping.py STEPS STEP_SECONDS JITTER SLOW SLOWER SETUP SAVE LATER`.

Follows the contract of docs/training-contract.md without torch: resumes, reports, saves when asked, and exits
75 on SIGTERM. Needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from random import Random
from threading import Event

STEPS = int(sys.argv[1])
STEP, JITTER, SLOW, SLOWER, SETUP, SAVE, LATER = map(float, sys.argv[2:])
FOLDER = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
REQUEST = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"])
_never, _asked = Event(), Event()


def save(step: int) -> None:
    _never.wait(SAVE)
    unfinished = FOLDER / f".unfinished-{step}"
    unfinished.mkdir(parents=True, exist_ok=True)
    (unfinished / "step.json").write_text(json.dumps(step))
    unfinished.rename(FOLDER / f"step-{step}")


def requested() -> str:
    try:
        return REQUEST.read_text()
    except OSError:
        return ""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda _signal, _frame: _asked.set())
    resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
    begins = json.loads((Path(resume) / "step.json").read_text()) if resume else 0
    random, answered = Random(begins), requested()
    _never.wait(SETUP)
    warm_at = time.monotonic() + SLOW
    with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a", buffering=1) as progress:
        for step in range(begins + 1, STEPS + 1):
            cost = LATER if step > STEPS // 2 else 1.0
            slow = SLOWER if time.monotonic() < warm_at else 1.0
            _never.wait(STEP * cost * slow * random.lognormvariate(-(JITTER**2) / 2, JITTER))
            progress.write(json.dumps({"step": step}) + "\n")
            if _asked.is_set():
                save(step)
                return 75
            if requested() != answered:
                answered = requested()
                save(step)
    save(STEPS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
