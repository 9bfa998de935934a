"""`orchestrator complete KIND [--home DIR]`: what the completion scripts call while a person types.

Prints names, one a line. On any error, and after two seconds, it ends without a word, because its output is
in the middle of somebody's command line. In no help, because nobody types it.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType

SECONDS_MAX = 2.0
_SAFE = re.compile(r"[A-Za-z0-9][\w.@:+-]*")  # a shell must be able to take it as it is


def print_names(words: Sequence[str]) -> int:
    """Prints the names of this kind. Always returns 0."""
    signal.signal(signal.SIGALRM, _leave)
    signal.setitimer(signal.ITIMER_REAL, SECONDS_MAX)
    try:
        from orchestrator.client.glancing import names
        from orchestrator.client.home import Home

        kind, *more = words
        home = Home.of(more[1] if more[:1] == ["--home"] else None)
        every = _words_of_help() if kind == "topics" else names(home, kind)
        found = [each for each in every if _SAFE.fullmatch(each)]
        sys.stdout.write("".join(f"{each}\n" for each in found))
        sys.stdout.flush()
    except Exception:  # noqa: BLE001 - an error here would be printed into the line that is typed
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0


def _words_of_help() -> list[str]:
    from orchestrator.cli.arguments import COMMANDS
    from orchestrator.client import pages

    return [*dict.fromkeys((pages.LIST, *(each.name for each in COMMANDS), *pages.topics()))]


def _leave(_signal: int, _frame: FrameType | None) -> None:
    os._exit(0)
