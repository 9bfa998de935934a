"""The cells of a trial: what a machine is, and how cells run on it. Their results are files in /content.

This file's text is a cell, with a call of `first` or `second` appended. Standard library only. It prints only
the line that says that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import sys
import threading
from importlib import metadata, util
from pathlib import Path

WORD, SEEN, GO, BEAT, ENDED, SECOND = (
    f"trial-{name}" for name in ("word", "seen.json", "go", "beat", "ended", "second.json")
)
BEAT_SECONDS = 0.2


def first(marker: str, seconds_max: float) -> None:
    """Tells what the machine is. Then stays, and beats, until it may go."""
    put(SEEN, json.dumps(seen()))
    say(marker)
    beat = 0
    while not Path(GO).exists() and beat * BEAT_SECONDS < seconds_max:
        beat += 1
        put(BEAT, str(beat))
        pause(1)
    put(ENDED, str(beat))


def second(marker: str) -> None:
    """Tells whether the first cell runs at the same time."""
    before = read(BEAT)
    pause(5)
    put(SECOND, json.dumps({"beside": read(BEAT) != before, "before": read(SEEN) != ""}))
    say(marker)


def seen() -> dict[str, object]:
    """Names and numbers. `word` is what was uploaded."""
    torch = ""
    with contextlib.suppress(metadata.PackageNotFoundError):
        torch = metadata.version("torch")
    can_give_back = False
    with contextlib.suppress(ImportError, ValueError):
        can_give_back = util.find_spec("google.colab.runtime") is not None
    names = ("nvidia*", "accel*", "vfio/*")
    return {
        "word": read(WORD),
        "python": platform.python_version(),
        "torch": torch,
        "system": platform.platform(),
        "processors": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "disk_free_gb": round(shutil.disk_usage(".").free / 1e9, 1),
        "folder": Path.cwd().name,
        "devices": sorted(str(path) for name in names for path in Path("/dev").glob(name)),
        "gives_back": can_give_back,
        "variables": sorted(name for name in os.environ if name.startswith(("COLAB", "TPU"))),
    }


def read(name: str) -> str:
    with contextlib.suppress(OSError):
        return Path(name).read_text()
    return ""


def pause(beats: int) -> None:
    threading.Event().wait(beats * BEAT_SECONDS)


def put(name: str, text: str) -> None:
    draft = Path(f"{name}.part")
    draft.write_text(text)
    draft.rename(name)


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
