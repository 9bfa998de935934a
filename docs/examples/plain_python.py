import json
import os
import random
import signal
import sys
from pathlib import Path

folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
stop = []
signal.signal(signal.SIGTERM, lambda number, _frame: stop.append(number))
total = int(sys.argv[1])
done, slope, offset = 0, 0.0, 0.0
if resume := os.environ.get("ORCHESTRATOR_RESUME_FROM"):
    done, slope, offset = json.loads(Path(resume, "state.json").read_text())
for step in range(done + 1, total + 1):
    draw = random.Random(step)  # data: a function of the step
    points = [(x, 3 * x + 1 + draw.gauss(0, 0.1)) for x in (draw.uniform(-1, 1) for _ in range(8))]
    errors = [(slope * x + offset - y, x) for x, y in points]
    slope -= 0.001 * sum(error * x for error, x in errors)
    offset -= 0.001 * sum(error for error, _ in errors)
    loss = sum(error * error for error, _ in errors) / len(errors)
    if stop or step % 500 == 0 or step == total:
        building = folder / f".tmp-step-{step}"
        building.mkdir(parents=True, exist_ok=True)
        (building / "state.json").write_text(json.dumps((step, slope, offset)))
        building.rename(folder / f"step-{step}")
        with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as reports:
            reports.write(json.dumps({"step": step, "metrics": {"loss": loss}}) + "\n")
    if stop and step < total:
        sys.exit(75)
