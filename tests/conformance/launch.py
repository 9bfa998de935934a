"""Launches one order, and can die on the way: `launch.py TYPE OPTIONS FOLDER ORDER LINE`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.platforms import process
from orchestrator.platforms.catalog import build
from orchestrator.platforms.colab import launching, machine, runner, starting
from orchestrator.platforms.colab import memory as colab_memory
from orchestrator.platforms.colab import platform as colab
from orchestrator.platforms.colab import staging as colab_staging
from orchestrator.platforms.docker import container
from orchestrator.platforms.docker import platform as docker
from orchestrator.platforms.kaggle import client, finding, kernel, memory, staging
from orchestrator.platforms.kaggle import platform as kaggle
from orchestrator.session import folder

PLATFORM_CODE = tuple(
    module.__file__
    for module in (
        process, folder, docker, container, kaggle, client, finding, kernel, memory, staging,
        colab, launching, machine, runner, starting, colab_memory, colab_staging,
    )
)  # fmt: skip


class DeathAtLine:
    """Traces the platform's code and kills this process with SIGKILL just before the n-th new line runs."""

    def __init__(self, line: int) -> None:
        self.line = line
        self.seen: set[tuple[str, int]] = set()

    def __call__(self, frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code.co_filename not in PLATFORM_CODE:
            return None
        if event == "line":
            self.seen.add((frame.f_code.co_filename, frame.f_lineno))
            if len(self.seen) == self.line:
                os.kill(os.getpid(), signal.SIGKILL)
        return self


def main(type_: str, options: str, folder: str, order_file: str, line: str) -> None:
    order = wire.decode(Order, Path(order_file).read_bytes())
    platform = build(order.platform, type_, json.loads(options), folder=Path(folder), clock=SystemClock())
    if int(line):
        sys.settrace(DeathAtLine(int(line)))
    platform.launch(order)


if __name__ == "__main__":
    main(*sys.argv[1:])
