"""Launches one order, and can die on the way: `launch.py TYPE OPTIONS FOLDER ORDER LINE`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import orchestrator
from orchestrator.clock import SystemClock
from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.platforms.catalog import build

# As paths, because importing all platforms would take longer than one launch.
PLATFORM_CODE = frozenset(
    str(Path(orchestrator.__file__).parent / name)
    for name in (
        "platforms/process.py",
        "platforms/colab/launching.py",
        "platforms/colab/machine.py",
        "platforms/colab/memory.py",
        "platforms/colab/platform.py",
        "platforms/colab/runner.py",
        "platforms/colab/staging.py",
        "platforms/colab/starting.py",
        "platforms/docker/container.py",
        "platforms/docker/platform.py",
        "platforms/kaggle/client.py",
        "platforms/kaggle/finding.py",
        "platforms/kaggle/kernel.py",
        "platforms/kaggle/memory.py",
        "platforms/kaggle/platform.py",
        "platforms/kaggle/staging.py",
        "session/folder.py",
    )
)
assert all(Path(path).exists() for path in PLATFORM_CODE)


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
