"""TensorBoard event files that form one unbroken curve over all sessions of a run.

Decides the name of a session's file, and which steps of older files no longer count. Imports a writer only
when it is asked for one.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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


def writer(
    folder: str | os.PathLike[str], start: int, environ: Mapping[str, str] = os.environ, **options: Any
) -> Any:
    """A SummaryWriter of tensorboardX, or else of torch, for a training that goes on after step `start`.

    Its files are named after the session: two writers that start in one second have the same name otherwise,
    and one overwrites the other. TensorBoard drops the steps after `start` that older files in the folder
    have. It is closed when the program ends.
    """
    name = environ.get("ORCHESTRATOR_SESSION_NAME") or str(os.getpid())
    given = {"filename_suffix": f".{name}", "flush_secs": 30, **options}
    if start:
        given.setdefault("purge_step", start + 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    found = _class()(os.fspath(folder), **given)
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
