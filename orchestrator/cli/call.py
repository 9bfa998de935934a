"""One call of the command line: its options, its home and its output, and what its exit codes mean."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from orchestrator.cli.output import Output
from orchestrator.client import Client
from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.errors import OrchestratorError, Remedy, remedy
from orchestrator.files.room import NO_ROOM, is_full, shortage

FULL = NO_ROOM


class Exit(IntEnum):
    OK = 0
    FAILED = 1  # the run failed
    INPUT = 2  # the user must edit something
    HUMAN = 3  # a human must act
    UNAVAILABLE = 4  # a platform, store or ledger is unavailable
    BUG = 70
    INTERRUPTED = 130  # Ctrl-C
    PIPE = 141  # the reader of our output is gone


EXITS = {
    Remedy.NONE: Exit.OK,
    Remedy.EDIT: Exit.INPUT,
    Remedy.ACT: Exit.HUMAN,
    Remedy.RETRY: Exit.UNAVAILABLE,
}


@dataclass(frozen=True)
class Call:
    options: argparse.Namespace
    client: Client
    out: Output

    @property
    def home(self) -> Home:
        return self.client.home

    @property
    def clock(self) -> Clock:
        return self.client.clock

    def command(self, *words: str) -> str:
        """One of our commands as this user would type it here."""
        home = ("--home", self.home.given) if self.home.given else ()
        return shlex.join((_program(), *words[:1], *home, *words[1:]))


def _program() -> str:
    """`orchestrator`, or its path if the shell would not find it."""
    found = shutil.which("orchestrator")
    own = Path(sys.argv[0]).absolute().with_name("orchestrator")
    if not own.exists() or (found is not None and Path(found).resolve() == own.resolve()):
        return "orchestrator"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)


def exit_code(error: OrchestratorError | OSError) -> Exit:
    """The exit code that tells the caller what to do next."""
    return EXITS[remedy(error)]


def worst(remedies: Iterable[Remedy]) -> Exit:
    """The exit code for all of them: a human's task comes first, then an edit, then a retry."""
    found = {EXITS[each] for each in remedies}
    return next((code for code in (Exit.HUMAN, Exit.INPUT, Exit.UNAVAILABLE) if code in found), Exit.OK)


def holders(home: Path | None) -> Iterator[Path]:
    """The folders of sessions and of runs in a home: what may have filled its disk."""
    return iter(()) if home is None else home.glob("*/*/*")


def os_error_text(error: OSError, home: Path | None = None) -> str:
    """An error of this machine's own files in words, with what to do next. A write that failed names no file:
    then it is the disk of the `home` if that is full."""
    what = error.strerror or str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
    if error.errno in FULL:
        near = Path(os.fsdecode(error.filename)) if where else home if home and is_full(home) else None
        what, do = ("the disk is full", "free some space") if near is None else shortage(near, *holders(home))
        return (
            f"{what}{where}: nothing is lost; {do} and try again (`orchestrator rm` removes runs that are "
            "over, `orchestrator prune` shows what is no longer needed)"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}{where}: make it writable, or set ORCHESTRATOR_HOME (or --home) to a writable folder"
    return f"{what}{where}"
