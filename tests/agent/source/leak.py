"""A training script that leaks its secrets by accident in every possible way, and then fails."""

import base64
import json
import os
import sys
import urllib.parse
from pathlib import Path

token, key = os.environ["TOKEN"], os.environ["KEY"]
checkpoints = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])


def say(data: bytes, pieces: int = 1) -> None:
    """Writes it in this many pieces, each with its own system call."""
    size = -(-len(data) // pieces)
    for at in range(0, len(data), size):
        os.write(1, data[at : at + size])
    os.write(1, b"\n")


for secret in (token, key):
    raw = secret.encode()
    for written in (
        raw,
        base64.b64encode(raw),
        base64.b64encode(b"user:" + raw),
        base64.encodebytes(raw),
        base64.urlsafe_b64encode(b"x" + raw),
        raw.hex().encode(),
        urllib.parse.quote(secret).encode(),
        json.dumps({"secret": secret}).encode(),
        repr(os.environ).encode(),
    ):
        for pieces in (1, 2, 7):
            say(written, pieces)
for line in key.splitlines():
    say(f"   > {line}".encode())

with Path(os.environ["ORCHESTRATOR_PROGRESS"]).open("a") as progress:
    for part in (token, *key.splitlines()):
        progress.write(json.dumps({"step": 1, "note": part, "metrics": {part: 1.0, "loss": 0.5}}) + "\n")
        progress.flush()
building = checkpoints / "building"
building.mkdir()
(building / "weights").write_bytes(b"of the script's own")
(building / "metrics.json").write_text(json.dumps({token: 1.0, key: 2.0, "score": 3.0}))
building.rename(checkpoints / "step-1")
folder = checkpoints / "building"
folder.mkdir()
(folder / token.replace("/", "-")).symlink_to("nowhere")
folder.rename(checkpoints / "step-2")
sys.exit(f"no access with {token}, nor with {key.splitlines()[1]}")
