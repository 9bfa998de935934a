"""A training that notes each of its starts: `python started.py STEPS SECONDS_PER_STEP FILE`."""

import json
import os
import signal
import sys
import threading
from pathlib import Path

total, pace, starts = int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
request = Path(os.environ["ORCHESTRATOR_SAVE_REQUEST"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
stop: list[int] = []
never = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))


def asked() -> str:
    return request.read_text() if request.exists() else ""


def save(step: int) -> None:
    draft = checkpoints / f".tmp-step-{step}"
    draft.mkdir(parents=True, exist_ok=True)
    (draft / "state.json").write_text(json.dumps({"step": step}))
    draft.rename(checkpoints / f"step-{step}")


step = json.loads((Path(resume) / "state.json").read_text())["step"] if resume else 0
with starts.open("a") as lines:
    lines.write(f"{checkpoints} {step}\n")
answered = asked()
while step < total:
    step += 1
    never.wait(pace)
    with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
        progress.write(json.dumps({"step": step}) + "\n")
    if stop or asked() != answered or step == total:
        answered = asked()
        save(step)
    if stop and step < total:
        sys.exit(75)
