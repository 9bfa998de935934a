"""The training contract for one process: where to resume, when to save, when to exit, what to report.

Decides only whether the script should save or stop at this step boundary. Also works without the
orchestrator: if no variable is set, checkpoints go to ./checkpoints, and the newest one there is resumed.
Must never know models, nor let the time decide.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, SupportsFloat

from orchestrator.training import determinism
from orchestrator.training import state as saves
from orchestrator.training.layout import SAVED
from orchestrator.training.loading import Place, forgetful, placed
from orchestrator.training.ranks import Agreement, is_distributed, rank
from orchestrator.training.saving import Saver, plain_numbers
from orchestrator.training.writer import warn

if TYPE_CHECKING:
    from orchestrator.training.native import Staged

EXIT_SAVED = 75


class Training:
    """Create it once, as early as possible: from then on SIGTERM means "save at the next step boundary".

    `resume_from` is the checkpoint's folder, or None in the first session. `start` is its step, or 0.
    """

    def __init__(
        self,
        checkpoints: Path,
        *,
        resume_from: Path | None = None,
        save_request: Path | None = None,
        progress: Path | None = None,
        peak_flops: float | None = None,
        accelerator: str | None = None,
        background: bool = True,
        keep: int | None = None,
    ) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"keep={keep}: keep at least one checkpoint, or None for all")
        self.checkpoints = checkpoints
        self.resume_from = resume_from
        self.start = 0 if resume_from is None else saves.step_of(resume_from)
        self._save_request = save_request
        self._answered = "0"  # so that a request from before the start is answered too
        self._progress = progress
        self._stop = False
        self.peak_flops = peak_flops
        self.accelerator = accelerator
        self._agreement = Agreement()
        self._saver = Saver(checkpoints, self._agreement, background=background, keep=keep)
        self._reported: int | None = None
        self._metrics: Mapping[str, float] = {}

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str] = os.environ, *, keep: int | None = None
    ) -> Training:
        """Reads the ORCHESTRATOR_* variables and handles SIGTERM. Call it in the main thread.

        Without an orchestrator, the newest `keep` checkpoints stay (None: all), and Ctrl-C saves at the next
        step boundary too; a second Ctrl-C ends at once.
        """
        given = environ.get("ORCHESTRATOR_CHECKPOINT_DIR")
        checkpoints = Path(given or "checkpoints")
        resume_from = _path(environ, "ORCHESTRATOR_RESUME_FROM")
        training = cls(
            checkpoints,
            resume_from=resume_from if given or resume_from else newest(checkpoints),
            save_request=_path(environ, "ORCHESTRATOR_SAVE_REQUEST"),
            progress=_path(environ, "ORCHESTRATOR_PROGRESS"),
            peak_flops=_peak(environ.get("ORCHESTRATOR_PEAK_FLOPS")),
            accelerator=environ.get("ORCHESTRATOR_ACCELERATOR") or None,
            keep=None if given else keep,
        )
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, training._on_signal)
            if not given:
                signal.signal(signal.SIGINT, training._on_interrupt)
            # Everything is saved by then. Without this, Python restores the default at exit, which kills.
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        return training

    def saved(self, name: str) -> Any:
        """One component's saved values, before anything is built; None in the first session.

        Raises ValueError if the checkpoint lacks the component.
        """
        return None if self.resume_from is None else saves.component(self.resume_from, name)

    def resume(self, state: Mapping[str, object]) -> dict[str, Any]:
        """Loads every component with a `load_state_dict`, then the random generators; nothing without a
        checkpoint.

        Call it after you build the data iterator, which draws random numbers
        (docs/references/training.md#exact-resume). Returns the saved values of everything else. Raises
        ValueError if the checkpoint lacks a component.
        """
        self._saver.state = state
        if forgetful():
            warn(
                "a DataLoader shuffles and its place is not saved, so a resumed run sees other samples: use "
                "`loader = training.loader(loader, seed=…)` and put it into the state"
            )
        return {} if self.resume_from is None else saves.restore(self.resume_from, state)

    def deterministic(self) -> None:
        """Makes torch deterministic, which a bitwise resume on a GPU needs. Call it before the first use of
        the GPU, on every rank. An operation without a deterministic form raises RuntimeError from then on.
        """
        determinism.enforce()

    def loader(self, given: Any, *, seed: int, share: tuple[int, int] | None = None, **options: Any) -> Place:
        """A data loader, or a data set with a DataLoader's `options`, that keeps its epoch and its place in
        it. Put it into the state. Its order is a function of (seed, epoch), and the random choices of a batch
        of (seed, epoch, batch, rank), for any number of workers.

        Each rank gets its share of the batches. Give `share` as (number, of how many) where some ranks need
        the same ones, as in tensor parallelism. Raises ValueError for data without positions, such as an
        iterable data set.
        """
        return placed(given, seed, share, **options)

    def steps(self, total: int, state: Mapping[str, object], *, every: int | None = None) -> Iterator[int]:
        """The steps that are left, from the one after the checkpoint to `total`, for a `for` loop over them.

        Resumes the state first. After the body of each step it reports, saves and leaves as the contract
        asks; without an orchestrator it saves at every `every`-th step. After the last step it saves, and
        waits until that is durable. A body that calls `report` itself adds metrics to the report.
        """
        self.resume(state)
        for step in range(self.start + 1, total + 1):
            yield step
            if self._reported != step:
                self.report(step)
            if step == total:
                break
            if self.should_save(step, every):
                self.save(step, state, self._metrics)
            if self.should_stop():
                self.leave(step, state, self._metrics)
        self.save(max(total, self.start), state, self._metrics, required=True)

    def should_stop(self) -> bool:
        """Whether to call `leave` at this step boundary. Rank 0 decides for every rank, so every rank must
        call this."""
        return self._agreement.of_first(self._stop)

    def should_save(self, step: int, every: int | None = None) -> bool:
        """Whether to save at this step boundary.

        True when a save was requested, and before leaving. Without an orchestrator, true at every `every`-th
        step. Rank 0 decides for every rank, so every rank must call this.
        """
        self._saver.prepare()
        return self._agreement.of_first(self._due(step, every))

    def _due(self, step: int, every: int | None) -> bool:
        if self._stop:
            return True
        if self._save_request is None:
            return every is not None and step % every == 0
        asked = self._requests()
        if asked == self._answered:
            return False
        self._answered = asked
        return True

    def report(self, step: int, **metrics: SupportsFloat) -> None:
        """Appends one line of progress: `loss` and any other metrics of this step.

        A metric may be a tensor or a numpy number with one element. Raises TypeError or ValueError for
        anything that is not a number. In ranks other than 0 it does nothing.
        """
        if not is_distributed():
            self._saver.prepare()
        plain = plain_numbers(metrics)
        self._reported, self._metrics = step, plain
        if self._progress is None or rank():
            return
        told = {"step": step, "metrics": plain, "time": round(time.time(), 3)}
        line = json.dumps(told).encode() + b"\n"
        try:
            with self._progress.open("ab", buffering=0) as file:  # writes the whole line at once
                file.write(line)
        except OSError as error:
            warn(f"progress of step {step} was not written: {error}")

    def save(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        files: Mapping[str, bytes] | Staged = MappingProxyType({}),
        required: bool = False,
    ) -> Path | None:
        """Saves a checkpoint of all components and random generators as they are now, once per step.

        Returns the checkpoint's folder as soon as everything was copied. The folder is written in the
        background, in the order of saves, and before the process ends. The call waits only while two other
        checkpoints are unwritten, so that every save becomes a checkpoint. `files` are added to the folder.
        Their names may contain `/`.

        If the checkpoint cannot be written (the disk is full), earlier ones stay and the training goes on
        with a warning. With `required`, the call waits until the checkpoint is durable, or raises OSError.
        Every rank must call it: the ranks other than 0 give their random states, and get None.
        """
        return self._saver.save(step, state, metrics or {}, files, required)

    def stage(self, size: int) -> Staged:
        """Files of a library's own to copy into a buffer of this size, for `save`. Give it to `save` or
        `release` it. Where memory is short, it takes no tensors, and a warning says so.
        """
        return self._saver.stage(size)

    def provide(self, size: int) -> None:
        """Allocates the buffers for saves of this size before the first of them. Call it after a step."""
        self._saver.provide(size)

    def keep_newest(self, count: int | None) -> None:
        """Without an orchestrator, keeps as many checkpoints, unless `keep` was given."""
        if self._save_request is None and self._saver.keep is None:
            self._saver.keep = count

    def wait(self) -> None:
        """Blocks until every save is durable, or has failed with a warning."""
        self._saver.wait()

    def leave(
        self,
        step: int,
        state: Mapping[str, object],
        metrics: Mapping[str, SupportsFloat] | None = None,
        *,
        files: Mapping[str, bytes] | Staged = MappingProxyType({}),
    ) -> NoReturn:
        """Saves this step if it is not saved yet, and exits with 75: "saved, resume me". Every rank must call
        it."""
        failure: OSError | None = None
        try:
            self.save(step, state, metrics, files=files, required=True)
        except OSError as error:
            failure = error
        if not self._agreement.of_first(failure is None):
            raise failure or OSError(f"rank 0 could not save the checkpoint of step {step}")
        sys.exit(EXIT_SAVED)

    def _requests(self) -> str:
        assert self._save_request is not None
        try:
            return self._save_request.read_text(encoding="utf-8").strip() or self._answered
        except OSError:  # no file yet: no save was requested
            return self._answered

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        self._stop = True

    def _on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self._stop:
            signal.default_int_handler(signum, frame)
        self._stop = True
        with suppress(RuntimeError):  # the training was in the middle of a line of its own
            warn("saving at the next step; Ctrl-C again ends at once")


def newest(checkpoints: Path) -> Path | None:
    """The committed checkpoint with the highest step in a folder, or None."""
    found = [
        (int(match[1]), path) for path in checkpoints.glob("step-*") if (match := SAVED.fullmatch(path.name))
    ]
    return max(found)[1] if found else None


def _peak(given: str | None) -> float | None:
    """The peak, or None with a warning: it is only a figure for reports and must not end the training."""
    if not given:
        return None
    with suppress(ValueError):
        if 0 < float(given) < math.inf:
            return float(given)
    warn(f"ORCHESTRATOR_PEAK_FLOPS: {given!r} is not a positive number; ignored")
    return None


def _path(environ: Mapping[str, str], name: str) -> Path | None:
    return Path(environ[name]) if environ.get(name) else None
