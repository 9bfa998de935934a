"""Runs Colab's command line: the only module that starts its processes.

Each call is one process in its own group with a time limit, and is killed by its process id. What happened is
read from the answer that errand.py writes, never from an exit code: the command line exits with 0 after many
failures (docs/references/colab.md#exit-codes). Decides what each failure means to the caller; nothing about
sessions of ours.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.platforms.colab.environment import Environment
from orchestrator.platforms.colab.values import Assignment, Reading

FILE_BYTES_MAX = 4 << 20
MARKER = "orchestrator: started {session}"


class Cli:
    """Colab's command line for one account. All calls block; threads may share it.

    Every call raises:
    - AccessDenied: nobody is logged in, the login has expired, or the account is barred. The message has the
      command that helps.
    - Transient: no answer in time, too many requests, or a fault of Colab's.
    - Rejected: this version of the command line is not the one that was expected, or the answer cannot be
      read.
    A session is named by our name for it. Its machine is found again by that name, with or without the files
    on this machine: as `session's machine` in what follows.
    """

    def __init__(self, environment: Environment, *, backend: str = "", clock: Clock | None = None) -> None:
        """`backend` is the platform's name in the user's config, for messages. Starts nothing."""

    def ready(self) -> None:
        """Makes the environment if needed, which takes up to a minute (Environment.ready)."""
        raise NotImplementedError

    def new(self, session: str, accelerator: str, *, high_mem: bool = False) -> Assignment:
        """Gets the session a machine, or returns the one that it already has. `accelerator` is one of
        values.ACCELERATORS. The machine may have another accelerator than the one asked for: compare.

        Raises Refused if Colab has no machine now: too many machines, a usage limit or no capacity, which
        cannot be told apart; QuotaExhausted if it says that the quota or the usage time is spent; Rejected
        if the account may not have this accelerator. After Transient there may be a machine: call again, or
        stop it.
        """
        raise NotImplementedError

    def read(
        self,
        *,
        units: bool = False,
        names: Sequence[str] = (),
        files: Mapping[str, Sequence[str]] | None = None,
        bytes_max: int = FILE_BYTES_MAX,
    ) -> Reading:
        """Reads the account, in one process. `names` are sessions to find the machines of, the keys of
        `files` included. `files` is session → paths on its machine, from the root of its file system, such as
        `content/.orchestrator/x/status.json`; a path that ends in `/` is a folder to list. A file of more
        than `bytes_max` is not read. A machine that does not answer spoils only its own part of the reading.
        """
        raise NotImplementedError

    def upload(self, session: str, source: Path, target: str) -> None:
        """Puts a file on the session's machine, replacing what is there; the target's folder must exist.
        Raises NotFound if the session has no machine, Rejected if the machine refuses the file, for example
        because it is too large (docs/references/colab.md#files)."""
        raise NotImplementedError

    def download(self, session: str, source: str, target: Path, *, bytes_max: int) -> bool:
        """Gets a file from the session's machine, of any size up to `bytes_max`; in memory on both sides.
        `target` appears when it is complete. Returns False if there is no such file. Raises NotFound if the
        session has no machine, Rejected if the file is too large."""
        raise NotImplementedError

    def start(
        self, session: str, cell: Path, *, seconds_max: float, cancelled: threading.Event | None = None
    ) -> None:
        """Runs the cell, a Python file, in the session's machine, until it prints a line that is
        MARKER.format(session=session). Then it goes on by itself: its kernel stays busy, and this process
        ends. The cell is sent once. Raises NotFound if the session has no machine, Rejected if the cell ended
        without that line, with the end of its output; Transient if there was no such line in `seconds_max`:
        the cell may have started all the same, or may start later."""
        raise NotImplementedError

    def stop(self, session: str) -> bool:
        """Gives the session's machine back. Returns True once Colab neither lists it nor has it for the
        session's notebook, also if there was none; False if it is still there: call again."""
        raise NotImplementedError

    def login(self) -> None:
        """Logs in on this terminal: a person opens an address and pastes the code shown there. The new login
        replaces the old one only if Colab accepts it. Raises AccessDenied otherwise."""
        raise NotImplementedError
