"""A training that torchrun starts, in a real session: torchrun hides the exit code of its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.core.order import Outcome
from tests.agent.sessions import session
from tests.training.scripts import reserved_port

SCRIPT = """
import threading
import torch
from orchestrator.training import Training

torch.distributed.init_process_group("gloo")
training = Training.from_environment()
weights = torch.zeros(4)
step = 0
try:
    for step in training.steps(1_000_000, {"weights": weights}):
        weights += 1
        threading.Event().wait(0.02)
finally:
    print(f"rank {torch.distributed.get_rank()} left after step {step}", flush=True)
"""


def test_asked_to_leave_all_ranks_save_one_step_and_the_session_counts_as_saved(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "ranks.py").write_text(SCRIPT)
    more: dict[str, Any] = {"steps_total": 1_000_000, "interval_seconds": 600.0}
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", "2")
    with (
        reserved_port() as port,
        session(
            tmp_path / "stay", *torchrun, "--master-port", str(port), "ranks.py", source=source, **more
        ) as stay,
    ):
        stay.start()
        stay.wait_for(lambda status: (status.step or 0) > 3, "the first steps")
        (tmp_path / "stay/stop").touch()
        result = stay.end()
        saved = f"saved step {result.step} and left for a request to stop, with exit code 1"
        assert (result.outcome, result.message) == (Outcome.STOPPED, saved)
        assert [manifest.ref.step for manifest in stay.manifests()] == [result.step]
        assert all(f"rank {rank} left after step {result.step}" in stay.log() for rank in (0, 1))
