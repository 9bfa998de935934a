"""`lacking.py`: saves and resumes in a Python without what some systems lack, and prints the result."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import torch

sys.modules["resource"] = None  # type: ignore[assignment]  # as on Windows: importing it fails
for name in ("MAP_PRIVATE", "MAP_ANONYMOUS", "MAP_ANON", "MADV_DONTFORK"):
    delattr(mmap, name)

from orchestrator.training import Training  # noqa: E402

weights = torch.arange(5000.0)
training = Training.from_environment()
training.resume({"weights": weights})
for step in (1, 2):
    training.should_save(step, 1)
    training.save(step, {"weights": weights})
    weights += 1
training.wait()
found = Training(Path("next"), resume_from=training.checkpoints / "step-2").saved("weights")
sys.stdout.write(f"{found[-1].item()}\n")
