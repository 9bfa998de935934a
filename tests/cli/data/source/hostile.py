"""A training that puts the content of hostile.json wherever it can. It crashes once, then continues."""

import json
import os
import sys
from pathlib import Path

given = json.loads(Path("hostile.json").read_text())
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
resume = os.environ.get("ORCHESTRATOR_RESUME_FROM")


def save(step: int) -> None:
    draft = checkpoints / f".tmp-step-{step}"
    for name in given["names"]:
        (draft / name).parent.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(name)
    (draft / "metrics.json").write_text(json.dumps(dict.fromkeys(given["texts"], 1.0)))
    draft.rename(checkpoints / f"step-{step}")


for text in given["texts"]:
    sys.stdout.buffer.write(f"seen {text} by eyes\n".encode())
sys.stdout.buffer.write(b"8-bit \x9b2J and \x9d52;c;cm0=\x9c end\n")
sys.stdout.buffer.write(b"\r 10%|#         |\r100%|##########|\n")
with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
    progress.write(
        json.dumps({"step": 20 if resume else 10, "metrics": dict.fromkeys(given["texts"], 1)}) + "\n"
    )
if resume is None:
    save(10)
    sys.stdout.flush()
    sys.exit("".join("".join(given["texts"]).splitlines()))
assert all(Path(resume, name).read_text() == name for name in given["names"]), "a resume keeps every name"
save(20)
