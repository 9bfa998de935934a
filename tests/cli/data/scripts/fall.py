"""Saves every fifth step. The first session crashes at step 8, and everything it reports after 5 is wrong."""

import json
import os
import sys
from pathlib import Path

total = int(sys.argv[1])
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
first = int(Path(resume, "step").read_text()) + 1 if resume else 1
for step in range(first, total + 1):
    metrics = {"loss": 66.0 if step > 5 and not resume else 1 / step}
    if step % 3 == 0:
        metrics["accuracy"] = step / total
    with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
        progress.write(json.dumps({"step": step, "metrics": metrics}) + "\n")
    if step % 5 == 0 or step == total:
        draft = checkpoints / f".tmp-step-{step}"
        draft.mkdir(parents=True)
        (draft / "step").write_text(str(step))
        draft.rename(checkpoints / f"step-{step}")
    if step == 8 and not resume:
        sys.exit("something went wrong")
