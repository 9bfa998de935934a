"""Saves every fifth step, and continues from what it is given. A file bug.txt makes it fail at step 7."""

import json
import os
import sys
from pathlib import Path

total = int(sys.argv[1])
until = int(sys.argv[2]) if len(sys.argv) > 2 else total
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
step = int(Path(resume, "step").read_text()) if resume else 0
sys.stdout.write(f"learning from {step}\n")
bug = Path("bug.txt")
while step < until:
    step += 1
    with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
        progress.write(json.dumps({"step": step, "metrics": {"loss": 1 / step}}) + "\n")
    if step == 7 and bug.exists():
        raise ValueError(bug.read_text().strip())
    if step % 5 == 0 or step == until:
        draft = checkpoints / f".tmp-step-{step}"
        draft.mkdir(parents=True)
        (draft / "step").write_text(str(step))
        draft.rename(checkpoints / f"step-{step}")
