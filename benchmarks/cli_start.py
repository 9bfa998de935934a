"""How fast the command line starts: `orchestrator --version` and `ps` against `kaggle --version`.

    python -m benchmarks.cli_start [--json] [--runs 15]

Runs whole processes in turn (A B C A B C …), after one warm-up each. Prints the medians of the wall seconds,
and of the ratios in each round. The real `kaggle` client is installed into a temporary venv if it is missing.
With `--version` it neither reads credentials nor uses the network. `ps` lists a ledger of 20 runs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

from benchmarks.tick import job
from orchestrator.core.event import Submitted
from orchestrator.ledger import Ledger

RUNS = 20  # listed by `ps`
KAGGLE = ("kaggle==2.2.5", "six")  # kaggle imports six without declaring it


def kaggle_command(folder: Path) -> list[str]:
    """The command of the real client, in an environment with no other packages."""
    venv.create(folder / "kaggle", with_pip=True)
    binaries = folder / "kaggle" / "bin"
    subprocess.run([binaries / "pip", "install", "-q", *KAGGLE], check=True)
    return [str(binaries / "kaggle"), "--version"]


def seconds(command: list[str], environment: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def measure(runs: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        ours = str(Path(sys.executable).parent / "orchestrator")
        commands = {
            "version": [ours, "--version"],
            "ps": [ours, "ps"],
            "kaggle": kaggle_command(folder),
        }
        home = folder / "home"
        home.mkdir()
        with Ledger.open(f"sqlite:///{home / 'ledger.sqlite'}") as ledger:
            for number in range(RUNS):
                ledger.submit(Submitted(f"job-{number:08d}", job(number), float(number)), due_at=None)
        environment = {"PATH": os.environ["PATH"], "HOME": temporary, "ORCHESTRATOR_HOME": str(home)}
        for command in commands.values():
            seconds(command, environment)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(runs):
            for name, command in commands.items():
                taken[name].append(seconds(command, environment))
    figures = {f"{name}_seconds": statistics.median(values) for name, values in taken.items()}
    for name in ("version", "ps"):
        ratios = [a / b for a, b in zip(taken[name], taken["kaggle"], strict=True)]
        figures[f"{name}_over_kaggle_version"] = statistics.median(ratios)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--runs", type=int, default=15)
    options = parser.parse_args()
    figures = measure(options.runs)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value:8.3f}")


if __name__ == "__main__":
    main()
