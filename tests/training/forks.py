"""Imports a slow library once and forks a process for each run of a script: `forks.py MODULE...`.

Reads one JSON list per line, [folder, script, argument...]. Runs the script in that folder as its own process
and prints its exit code, negative for a signal. The script's output goes to `log` in the folder.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import traceback


def run(folder: str, script: str, *arguments: str) -> None:
    os.chdir(folder)
    log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.argv = [script, *arguments]
    code = 0
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as leaving:
        code = int(leaving.code or 0)
    except BaseException:  # noqa: BLE001 - a fork must never return into its parent's loop
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        order = json.loads(line)
        if (pid := os.fork()) == 0:
            run(*order)
        _, status = os.waitpid(pid, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()
