"""One run as a person or a program uses it: questions, wishes, its output and its checkpoints.

Each method reads anew; this class remembers only the run's name. Imports lazily, so that a question to the
ledger loads neither the config nor any platform.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.client.run_curves import RunCurves
from orchestrator.client.run_outputs import RunOutputs
from orchestrator.core.lifecycle import Wish
from orchestrator.errors import BackendError

if TYPE_CHECKING:
    from orchestrator.client.checkpoints import Checkpoint
    from orchestrator.client.client import Client
    from orchestrator.client.logs import LogLine
    from orchestrator.client.looking import Look
    from orchestrator.client.moving import Copied, Move
    from orchestrator.client.pulling import Progressed, Pulled, Wanted
    from orchestrator.client.retrying import Retried
    from orchestrator.client.routing import Routing
    from orchestrator.client.sessions import SessionSummary
    from orchestrator.client.status import RunStatus
    from orchestrator.client.wishing import WishAnswer
    from orchestrator.core.run import RunRecord
    from orchestrator.ledger import Stored
    from orchestrator.stores.store import Store

ALONE_SECONDS_MAX = 60.0


class Run:
    """A run of this client; `client.run(name)` finds one.

    Every method may raise BackendError if the ledger cannot be read or written, or if this version cannot
    read the run's record in it.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.outputs = RunOutputs(client, self._stored)
        self.curves = RunCurves(client, name)

    def __repr__(self) -> str:
        return f"<Run {self.name}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and (self.name, self._home) == (other.name, other._home)

    def __hash__(self) -> int:
        return hash((self.name, self._home))

    def _stored(self) -> tuple[RunRecord, Store]:
        record = self.record()
        return record, self.client.wired().store(record.store)

    @property
    def _home(self) -> Path:
        return self.client.home.path

    # --- What it is doing -------------------------------------------------------------------------------

    def status(self) -> RunStatus:
        """Its present status."""
        from orchestrator.client.status import status

        return status(self.client, self.name)

    def watch(self) -> Iterator[RunStatus]:
        """Yields its status now and after each change, until it rests: done, failed, cancelled, or held until
        a person acts. Waits in between.

        Raises BackendError after a minute without a controller, because nothing would ever change.
        """
        told: RunStatus | None = None
        for _ in self._looks():
            status = self.status()
            if status != told:
                told = status
                yield status

    def wait(self, timeout: float | None = None) -> RunStatus:
        """Waits until the run rests, and returns its status: its `phase` is done, failed, cancelled or held.

        Raises TimeoutError if it does not rest within `timeout` seconds, and BackendError like `watch`.
        """
        clock = self.client.clock
        end = math.inf if timeout is None else clock.monotonic() + timeout
        for look in self._looks():
            if not look.rests and look.monotonic >= end:
                raise TimeoutError(f"{self.name} is {look.record.standing.value} after {timeout:g} s")
        return self.status()

    def _looks(self) -> Iterator[Look]:
        from orchestrator.client.looking import looks

        with self.client:
            for look in looks(self.client, self.name):
                if not look.rests and look.alone_seconds > ALONE_SECONDS_MAX:
                    raise BackendError(
                        "no controller is running, so nothing is decided; start one with "
                        "`orchestrator up --detach`",
                        backend="controller",
                    )
                yield look

    def record(self) -> RunRecord:
        """Everything that the controller knows about it."""
        with self.client.ledgers.runs() as ledger:
            return ledger.record(self.name)

    def history(self) -> tuple[Stored, ...]:
        """Its events in order, each with the inputs of its decision."""
        with self.client.ledgers.runs() as ledger:
            return ledger.history(self.name)

    def sessions(self) -> tuple[SessionSummary, ...]:
        """Its sessions in order, the present one last."""
        from orchestrator.client.sessions import sessions

        return sessions(stored.event for stored in self.history())

    def route(self) -> Routing:
        """Where it was sent, and, if it waits for a place to run, where it would go now.

        For a waiting run it asks every platform, which takes up to 30 seconds, and raises SpecError for a
        wrong config.
        """
        from orchestrator.client.routing import routing

        return routing(self.client, self.name)

    # --- Wishes -----------------------------------------------------------------------------------------

    def cancel(self, *, discard: bool = False) -> WishAnswer:
        """Asks to end the run; its checkpoints stay. Starts a controller to do it, unless one runs.

        If that would lose a session's work, it raises WorkWouldBeLost unless `discard` is True. A run that is
        over does not change.
        """
        return self._wish(Wish.CANCEL, discard=discard)

    def hold(self, *, discard: bool = False) -> WishAnswer:
        """Asks the session to save and leave, and the run to wait for `release`. Otherwise like `cancel`.

        Raises InputError for a run that is over or being cancelled.
        """
        return self._wish(Wish.HOLD, discard=discard)

    def release(self, *, discard: bool = False) -> WishAnswer:
        """Asks to continue a held run, or one that failed because its platform lost its sessions. Takes back
        a hold that is not done yet.

        A run may be held because what its last session left does not appear. With `discard`, the run goes on
        without it. Raises InputError for a run that is over or being cancelled, and for a `discard` without
        such a session.
        """
        return self._wish(Wish.RELEASE, discard=discard)

    def retry(
        self,
        job: str | os.PathLike[str] | None = None,
        *,
        source: str | os.PathLike[str] | None = None,
    ) -> Retried:
        """Lets a run that failed or is held go on from its newest checkpoint, with its job as it is, as a
        fixed file declares it, or with the code of another `source` folder. Starts a controller if none runs.

        Raises InputError if it does not rest, and if the fix would change the mathematics: the global batch,
        the seed, the groups; and the same errors as `Client.submit`.
        """
        from orchestrator.client import retrying

        return retrying.retry(self.client, self.name, job, source)

    def _wish(self, wish: Wish, *, discard: bool) -> WishAnswer:
        from orchestrator.client import wishing

        return wishing.wish(self.client, self.name, wish, discard=discard)

    # --- What it leaves ---------------------------------------------------------------------------------

    def logs(self, *, follow: bool = False, tail: int | None = None) -> Iterator[LogLine]:
        """The lines that its sessions wrote, in one stream; with `tail`, only so many of the newest. With
        `follow` it waits for more until the run rests. Contains only what the controller has collected;
        some platforms give their logs at the end."""
        from orchestrator.client.logs import chunks, lines

        return lines(chunks(self.client, self.name, follow=follow, tail=tail))

    def checkpoints(self, *, verify: bool = False) -> tuple[Checkpoint, ...]:
        """Its accepted checkpoints, oldest first. `verify`: read every byte in the home store.

        If one cannot be used, its `trouble` says why. Raises SpecError for a wrong config, InputError if the
        config no longer has the run's home store, BackendError if the store does not answer.
        """
        from orchestrator.client.checkpoints import checkpoints

        record = self.record()
        return checkpoints(self.client.wired().store(record.store), record, verify=verify)

    def pull(
        self,
        target: str | os.PathLike[str] | None = None,
        *,
        step: Wanted = "latest",
        progress: Progressed | None = None,
    ) -> Pulled:
        """Copies a checkpoint into the folder `target`, by default `<run>-step-<step>` here. The folder must
        not exist yet, or hold exactly this checkpoint. Every byte is verified before the folder appears.

        `step`: a number, "best" (by the job's own metric), or "latest" (the newest intact one). `progress` is
        called from another thread with the bytes copied so far and the total. Raises InputError if there is
        no such checkpoint, or if the target holds something else or cannot be created, CorruptCheckpoint if
        none is intact, and the same errors as `checkpoints`.
        """
        from orchestrator.client import pulled, pulling

        record = self.record()
        wanted = pulling.wanted(record, step)
        store = self.client.wired().store(record.store)
        folder = Path(target) if target is not None else None
        found = pulling.bring(store, record, wanted, folder, self.client.clock, progress)
        pulled.remember(self.client.home.folders, found.folder)
        return found

    def copy(self, to: str, *, delete_source: bool = False, progress: Copied | None = None) -> Move:
        """Copies its accepted checkpoints to the store `to`, which becomes its home store once every byte was
        verified there. The old copy stays, unless `delete_source`. Interrupted, it continues the next time.

        `progress` is called with a checkpoint's name, its number and how many there are. Raises InputError
        for an unknown store or if the run has a session, CorruptCheckpoint if its newest one is damaged,
        Transient if the run changed meanwhile, and BackendError if a store does not answer.
        """
        from orchestrator.client import moving

        return moving.move(self.client, self.name, to, delete_source=delete_source, progress=progress)
