"""`python -m paced SECONDS MODULE FLAGS`: the module's command, so long at least a step.

A training of few steps then takes several sessions even on the fastest machine.
"""

from __future__ import annotations

import runpy
import sys
import threading
import time

from torch.optim.optimizer import register_optimizer_step_post_hook

SECONDS = float(sys.argv[1])
_last = time.monotonic()


def _wait(*_: object) -> None:
    global _last
    threading.Event().wait(max(0.0, _last + SECONDS - time.monotonic()))
    _last = time.monotonic()


if __name__ == "__main__":
    sys.argv = sys.argv[2:]
    register_optimizer_step_post_hook(_wait)
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
