"""TensorBoard event files that form one unbroken curve over all sessions of a run.

Decides the name of a session's file, and which steps of older files no longer count. Imports a writer only
when it is asked for one.
"""

from __future__ import annotations

import atexit
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.training.ranks import rank

if TYPE_CHECKING:
    from orchestrator.training.training import Training


class Silent:
    """A writer of the ranks other than 0: each of its methods does nothing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_args, **_kwargs: None

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def summary_writer(training: Training, folder: str | os.PathLike[str] = "tensorboard", **options: Any) -> Any:
    """A SummaryWriter of tensorboardX, or else of torch's tensorboard, with these `options`. Its files and
    those of the other sessions form one curve. Name the folder in the job's `outputs`.

    Its files are named after the session: two writers that start in one second may choose the same name
    otherwise, and one overwrites the other. TensorBoard then drops what older files in the folder have of the
    steps that are trained again. It is closed when the program ends. In ranks other than 0 it writes nothing.
    Raises ImportError if neither is installed.
    """
    if rank():
        return Silent()
    name = os.environ.get("ORCHESTRATOR_SESSION_NAME") or str(os.getpid())
    given: dict[str, Any] = {"filename_suffix": f".{name}", "flush_secs": 30}
    if training.start:
        given["purge_step"] = training.start + 1
    kind = _class()
    Path(folder).mkdir(parents=True, exist_ok=True)
    found = kind(os.fspath(folder), **{**given, **options})
    atexit.register(found.close)
    return found


def _class() -> Any:
    try:
        from tensorboardX import SummaryWriter  # type: ignore[import-untyped]
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "no writer for TensorBoard is installed: add tensorboardX to the job's requirements"
            ) from error
    return SummaryWriter
