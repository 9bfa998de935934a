"""A real kernel: what its cells put out is kept while they run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.core.mask import Mask
from orchestrator.core.notebook import Notebook
from orchestrator.notebook.kernel import started
from orchestrator.notebook.record import Record
from tests.agent.cells import notebook
from tests.hurried import HurriedClock


def test_a_silent_cell_is_written_while_it_computes(tmp_path: Path) -> None:
    path = tmp_path / "copy.ipynb"
    waits = f"""
import pathlib, time
print("early")
for _ in range(6000):
    time.sleep(0.05)
    if "early" in pathlib.Path({str(path)!r}).read_text():
        break
else:
    raise TimeoutError
"""
    clock = HurriedClock(0.0)
    kept = Record(Notebook(notebook("pass")), path, clock, Mask())
    kept.write()

    def hear(message: Mapping[str, Any]) -> None:
        kept.hear(message)
        if message["msg_type"] == "stream":  # from then on it says nothing, and time passes
            clock.hurry(50.0)

    with started(hear, kept.write_soon) as kernel:
        kernel.wait_until_ready()
        kept.begin(kept.tree["cells"][0])
        assert kernel.execute(waits)["status"] == "ok"
