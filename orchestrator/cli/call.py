"""One call of the command line: its options, the home, where it prints; and what its exit code means."""

from __future__ import annotations

import argparse
import errno
import os
import shlex
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from orchestrator.cli.output import Output
from orchestrator.client import Client
from orchestrator.client.home import Home
from orchestrator.clock import Clock
from orchestrator.errors import OrchestratorError, Remedy, remedy

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class Exit(IntEnum):
    OK = 0
    FAILED = 1  # the run did
    INPUT = 2  # the user edits something
    HUMAN = 3  # a human must act
    UNAVAILABLE = 4  # a platform, store or ledger
    BUG = 70
    INTERRUPTED = 130  # Ctrl-C
    PIPE = 141  # who read our output has left


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
        """A command of ours as this user would type it here."""
        home = ("--home", self.home.given) if self.home.given else ()
        return shlex.join((_program(), *words[:1], *home, *words[1:]))


def _program() -> str:
    """`orchestrator`, or the way to it where the shell would not find it."""
    found = shutil.which("orchestrator")
    own = Path(sys.argv[0]).absolute().with_name("orchestrator")
    if not own.exists() or (found is not None and Path(found).resolve() == own.resolve()):
        return "orchestrator"
    here = Path.cwd()
    return str(own.relative_to(here)) if own.is_relative_to(here) else str(own)


def exit_code(error: OrchestratorError | OSError) -> Exit:
    """By what the caller does next."""
    return EXITS[remedy(error)]


def worst(remedies: Iterable[Remedy]) -> Exit:
    """The exit code for all of it: first what a person must do, then what is to be edited."""
    found = {EXITS[each] for each in remedies}
    return next((code for code in (Exit.HUMAN, Exit.INPUT, Exit.UNAVAILABLE) if code in found), Exit.OK)


def os_error_text(error: OSError) -> str:
    """A fault of this machine's own files, in words, with the next thing to do."""
    what = error.strerror or str(error)
    where = f" ({os.fsdecode(error.filename)})" if isinstance(error.filename, str | bytes) else ""
    if error.errno in FULL:
        return (
            f"the disk is full{where}: nothing is lost; free some space and try again (`orchestrator prune` "
            "shows what nothing needs any more)"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}{where}: make it writable, or set ORCHESTRATOR_HOME (or --home) to a folder that is"
    return f"{what}{where}"
