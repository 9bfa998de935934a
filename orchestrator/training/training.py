"""One training process under the contract: where to resume, when to save, when to leave, what to report.

Decides only whether the script should save or stop at this step boundary. Works without the orchestrator
too: nothing set means checkpoints in ./checkpoints and resuming from the newest of them. Must never know
models, nor read the time.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import Any, NoReturn

from orchestrator.training import state as saves

EXIT_SAVED = 75
_STEP = re.compile(r"step-(\d+)")
_TEMPORARY = ".tmp-step-"


class Training:
    """Made once, as early as possible: from then on SIGTERM means "save at the next step boundary".

    `resume_from` is the checkpoint's folder, None at the first session; `start` its step, else 0.
    """

    def __init__(
        self,
        checkpoints: Path,
        *,
        resume_from: Path | None = None,
        save_request: Path | None = None,
        progress: Path | None = None,
    ) -> None:
        self.checkpoints = checkpoints
        self.resume_from = resume_from
        self.start = 0 if resume_from is None else saves.step_of(resume_from)
        self._save_request = save_request
        self._answered = "0"  # so that a request made before we were here is answered too
        self._progress = progress
        self._stop = False
        self._saved: tuple[int, Path] | None = None
        checkpoints.mkdir(parents=True, exist_ok=True)
        for leftover in checkpoints.glob(f"{_TEMPORARY}*"):  # of a process killed in the middle of a save
            shutil.rmtree(leftover, ignore_errors=True)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Training:
        """Reads the ORCHESTRATOR_* variables and takes over SIGTERM; call it in the main thread."""
        given = environ.get("ORCHESTRATOR_CHECKPOINT_DIR")
        checkpoints = Path(given or "checkpoints")
        resume_from = _path(environ, "ORCHESTRATOR_RESUME_FROM")
        training = cls(
            checkpoints,
            resume_from=resume_from if given or resume_from else newest(checkpoints),
            save_request=_path(environ, "ORCHESTRATOR_SAVE_REQUEST"),
            progress=_path(environ, "ORCHESTRATOR_PROGRESS"),
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, training._on_signal)
        return training

    def saved(self, name: str) -> Any:
        """One component's saved values, before anything is built; None at the first session.

        Raises ValueError where the checkpoint lacks it.
        """
        return None if self.resume_from is None else saves.component(self.resume_from, name)

    def resume(self, state: Mapping[str, object]) -> dict[str, Any]:
        """Loads what has a `load_state_dict`, then the random generators; at the first session, nothing.

        Call it after the data iterator is built, which draws random numbers (facts/training.md §3). Returns
        the saved values of everything else. Raises ValueError where the checkpoint lacks a component.
        """
        return {} if self.resume_from is None else saves.restore(self.resume_from, state)

    def should_stop(self) -> bool:
        """Whether to leave at this step boundary, by `leave`."""
        return self._stop

    def should_save(self, step: int, every: int | None = None) -> bool:
        """Whether to save at this step boundary: asked for, about to leave, or, where nobody asks (no
        orchestrator), every so many steps."""
        if self._stop:
            return True
        if self._save_request is None:
            return every is not None and step % every == 0
        asked = self._requests()
        if asked == self._answered:
            return False
        self._answered = asked
        return True

    def report(self, step: int, **metrics: float) -> None:
        """Appends one line of progress; `loss` and any other figures of this step."""
        if self._progress is None:
            return
        try:
            with self._progress.open("ab", buffering=0) as file:  # a line goes out whole, in one write
                file.write(json.dumps({"step": step, "metrics": metrics}).encode() + b"\n")
        except OSError as error:
            _warn(f"progress of step {step} was not written: {error}")

    def save(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, float] | None = None,
        *,
        files: Mapping[str, bytes] = MappingProxyType({}),
        required: bool = False,
    ) -> Path | None:
        """Commits a checkpoint of all components and random generators; once per step. `files` go beside.

        Durable when it returns the folder. If it cannot be written (the disk is full), earlier ones stay:
        the training goes on with a warning and None, unless `required`, which raises OSError.
        """
        if self._saved is not None and self._saved[0] == step:
            return self._saved[1]
        target = self.checkpoints / f"step-{step}"
        temporary = self.checkpoints / f"{_TEMPORARY}{step}"
        try:
            if not target.exists():
                self._commit(temporary, target, step, state, metrics or {}, files)
        except OSError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if required:
                raise OSError(f"the checkpoint of step {step} could not be saved: {error}") from error
            _warn(f"the checkpoint of step {step} could not be saved, training goes on: {error}")
            return None
        self._saved = (step, target)
        return target

    def leave(
        self, step: int, state: Mapping[str, object], metrics: Mapping[str, float] | None = None
    ) -> NoReturn:
        """Saves this step, if it is not saved yet, and exits 75: saved, resume me."""
        self.save(step, state, metrics, required=True)
        sys.exit(EXIT_SAVED)

    def _commit(
        self,
        temporary: Path,
        target: Path,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, float],
        extra: Mapping[str, bytes],
    ) -> None:
        temporary.mkdir()
        for name, data in extra.items():
            (temporary / name).write_bytes(data)
        if metrics:  # a manifest has no NaN
            finite = {name: value for name, value in sorted(metrics.items()) if math.isfinite(value)}
            saves.write_json(temporary / "metrics.json", finite)
        saves.write(temporary, step, state)
        temporary.rename(target)
        saves.sync_folder(self.checkpoints)

    def _requests(self) -> str:
        assert self._save_request is not None
        try:
            return self._save_request.read_text(encoding="utf-8").strip() or self._answered
        except OSError:  # not there yet: nobody has asked
            return self._answered

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop = True


def newest(checkpoints: Path) -> Path | None:
    """The committed checkpoint of the highest step in a folder, or None."""
    found = [
        (int(match[1]), path) for path in checkpoints.glob("step-*") if (match := _STEP.fullmatch(path.name))
    ]
    return max(found)[1] if found else None


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None


def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)  # noqa: T201
