"""A training that turns on whoever reads it: `hostile.py STEPS`. Everything here has once ended a controller.

Writes into the outbox of its own session, as any script of the same user can, and then trains for ever.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from orchestrator.core.checkpoint import CheckpointRef, FileEntry, Manifest

checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
progress = Path(os.environ["ORCHESTRATOR_PROGRESS"])
incarnation = os.environ["ORCHESTRATOR_INCARNATION"]
outbox = progress.parents[1] / "outbox"
never = threading.Event()


def manifest(number: int, **changes: object) -> None:
    """A manifest of ours, without a blob, some of its values replaced."""
    made = Manifest("", CheckpointRef(number, 1, incarnation), 8, (FileEntry("a", 0, ()),))
    folder = outbox / "checkpoints" / made.name
    folder.mkdir(parents=True)
    document = json.loads(made.encode()) | changes
    (folder / "manifest.json").write_text(json.dumps(document))


def save(name: str) -> Path:
    (checkpoints / name).mkdir()
    (checkpoints / name / "weights").write_bytes(b"w" * 1000)
    return checkpoints / name


with progress.open("w") as file:
    for step in ("1", "1" + "0" * 308, "1" + "0" * 5000, "-1", "9223372036854775808"):
        file.write(f'{{"step": {step}, "metrics": {{"loss": 1e999}}}}\n')
    file.write("[" * 100_000 + "\n" + '{"step": 2}\n')
manifest(3, created_at=10**400)
manifest(4, step=9999999999999999999)
manifest(9999999999999999999)
save("step-9999999999999999999")
os.mkfifo(save("step-5") / "pipe")
(save("step-6") / "metrics.json").write_text('{"\\ud800": 1, "huge": 1' + "0" * 400 + "}")
os.mkfifo(outbox / "log" / "000777.log")
for name in ("status.json", "result.json"):
    (outbox / f".tmp-{name}").symlink_to(Path.home() / "mine")
with (outbox / "log" / "000778.log").open("wb") as holes:
    holes.truncate(1 << 40)
flood = json.dumps({"incarnation": incarnation, "heartbeat": 1, "state": "x" * (14 << 20)}).encode()
for _ in range(100):
    (outbox / ".flood").write_bytes(flood)
    (outbox / ".flood").rename(outbox / "status.json")
    never.wait(0.02)
(outbox / "ready").touch()
never.wait()
