"""Whether this machine has the accelerator that a notebook is for. Loads no framework.

A first look, before an order is taken: the agent's own probe checks the devices of each session. Decides
nothing else.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from orchestrator.core.accelerators import catalogue
from orchestrator.core.gpu_names import may_be

_TOOLS = "/opt/bin:/usr/local/nvidia/bin"  # where images keep the driver's tools outside their PATH
_PATIENCE_SECONDS = 120.0


def lacking(accelerator: str, variables: Mapping[str, str], root: Path = Path("/")) -> str:
    """What this machine has instead of the accelerator; empty if it seems to have it. A GPU machine also
    takes what is for `cpu`."""
    row = catalogue.get(accelerator)
    if row is None:
        return "an older program, which does not know this accelerator"
    if row.arch.startswith("sm_"):
        gpus = _gpus(variables)
        fits = len(gpus) >= row.devices and all(may_be(name, row) for name in gpus)
        return "" if fits else ", ".join(gpus) or "no GPU"
    if row.arch.startswith("tpu-"):
        nodes = [*(root / "dev").glob("accel[0-9]*"), *(root / "dev" / "vfio").glob("[0-9]*")]
        return "" if nodes or "TPU_ACCELERATOR_TYPE" in variables else "no TPU"
    return ""


def _gpus(variables: Mapping[str, str]) -> list[str]:
    tool = shutil.which("nvidia-smi", path=f"{variables.get('PATH', '')}:{_TOOLS}")
    if tool is None:
        return []
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"],
            capture_output=True, text=True, errors="replace", timeout=_PATIENCE_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    found = [line.strip() for line in answer.stdout.splitlines() if line.strip()]
    return [] if answer.returncode or found[:1] == ["No devices were found"] else found
