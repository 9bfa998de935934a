"""Reports losses of which the second is not a number. With "wait" it then runs until a signal ends it."""

import json
import os
import signal
import sys
from pathlib import Path

with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
    progress.write(json.dumps({"step": 1, "metrics": {"loss": 2.0}}) + "\n")
    progress.write(json.dumps({"step": 2, "metrics": {"loss": float("nan")}}) + "\n")
if "wait" in sys.argv:
    signal.pause()
