"""`python uplink.pyz FOLDER OUTBOX INCARNATION PARENT PACE`: the uplink's process, which the agent starts.

Takes the order, what is to be fetched and what opens the store from standard input, so that no argument,
variable or file holds them while the training runs. Tells the agent one JSON line at a time on standard
output. Decides only what the process may use, which is the lowest priority, one core and a folder for
temporary files, and that its memory gets into no core dump.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from orchestrator.clock import Clock, SystemClock
from orchestrator.core import wire
from orchestrator.core.order import Order
from orchestrator.errors import InputError, OrchestratorError, Rejected, Superseded
from orchestrator.files import guard, make_folder, remove_tree
from orchestrator.session.layout import Layout
from orchestrator.session.outbox import FolderOutbox
from orchestrator.session.words import LACKING, SHIPPED, SUPERSEDED, USELESS, Word
from orchestrator.stores.opening import opened
from orchestrator.stores.portable import Portable
from orchestrator.stores.store import Store
from orchestrator.uplink.driving import Driver
from orchestrator.uplink.fetching import Fetcher
from orchestrator.uplink.latest import Latest
from orchestrator.uplink.pace import Pace, Patience
from orchestrator.uplink.parcel import Parcel
from orchestrator.uplink.registers import registers_of
from orchestrator.uplink.shipping import Uplink

USAGE = "usage: python uplink.pyz FOLDER OUTBOX INCARNATION PARENT PACE  (the agent starts it)\n"
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_WRONG_USAGE, _ORPHANED = 2, 1


def main(arguments: list[str]) -> int:
    """Exit codes: see `orchestrator.session.words`; 1 the agent is gone, 2 wrong usage."""
    if len(arguments) != 5 or not arguments[3].isdecimal():
        sys.stderr.write(USAGE)
        return _WRONG_USAGE
    folder, kept, incarnation, parent, told = arguments
    if not _settle(int(parent)):
        return _ORPHANED
    layout = Layout(guard(Path(folder), resolved=True), guard(Path(kept), resolved=True))  # by the agent
    tell, clock, chance = _teller(), SystemClock(), Random()
    _make_temporary(layout)
    try:
        order = wire.decode(Order, sys.stdin.buffer.readline())
        parcel = _parcel(sys.stdin.buffer.readline().rstrip(b"\n"))
        pace = wire.decode(Pace, told.encode())
        store = patiently_opened(_portable(sys.stdin.buffer.read()), Patience(pace, chance, tell), clock)
    except ImportError as error:
        tell(Word(f"the uplink lacks a package: {error}"))
        return LACKING
    except (*_FINAL, ValueError) as error:
        tell(Word(f"the uplink cannot ship: {error}", trouble=_CANNOT))
        return USELESS
    outbox = FolderOutbox(layout.outbox, links=True)
    scratch = layout.shipping / "outbox"
    latest = Latest(outbox, order, incarnation, scratch)
    uplink = Uplink(store, order, incarnation, latest, scratch, latest.wants)
    fetcher = (
        None if parcel is None else Fetcher(store, order, parcel, layout, Patience(pace, chance, tell), tell)
    )
    try:
        Driver(uplink, latest, pace, clock, chance, tell, fetcher).run()
    except Superseded as superseded:
        tell(Word(str(superseded)))
        return SUPERSEDED
    return SHIPPED


_CANNOT = "the uplink cannot ship, so nothing leaves this session before its end: the session's log says why"


_FINAL = (InputError, Rejected)  # the next try would end in the same way


def _portable(given: bytes) -> Portable:
    """Never repeats what it was given, because that holds a credential."""
    try:
        return wire.decode(Portable, given)
    except ValueError:
        raise ValueError("what opens the store did not arrive whole") from None


def _parcel(given: bytes) -> Parcel | None:
    """None if there is nothing to fetch. Never repeats what it was given, because that may hold a key."""
    try:
        return wire.decode(Parcel, given) if given else None
    except ValueError:
        raise ValueError("what tells the session what to fetch did not arrive whole") from None


def patiently_opened(portable: Portable, patience: Patience, clock: Clock) -> Store:
    """Waits for a store that cannot be opened now. Raises ImportError, and what is final."""
    while True:
        try:
            store = opened(portable)
            registers_of(store)
        except _FINAL:
            raise
        except (OrchestratorError, OSError) as error:
            clock.wait(threading.Event(), patience.after(error))
        else:
            patience.over()
            return store


def _make_temporary(layout: Layout) -> None:
    """Every temporary file is in the session's folder: a process that is killed leaves some, and so the next
    one removes them. On a full disk they are where the system has them."""
    folder = layout.shipping / "temporary"
    with suppress(OSError):
        remove_tree(folder)
        make_folder(folder, 0o700)
        tempfile.tempdir = str(folder)


def _settle(parent: int) -> bool:
    """Gives way to the training, hides its memory, and dies with the agent. False if the agent is gone
    already."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the agent says when it is over
    os.nice(19)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        library.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # before it reads a secret
    return os.getppid() == parent


def _teller() -> Callable[[Word], None]:
    lock = threading.Lock()

    def tell(word: Word) -> None:
        with lock:
            sys.stdout.buffer.write(wire.encode(word) + b"\n")
            sys.stdout.buffer.flush()

    return tell


def leave(arguments: list[str]) -> None:
    """Runs the program and ends the process at once, even in the middle of an upload."""
    match arguments:
        case ["work", *words]:
            from orchestrator.uplink import working  # only for a notebook

            code = working.main(words)
        case ["attend", *words]:
            from orchestrator.uplink import sitting

            code = sitting.attend(words)
        case _:
            code = main(arguments)
    sys.stderr.flush()
    os._exit(code)
