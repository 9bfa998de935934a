"""Keeps the contract, but writes straight into `step-<n>`, and slowly: `torn.py STEPS`."""

import os
import sys
import zipfile
from pathlib import Path
from threading import Event

folder = Path(os.environ["ORCHESTRATOR_CHECKPOINT_DIR"])
for step in range(1, int(sys.argv[1]) + 1):
    saved = folder / f"step-{step}"
    saved.mkdir()
    with zipfile.ZipFile(saved / "whole.pt", "w") as archive:
        archive.writestr("state", b"x" * 1000)
    data = (saved / "whole.pt").read_bytes()
    (saved / "model.pt").write_bytes(data[: len(data) // 2])
    Event().wait(1.5)
