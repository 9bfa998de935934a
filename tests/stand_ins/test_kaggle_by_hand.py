"""`make kaggle-local`: the server writes a config that the orchestrator accepts."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import requests

from orchestrator import config

ROOT = Path(__file__).resolve().parents[2]


def test_it_serves_until_interrupted_and_writes_a_config(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.stand_ins.kaggle", "--folder", str(tmp_path), "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            said = "".join(next(lines) for _ in range(4))
            url = re.findall(r"http://127[^,]+", said)[0]
            assert requests.post(f"{url}/api/v1/kernels.KernelsApiService/ListKernels").status_code == 401
            printed = "".join(next(lines) for _ in range(8))
            assert f"submit --home {tmp_path}" in printed
        finally:
            server.send_signal(signal.SIGINT)
    assert server.returncode == 0
    (kaggle,) = config.load(tmp_path).platforms
    assert kaggle.options["endpoint"] == url
    assert kaggle.options["tpu_session_seconds"] == kaggle.options["session_seconds"] == 60
