"""Keeps the contract, but its files are torn, as if written straight into `step-<n>`: `torn.py STEPS`."""

import json
import os
import sys
import zipfile
from pathlib import Path
from threading import Event

folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
for step in range(1, int(sys.argv[1]) + 1):
    saved = folder / ".draft"
    saved.mkdir()
    with zipfile.ZipFile(saved / "whole.pt", "w") as archive:
        archive.writestr("state", b"x" * 1000)
    data = (saved / "whole.pt").read_bytes()
    (saved / "model.pt").write_bytes(data[: len(data) // 2])
    saved.rename(folder / f"step-{step}")
    Event().wait(1.5)
    # If its session is to be ended after a save, it must not be done before that, on no machine.
    end_at = json.loads(Path("../../order.json").read_text()).get("end_at")
    while end_at and step >= end_at["saves"]:
        Event().wait(0.1)
