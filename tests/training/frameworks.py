"""Shared by the tests of the adapters: interrupted and uninterrupted runs, and their results."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.training import EXIT_SAVED
from tests.training.scripts import Done, finish, in_time, reserved_port, started, steps, until


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
        with ExitStack() as stack:
            port = stack.enter_context(reserved_port())
            meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": ranks}
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
                    finish(other)  # if it has not failed before, for the lack of the first
                    continue
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
    command = [str(example), str(total), "2"]

    def stopped(attempt: int) -> Path:
        """The checkpoint that it left, in the first half of the training."""
        place = folder / f"first-{attempt}"
        with started(command, place, _given(place), kind=library.kind) as process:
            until((place / "progress").exists, process)
            (place / "request").write_text("1")
            until(lambda: steps(place / "checkpoints"), process)
            process.send_signal(signal.SIGTERM)
            output = finish(process)
        left = steps(place / "checkpoints")[-1]
        if left > total // 2:
            raise Done
        assert process.returncode == EXIT_SAVED, output
        return place / f"checkpoints/step-{left}"

    def killed(attempt: int) -> Path:
        """The folder of its checkpoints."""
        place = folder / f"last-{attempt}"
        given = {**_given(place), "RESUME_FROM": resume_from}
        with started(command, place, given, kind=library.kind) as process:
            until(lambda: _reached(place / "progress") > left, process)
            (place / "request").write_text("2")
            until(lambda: steps(place / "checkpoints"), process)
            process.kill()
            finish(process)
        if total in steps(place / "checkpoints"):
            raise Done
        assert steps(place / "checkpoints")[-1] > left
        return place

    resume_from = in_time(stopped)
    left = int(resume_from.name.removeprefix("step-"))
    second = in_time(killed)
    for place in (resume_from.parents[1], second):
        assert all(report["metrics"]["loss"] > 0 for report in _reports(place / "progress"))
    assert library.run(second, example, total, 2) == 0
    assert library.run(folder / "whole", example, total, 0) == 0
    last, whole = second / f"checkpoints/step-{total}", folder / f"whole/checkpoints/step-{total}"
    assert json.loads((last / "metrics.json").read_text())["loss"] > 0
    return last, whole


def _given(place: Path) -> dict[str, object]:
    """What the orchestrator would give a training in this folder, which is made."""
    place.mkdir()
    return {
        "SAVE_REQUEST": place / "request", "PROGRESS": place / "progress",
        "CHECKPOINT_DIR": place / "checkpoints",
    }  # fmt: skip


def _reached(progress: Path) -> int:
    """The last step that was reported; 0 if none was yet."""
    reports = _reports(progress) if progress.exists() else []
    return int(reports[-1]["step"]) if reports else 0


def _reports(progress: Path) -> list[dict[str, Any]]:
    """Those that are written to their end."""
    return [json.loads(line) for line in progress.read_text().split("\n")[:-1]]
