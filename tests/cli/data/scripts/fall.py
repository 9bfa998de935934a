"""Saves every fifth step. The first session crashes at step 8, and everything it reports after 5 is wrong."""

import json
import os
import sys
from pathlib import Path

from tensorboardX import SummaryWriter  # type: ignore[import-untyped]

total = int(sys.argv[1])
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
first = int(Path(resume, "step").read_text()) + 1 if resume else 1
name = os.environ["ORCHESTRATOR_SESSION_NAME"]
writer = SummaryWriter("tensorboard", filename_suffix=f".{name}", purge_step=first if resume else None)
for step in range(first, total + 1):
    metrics = {"loss": 66.0 if step > 5 and not resume else 1 / step}
    if step % 3 == 0:
        metrics["accuracy"] = step / total
    with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
        progress.write(json.dumps({"step": step, "metrics": metrics}) + "\n")
    writer.add_scalar("loss", metrics["loss"], step)
    if step % 5 == 0 or step == total:
        draft = checkpoints / f".tmp-step-{step}"
        draft.mkdir(parents=True)
        (draft / "step").write_text(str(step))
        draft.rename(checkpoints / f"step-{step}")
    if step == 8 and not resume:
        writer.close()
        sys.exit("something went wrong")
writer.close()
