"""Trains, saves nothing that counts, and exits with 0."""

from pathlib import Path

Path("checkpoints").mkdir()
for epoch in range(1, 4):
    Path(f"checkpoints/ckpt_{epoch}.pt").write_bytes(b"weights")
