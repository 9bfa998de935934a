"""A training that learns to count: `python train.py STEPS SECONDS_PER_STEP [GATE]`. Standard library only.

The file GATE has the last step that it may train. It waits there until the number grows.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

total, pace = int(sys.argv[1]), float(sys.argv[2])
gate = Path(sys.argv[3]) if len(sys.argv) > 3 else None
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
request = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
stop: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))


def asked() -> str:
    return request.read_text() if request.exists() else ""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def save(step: int) -> None:
    draft = checkpoints / f".tmp-step-{step}"
    draft.mkdir(parents=True, exist_ok=True)
    (draft / "state.json").write_text(json.dumps({"step": step}))
    (draft / "metrics.json").write_text(json.dumps({"accuracy": step / total}))
    draft.rename(checkpoints / f"step-{step}")


step = json.loads((Path(resume) / "state.json").read_text())["step"] if resume else 0
answered, saved = asked(), step
say(f"counting from {step}")
while step < total:
    time.sleep(pace)
    if gate is None or step < int(gate.read_text()):
        step += 1
        with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
            progress.write(json.dumps({"step": step, "metrics": {"loss": 1 / step}}) + "\n")
    if step > saved and (stop or asked() != answered or step == total):
        answered = asked()
        save(step)
        saved = step
    if stop and step < total:
        say(f"leaving at {step}")
        sys.exit(75)
say(f"counted to {step}")
