"""Leaves files for people, and fails in its first session after it has saved."""

import os
import sys
from pathlib import Path

resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")
session = "two" if resume else "one"
results = Path("results")
results.mkdir()
for name in ("table.csv", "-rf", "only-one.txt" if resume is None else "only-two.txt"):
    (results / name).write_text(session)
Path("scratch.txt").write_text("not asked for")
if resume is None:
    draft = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"], ".tmp-step-1")
    draft.mkdir(parents=True)
    (draft / "step").write_text("1")
    draft.rename(draft.with_name("step-1"))
    sys.exit("the disk said no")
