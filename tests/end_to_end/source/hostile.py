"""A training that attacks its readers: `hostile.py STEPS`. Everything here has once ended a controller.

It writes into the outbox of its own session, as any script of the same user can, and then trains for ever.
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


def manifest(number: int, of: CheckpointRef, **changes: object) -> None:
    """A manifest of ours without a blob, in the folder of step `number`: with a valid seal, or with some
    values replaced."""
    made = Manifest("", of, 8, (FileEntry("a", 0, ()),))
    folder = outbox / "checkpoints" / CheckpointRef(number, 1, incarnation).name
    folder.mkdir(parents=True)
    altered = json.dumps(json.loads(made.encode()) | changes).encode()
    (folder / "manifest.json").write_bytes(altered if changes else made.encode())


def save(name: str) -> Path:
    (checkpoints / name).mkdir()
    (checkpoints / name / "weights").write_bytes(b"w" * 1000)
    return checkpoints / name


with progress.open("w") as file:
    for step in ("1", "1" + "0" * 308, "1" + "0" * 5000, "-1", "9223372036854775808"):
        file.write(f'{{"step": {step}, "metrics": {{"loss": 1e999}}}}\n')
    file.write("[" * 100_000 + "\n" + '{"step": 2}\n')
beyond = CheckpointRef(9999999999999999999, 1, incarnation)
manifest(3, CheckpointRef(3, 1, incarnation), created_at=10**400)
manifest(4, beyond)
manifest(beyond.step, beyond)
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
