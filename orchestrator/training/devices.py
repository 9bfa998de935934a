"""Chooses the device a training runs on, and starts one process for each device where there are several.

Only this module chooses a back end. A training loop asks `find` for its device and calls `finish_step` after
each optimizer step. Everything else is the same on a CPU, a GPU and a TPU. Must never know models or the
orchestrator's environment.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    import torch

BACKENDS = ("cuda", "tpu", "xla", "cpu")
_BLAME_SECONDS = 5.0


@dataclass(frozen=True)
class Device:
    """`backend` is one of BACKENDS, `torch` the tensors' device, `autocast` the device type for autocast."""

    backend: str
    torch: torch.device
    rank: int = 0
    ranks: int = 1

    @property
    def autocast(self) -> str:
        return self.torch.type

    def finish_step(self) -> None:
        """Runs the recorded operations where they are only recorded (torch_xla). Does nothing elsewhere."""
        if self.backend == "xla":
            importlib.import_module("torch_xla").sync()


def backend_for(accelerator: str | None) -> str | None:
    """The back end for an accelerator of the orchestrator's catalogue, for `find` and `spread`.

    None leaves the choice to them: for a GPU, or if the accelerator is not known. Raises ValueError for a TPU
    that torch cannot use here. Otherwise the training would continue on the machine's CPU.
    """
    if accelerator == "cpu":
        return "cpu"
    if accelerator is None or not accelerator.startswith("TPU"):
        return None
    if _has_native_tpu():
        return "tpu"
    if _has_xla(any_device=False):
        return "xla"
    raise ValueError(
        f"this session is for {accelerator}, but neither torch_tpu nor torch_xla finds a TPU here: "
        "add one of them to the job's requirements for `tpu`"
    )


def find(backend: str | None = None, rank: int = 0, ranks: int = 1) -> Device:
    """The device of this process: the best back end available, or the one named.

    A GPU comes first, then a TPU. A TPU is used by `torch_tpu`, where it is a device like any other, or else
    by torch_xla, which only older images ship (docs/references/accelerators.md#tpu-back-ends). When named,
    `xla` takes whatever torch_xla runs on, even a CPU. Raises ValueError for a back end that is not here.
    """
    import torch

    named = backend is not None
    for name in (backend,) if backend is not None else BACKENDS:
        if name == "cuda" and torch.cuda.is_available():
            torch.cuda.set_device(rank)
            return Device(name, torch.device("cuda", rank), rank, ranks)
        if name == "tpu" and _has_native_tpu():
            return Device(name, torch.device("tpu", rank), rank, ranks)
        if name == "xla" and _has_xla(any_device=named):
            return Device(name, importlib.import_module("torch_xla").device(), rank, ranks)
        if name == "cpu":
            return Device(name, torch.device("cpu"), rank, ranks)
    raise ValueError(f"no device for back end {backend!r} here; known back ends: {', '.join(BACKENDS)}")


def _has_native_tpu() -> bool:
    """torch_tpu becomes torch's accelerator only on machines with a TPU."""
    import torch

    try:
        importlib.import_module("torch_tpu")
    except ImportError:  # none, or one for another torch
        return False
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found is not None and found.type == "tpu"


def _has_xla(any_device: bool) -> bool:
    import torch

    if importlib.util.find_spec("torch_xla") is None:
        return False
    torch_xla = importlib.import_module("torch_xla")
    # torch.utils.checkpoint looks for the device's module there, but torch_xla 2.9 does not set it.
    vars(torch).setdefault("xla", torch_xla)
    return any_device or importlib.import_module("torch_xla.runtime").device_type() == "TPU"


def spread(
    lead: Callable[[], None], follow: Callable[[int], None], ranks: int, backend: str | None = None
) -> None:
    """Runs `lead()` here, as rank 0, and `follow(rank)` in a process for each other rank.

    With more than one rank, torch.distributed is ready in all of them, for tensors of the back end that
    `find` gives for this name. `follow` is pickled. Followers ignore SIGTERM, because the orchestrator
    signals only the leader, which decides for every rank. If a follower fails, this process exits with 1 at
    once, because the other ranks would wait for the failed one forever. If this process ends or `lead`
    raises, the followers end too.
    """
    if ranks == 1:
        lead()
        return
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder, "store")
        others: list[BaseProcess] = [
            context.Process(target=_follow, args=(follow, rank, ranks, backend, meeting))
            for rank in range(1, ranks)
        ]
        for other in others:
            other.start()
        failed = threading.Event()
        watch = threading.Thread(target=_watch, args=(others, failed), daemon=True)
        watch.start()
        try:
            _join(0, ranks, backend, meeting)
            lead()
        finally:
            # If another rank failed first, which breaks the connection, `_watch` reports it and ends all.
            if not _part_in_peace() and not wait([other.sentinel for other in others], _BLAME_SECONDS):
                failed.set()
                for other in others:
                    other.kill()
            watch.join()


def part() -> None:
    """Ends torch.distributed: each rank continues alone from here. Does nothing with a single rank."""
    import torch

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _follow(follow: Callable[[int], None], rank: int, ranks: int, backend: str | None, meeting: Path) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    leader = multiprocessing.parent_process()
    assert leader is not None
    threading.Thread(target=lambda: (wait([leader.sentinel]), os._exit(1)), daemon=True).start()
    _join(rank, ranks, backend, meeting)
    try:
        follow(rank)
    finally:
        _part_in_peace()


def _join(rank: int, ranks: int, backend: str | None, meeting: Path) -> None:
    import torch

    gpu = backend in (None, "cuda") and torch.cuda.is_available()
    if gpu:
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        "nccl" if gpu else "gloo", init_method=meeting.as_uri(), rank=rank, world_size=ranks
    )


def _part_in_peace() -> bool:
    """Calls `part`, but not after a failure: the others may wait in an operation that this process will never
    join."""
    peaceful = sys.exc_info()[0] in (None, SystemExit)
    if peaceful:
        part()
    return peaceful


def _watch(others: list[BaseProcess], failed: threading.Event) -> None:
    """Joins all followers. No other thread may: if two threads wait for a process, only one gets its exit
    code."""
    left = {other.sentinel: other for other in others}
    while left:
        for sentinel in wait(list(left)):
            other = left.pop(cast("int", sentinel))
            other.join()
            if other.exitcode not in (0, 75) and not failed.is_set():
                number = others.index(other) + 1
                print(f"rank {number} ended with {_named(other.exitcode)}", file=sys.stderr, flush=True)  # noqa: T201
                os._exit(1)


def _named(code: int | None) -> str:
    """Names a signal. By this name the agent recognises a process that the kernel killed for memory."""
    return str(code) if code is None or code >= 0 else signal.Signals(-code).name
