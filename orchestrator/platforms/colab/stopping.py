"""Ends sessions on request, and gives their machines back. Must never end what nobody asked to end."""

from __future__ import annotations

import tempfile
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.core.session import StopReply
from orchestrator.errors import Transient
from orchestrator.files import append
from orchestrator.platforms.colab import staging
from orchestrator.platforms.colab.launching import Launcher
from orchestrator.platforms.colab.machine import Machine, look, path_of, small_paths, stop_path
from orchestrator.platforms.colab.memory import Known, Memory
from orchestrator.platforms.colab.options import ColabOptions
from orchestrator.platforms.colab.runner import Cli
from orchestrator.session import saying
from orchestrator.session.layout import OUTBOX, STATUS

_LEAVING = frozenset({"committing", "shipping"})  # states of an agent whose training has left


class Stopper:
    """Stops and discards sessions of one account. Remembers in memory only when a session was asked."""

    def __init__(
        self, name: str, cli: Cli, memory: Memory, launcher: Launcher, options: ColabOptions, folder: Path,
        clock: Clock,
    ) -> None:  # fmt: skip
        self._name = name
        self._cli = cli
        self._memory = memory
        self._launcher = launcher
        self._options = options
        self._folder = folder
        self._clock = clock
        self._since: dict[str, float] = {}  # when a session was first to leave
        self._asked: set[str] = set()  # those whose machines have the file

    def stop(self, name: str) -> StopReply:
        """Asks the agent through a file on its machine. Gives the machine back after the grace period, or at
        once if nothing has started on it. A machine whose session has ended stays: its outbox may be wanted.
        """
        known = self._memory.note(name, stopped=True)  # from now on nothing of this name is launched
        with self._launcher.alone(0.0) as is_alone:
            machine = look(self._cli, name, small_paths(name))
            if machine is None:
                return StopReply.REQUESTED if not is_alone or self._may_appear(known) else StopReply.ENDED
            if machine.left is not None:
                return StopReply.ENDED
            if may_run(machine) and self._may_leave(name, machine):
                self._ask(name)
                return StopReply.REQUESTED
            return StopReply.ENDED if self._cli.stop(name) else StopReply.REQUESTED

    def _ask(self, name: str) -> None:
        """Writes the file once. Raises Transient if the machine does not answer, and goes on with the next
        call."""
        if name in self._asked:
            return
        with tempfile.TemporaryDirectory(prefix="orchestrator-") as folder:
            empty = Path(folder, "stop")
            append(empty, b"")
            self._cli.upload(name, empty, stop_path(name))
        self._asked.add(name)

    def _may_leave(self, name: str, machine: Machine) -> bool:
        """Whether the session may still leave by itself. It may take longer than its grace period if it says
        that it ships what it saved."""
        now = self._clock.monotonic()
        waited = now - self._since.setdefault(name, now)
        if waited < self._options.grace_seconds:
            return True
        status = saying.status(machine.found.files.get(path_of(name, f"{OUTBOX}/{STATUS}")))
        is_leaving = status is not None and status.state in _LEAVING
        return is_leaving and waited < self._options.grace_seconds + self._options.shipping_seconds

    def _may_appear(self, known: Known) -> bool:
        """Whether a machine that was asked for may come although Colab does not show it yet."""
        if known.asked_at is None or known.sent:
            return False
        seconds = self._cli.patience.new + self._options.visibility_seconds
        return 0.0 <= self._clock.now() - known.asked_at < seconds

    def discard(self, name: str) -> None:
        machine = look(self._cli, name)
        if machine is not None and machine.left is None and may_run(machine):
            raise Transient(f"{name} may still be running", backend=self._name, operation="discard")
        self.give_back(name)
        if machine is None and self._may_appear(self._memory.of(name)):
            raise Transient(f"{name} may still get a machine", backend=self._name, operation="discard")
        self.forget(name)

    def forget(self, name: str) -> None:
        """Removes everything of the session from this machine."""
        staging.forget(self._folder, name)
        self._cli.forget(name)
        self._memory.forget(name)
        self._since.pop(name, None)
        self._asked.discard(name)

    def give_back(self, name: str) -> None:
        """Raises Transient until Colab no longer has the session's machine."""
        if not self._cli.stop(name):
            raise Transient(f"Colab still has the machine of {name}", backend=self._name, operation="discard")


def may_run(machine: Machine) -> bool:
    """Whether the session has started, as far as that can be told. What cannot be read may run."""
    return machine.is_started or bool(machine.found.problem)
