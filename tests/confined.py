"""Runs a command that can write to one folder only, for tests in which a mistake would cost the machine.

A mount namespace of its own, in which / is read-only. Must never know what the command does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_CONFINE = 'mount --bind "$0" "$0" && mount -o remount,bind,ro / && exec "$@"'
_UNSHARE = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--mount", "--map-root-user")


def run(folder: Path, words: Sequence[str], seconds: float) -> str:
    """Runs `python -m` with these words, and returns what it printed. It may write to this folder only, where
    its temporary files are, too."""
    temporary = folder / "tmp"
    temporary.mkdir()
    done = subprocess.run(
        [*_UNSHARE, "sh", "-c", _CONFINE, str(folder), sys.executable, "-m", *words],
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True, text=True, timeout=seconds, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout
