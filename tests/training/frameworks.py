"""Shared by the tests of the adapters: interrupted and uninterrupted runs, and their results."""

from __future__ import annotations

import json
import signal
import socket
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.training import EXIT_SAVED
from tests.training.scripts import finish, started, steps, until


@dataclass(frozen=True)
class Library:
    """A library that scripts start warm with: `kind` of tests/warm_server.py."""

    kind: str

    def run(self, folder: Path, script: Path, *arguments: object, ranks: int = 1, **also: object) -> int:
        """The exit code of rank 0 of a run in this folder, which resumes from its newest checkpoint.

        Several ranks are started as torchrun would. `also` are environment variables.
        """
        folder.mkdir(exist_ok=True)
        command = [str(script), *map(str, arguments)]
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": _free_port(), "WORLD_SIZE": ranks}
        with ExitStack() as stack:
            processes = []
            for rank in range(ranks):
                own = {**meeting, "RANK": rank, "LOCAL_RANK": rank} if ranks > 1 else {}
                process = started(command, folder, kind=self.kind, also={**own, **also})
                processes.append(stack.enter_context(process))
            first, *others = processes
            output = finish(first)
            for other in others:
                if first.returncode == -signal.SIGKILL:
                    other.kill()
                output += finish(other)
                assert other.returncode in (first.returncode, 0), output
        assert first.returncode != 1, output
        assert first.returncode is not None
        return first.returncode

    def disturbed(
        self, folder: Path, script: Path, *arguments: object, events: tuple[str, ...], **more: Any
    ) -> None:
        """A run that is interrupted by each event (`term:STEP`, `kill:STEP`) in turn, and then completes."""
        for event in events:
            code = self.run(folder, script, *arguments, event, **more)
            assert code == (EXIT_SAVED if event.startswith("term") else -signal.SIGKILL), event
        assert self.run(folder, script, *arguments, **more) == 0

    def does_not_wait_for_the_disk(self, folder: Path, script: Path, save: int) -> None:
        """Runs the script on a disk that takes the save of this step only once two more steps are done."""
        folder.mkdir()
        progress, disk = folder / "progress", folder / "disk works"
        given = {"PROGRESS": progress, "CHECKPOINT_DIR": folder / "checkpoints"}
        with started([str(script), "0", "2"], folder, given, kind=self.kind, also={"DISK": disk}) as process:
            until(lambda: _reached(progress) >= save + 2, process)
            assert steps(folder / "checkpoints") == []
            disk.touch()
            output = finish(process)
        assert process.returncode == 0, output
        assert save in steps(folder / "checkpoints")


def drawn(folder: Path) -> list[str]:
    """The random numbers that all ranks of a toy noted."""
    return [number for path in sorted(folder.glob("drawn-*")) for number in path.read_text().split()]


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
        until(lambda: _reached(progress) > left, process)
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


def _free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
    return port


def _reached(progress: Path) -> int:
    """The last step that was reported; 0 if none was yet."""
    reports = _reports(progress) if progress.exists() else []
    return int(reports[-1]["step"]) if reports else 0


def _reports(progress: Path) -> list[dict[str, Any]]:
    """Those that are written to their end."""
    return [json.loads(line) for line in progress.read_text().split("\n")[:-1]]
