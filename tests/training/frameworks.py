"""Shared by the tests of the adapters: interrupted and uninterrupted runs, and their results."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.training import EXIT_SAVED
from tests.training.scripts import finish, started, steps, until


@dataclass(frozen=True)
class Library:
    """A library that scripts start warm with: `kind` of tests/warm_server.py."""

    kind: str

    def run(self, folder: Path, script: Path, *arguments: object) -> int:
        """The exit code of a run in this folder, which resumes from its newest checkpoint."""
        folder.mkdir(exist_ok=True)
        with started([str(script), *map(str, arguments)], folder, kind=self.kind) as process:
            output = finish(process)
        assert process.returncode != 1, output
        assert process.returncode is not None
        return process.returncode

    def disturbed(self, folder: Path, script: Path, *arguments: object, events: tuple[str, ...]) -> None:
        """A run that is interrupted by each event (`term:STEP`, `kill:STEP`) in turn, and then completes."""
        for event in events:
            code = self.run(folder, script, *arguments, event)
            assert code == (EXIT_SAVED if event.startswith("term") else -signal.SIGKILL), event
        assert self.run(folder, script, *arguments) == 0


def keeps_the_contract(library: Library, example: Path, folder: Path, total: int) -> tuple[Path, Path]:
    """The example as a user would copy it: it is asked to save, asked to stop, resumed, killed and completed.

    The last part runs without the orchestrator. Returns the last checkpoint, and the one of an uninterrupted
    run with another number of workers.
    """
    request, progress = folder / "request", folder / "progress"
    given: dict[str, object] = {"SAVE_REQUEST": request, "PROGRESS": progress}
    first, second = folder / "first", folder / "last/checkpoints"
    command = [str(example), str(total), "2"]
    with started(command, folder, {**given, "CHECKPOINT_DIR": first}, kind=library.kind) as process:
        until(progress.exists, process)
        request.write_text("1")
        until(lambda: steps(first), process)
        process.send_signal(signal.SIGTERM)
        output = finish(process)
    assert process.returncode == EXIT_SAVED, output
    left = steps(first)[-1]
    given |= {"RESUME_FROM": first / f"step-{left}", "CHECKPOINT_DIR": second}
    with started(command, folder, given, kind=library.kind) as process:
        until(lambda: _reports(progress)[-1]["step"] > left, process)
        request.write_text("2")
        until(lambda: steps(second), process)
        process.kill()
        finish(process)
    assert left < steps(second)[-1] < total
    assert all(report["metrics"]["loss"] > 0 for report in _reports(progress))
    assert library.run(folder / "last", example, total, 2) == 0
    assert library.run(folder / "whole", example, total, 0) == 0
    last, whole = second / f"step-{total}", folder / f"whole/checkpoints/step-{total}"
    assert json.loads((last / "metrics.json").read_text())["loss"] > 0
    return last, whole


def _reports(progress: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in progress.read_text().splitlines()]
