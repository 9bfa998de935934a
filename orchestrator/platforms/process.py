"""Sessions as detached processes of this machine, one folder each.

A session is started at most once. The launcher holds the session's lock, the agent inherits it, and the agent
writes its incarnation. So a controller that is killed at any line starts nothing twice. Must never rely on
state of its own: another controller must see and do the same.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from orchestrator import processes
from orchestrator.clock import Clock
from orchestrator.core.credentials import in_variable
from orchestrator.core.job import Kind
from orchestrator.core.offer import Offer, Traits, Unavailable, machine_id, until_human
from orchestrator.core.order import Order, Outcome, run_of
from orchestrator.core.own_accelerators import NO_OWN, Own, own_named, row_named
from orchestrator.core.session import Sighting, StopReply
from orchestrator.errors import AccessDenied, InputError, NotFound, Rejected, Transient
from orchestrator.files import (
    allow,
    guard,
    is_full,
    lacks_inodes,
    look,
    make_folder,
    open_file,
    read_small,
    remove_tree,
    sweep,
    write_whole,
)
from orchestrator.interpreters import Interpreter
from orchestrator.platforms import environments
from orchestrator.platforms.platform import Finding, Health, Leftover, Sight
from orchestrator.platforms.process_gpus import VISIBLE, MachineGpus, variables_for
from orchestrator.platforms.process_options import ProcessOptions
from orchestrator.pythons import NoPython, entered
from orchestrator.pythons.choosing import chosen
from orchestrator.session.folder import SessionFolder
from orchestrator.session.layout import PROGRAMS, SESSION
from orchestrator.session.outbox import FolderOutbox
from orchestrator.session.staging import Materials

_LOCK_FD = 3
_APPENDING = os.O_WRONLY | os.O_CREAT | os.O_APPEND
_MACHINE_ID = Path("/etc/machine-id")  # machine-id(5): not to be given away as it is
_IDENTITY_CHARS = 16
_PID_LIMIT = 1 << 22  # the kernel's maximum
# The shell writes its pid, then becomes the agent. So the pid is recorded before the agent exists.
# Its standard input is the open file for the pid: by name, the shell would follow a link.
_START = 'cd -- "$1" && echo $$ >&0 && exec "$0" "$1/agent.pyz" "$1" --settings "$2" </dev/null'
_NOT_LINUX = Unavailable(
    "processes of this machine need Linux", until_human("use Docker: a platform of type docker")
)
_PASSED = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "SHELL", "TMPDIR", "TZ", "USER")
_PASSED_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "LD_LIBRARY_", "CONDA_", "OMP_", "MKL_", "SSL_CERT_")


# What pip and uv read, for the agent's installation only. It strips the prefix; the training gets none of it.
_INSTALL = "ORCHESTRATOR_INSTALL_"
_FOR_INSTALLERS = re.compile(
    r"(?i:(?:http|https|all|no)_proxy)|PIP_\w+|NETRC|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|UV_(?:DEFAULT_INDEX|INDEX|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|INSECURE_HOST|NATIVE_TLS|OFFLINE)"
)
ENVIRONMENTS = "environments"  # in the platform's folder: the agent's, of jobs' requirements


class ProcessPlatform:
    """The process platform `name`. `folder` is its own, with one folder per session."""

    def __init__(self, name: str, options: ProcessOptions, folder: Path, clock: Clock) -> None:
        self._name = name
        self._options = options
        self._folder = guard(folder)
        self._clock = clock
        self._children: set[int] = set()
        self._children_lock = threading.Lock()
        self._asked_at: dict[tuple[str, str], float] = {}
        self._accelerators: Own = NO_OWN
        gpus = options.gpus
        self._gpus = None if gpus is None else MachineGpus(
            gpus, options.accelerator, clock, seconds=options.nvidia_smi_seconds
        )  # fmt: skip
        self._ended: set[str] = set()  # ended sessions of which no process is left
        self._pythons: dict[str, Interpreter] = {}  # those that were asked when a session was prepared

    @property
    def name(self) -> str:
        return self._name

    def equip(self, own: Own) -> None:
        self._accelerators = own
        mine = own_named(self._options.accelerator, own)
        if self._gpus is not None:
            if mine is not None and mine.arch == "cpu":
                raise InputError(
                    f"platform {self._name!r} (process): gpus needs a GPU, and {mine.name} has arch cpu"
                )
            self._gpus.own = own

    @cached_property
    def _machine(self) -> str:
        """Sessions are found by their folders. Another home has others, and another machine runs none."""
        system = _text(_MACHINE_ID) or ""
        identity = hashlib.sha256(f"{system}\n{self._folder}".encode()).hexdigest()
        return machine_id(identity[:_IDENTITY_CHARS], socket.gethostname())

    def survey(self) -> tuple[Offer, ...]:
        options = self._options
        if platform.system() != "Linux":
            return (Offer(self._name, options.accelerator, options.traits(internet=options.internet),
                          unavailable=_NOT_LINUX),)  # fmt: skip
        traits = replace(options.traits(internet=options.internet, machine=self._machine), own_python=True)
        if self._gpus is not None:
            return (self._gpu_offer(self._gpus, traits),)
        memory_gb = _host_memory_gb() if options.memory_gb is None else options.memory_gb
        offer = Offer(
            platform=self._name,
            accelerator=options.accelerator,
            traits=traits,
            slots=options.slots,
            memory_gb=memory_gb,
            limit_memory=options.memory_gb is not None,
            threads=options.threads or max(1, len(os.sched_getaffinity(0)) // options.slots),
            own=own_named(options.accelerator, self._accelerators),
            disk_gb=float(int(_disk_free_gb(self._folder))),  # rounded: every change wakes the queue
        )
        return (offer,)

    def _gpu_offer(self, gpus: MachineGpus, traits: Traits) -> Offer:
        options = self._options
        free, usable = gpus.slots(self._folder)
        most = options.slots if "slots" in options.model_fields_set else len(usable.gpus)
        slots = min(free, most)
        # Not by the GPUs that are free now: each session of a run needs the same number to resume bitwise.
        sharing = max(1, min(len(usable.gpus) // gpus.devices, most))
        return Offer(
            platform=self._name,
            accelerator=options.accelerator,
            traits=traits,
            slots=max(1, slots),
            memory_gb=min((each.memory_gb for each in usable.gpus), default=None),
            threads=options.threads or max(1, len(os.sched_getaffinity(0)) // sharing),
            disk_gb=float(int(_disk_free_gb(self._folder))),
            unavailable=gpus.lack(usable, slots, self._name),
            own=own_named(options.accelerator, self._accelerators),
        )

    def prepare(self, order: Order, materials: Materials) -> None:
        self._options.check(order, self._name)
        session = SessionFolder.of(self._folder, order.session)
        self._pythons[order.session] = self._python(order, "prepare")
        session.stage(order, materials)

    def launch(self, order: Order) -> None:
        self._options.check(order, self._name)
        session = SessionFolder.of(self._folder, order.session)
        if session.incarnation is not None:
            return
        with session.locked(self._clock) as lock:
            if lock is None or session.incarnation is not None:
                return  # an agent runs, or another launcher is about to start one
            if session.stopped:
                raise Rejected(f"{order.session} was stopped before it was launched")
            if session.ordered() != order:
                raise Rejected(f"{order.session} is not prepared for this order")
            if is_full(session.root):  # an agent would die without a word
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(session.root))
            python = self._pythons.pop(order.session, None) or self._python(order, "launch")
            told = json.loads(self._options.agent_settings(order)) | {
                "python": python.path,
                "requirements": True,
                "environments": str(self._folder / ENVIRONMENTS),
                "uv": _uv(),
            }
            settings = json.dumps(told)
            if self._gpus is None:
                self._spawn(session, lock, settings, python, (), self._hidden())
                return
            with self._gpus.taken(order.devices, session.root) as (gpus, locks):
                self._spawn(session, lock, settings, python, locks, variables_for(gpus))

    def _python(self, order: Order, operation: str) -> Interpreter:
        """The interpreter of the training. Raises AccessDenied if it is gone: a person must act."""
        try:
            return chosen(order.python, self._options.python, os.environ)[0]
        except NoPython as error:
            raise AccessDenied(str(error), backend=self._name, operation=operation) from error

    def checkup(self) -> tuple[Finding, ...]:
        """The Python that a job without one of its own would get, if it were submitted here and now."""
        try:
            found, why = chosen(None, self._options.python, os.environ)
        except NoPython as error:
            return (Finding("python", Health.MISSING, str(error), "install Python, or name one as `python`"),)
        torch = f"torch {found.torch}" if found.torch else "no torch"
        return (Finding("python", Health.OK, f"{found.version_text}, {torch} ({found.path}; {why})"),)

    def _hidden(self) -> dict[str, str]:
        """Variables for a session on the CPU: it sees no GPU, because another session may hold it,
        unless the user has chosen some for the controller."""
        row = row_named(self._options.accelerator, self._accelerators)
        hides = row is not None and row.kind is Kind.CPU and VISIBLE not in os.environ
        return variables_for(()) if hides else {}

    def _spawn(
        self,
        session: SessionFolder,
        lock: int,
        settings: str,
        python: Interpreter,
        gpu_locks: tuple[int, ...],
        more: dict[str, str],
    ) -> None:
        root = session.root
        remove_tree(root / "agent.pid")
        _leave(session, "launched", repr(self._clock.elapsed()))
        streams = [open_file(root / name, _APPENDING) for name in ("agent.pid", "agent.out", "agent.out")]
        kept = (lock, *gpu_locks, *streams)
        try:
            pid = os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", _START, sys.executable, str(root), settings],
                self._environment(session, python) | more,
                setsid=True,
                file_actions=[*processes.kept(kept, _LOCK_FD, streams=len(streams))],
            )
        finally:
            for stream in streams:
                os.close(stream)
        with self._children_lock:
            self._children.add(pid)

    def _environment(self, session: SessionFolder, python: Interpreter) -> dict[str, str]:
        """The agent's environment: the controller's, without credentials, in the training's own environment.
        The agent itself is run by our interpreter, which PATH does not name. It includes the session's mark,
        so that its processes can be found even after agent and guardian have died."""
        environment = {
            key: value
            for key, value in os.environ.items()
            if (key in _PASSED or key.startswith(_PASSED_PREFIXES)) and not in_variable(key, value)
        }
        environment |= {key: os.environ[key] for key in self._options.pass_env if key in os.environ}
        environment.setdefault("PATH", os.environ.get("PATH", os.defpath))
        environment = entered(python, environment, session.root / PROGRAMS)
        environment |= {
            f"{_INSTALL}{name}": value
            for name, value in os.environ.items()
            if _FOR_INSTALLERS.fullmatch(name)
        }
        environment["ORCHESTRATOR_LOCK_FD"] = str(_LOCK_FD)
        environment[processes.SESSION] = str(session.root)
        return environment

    def observe(self, names: Iterable[str]) -> Mapping[str, Sight]:
        self._reap()
        return {name: self._sight(name) for name in names}

    def _sight(self, name: str) -> Sight:
        session = self._own(name)
        if session is None:
            return Sight(Sighting.ABSENT)
        try:
            return self._looked(name, session)
        except (OSError, ValueError) as error:  # one unreadable session must not hide the others
            return Sight(Sighting.RUNNING, detail=f"it cannot be read: {error}")

    def _looked(self, name: str, session: SessionFolder) -> Sight:
        sighting = session.sighting()
        if sighting is Sighting.ABSENT:
            return Sight(sighting)
        outbox = FolderOutbox(session.outbox)
        if sighting is Sighting.ENDED:
            if name not in self._ended and not session.alive():
                _end_rest(session)
                if lacks_inodes(session.root):  # its agent was killed, else it had made room itself
                    remove_tree(session.work)
                self._ended.add(name)
            why = _text(session.root / "killed") or "the agent died"
            return Sight(sighting, outbox, ending=Outcome.LOST, detail=why)
        limit = self._options.session_seconds
        if limit is not None:
            age = self._age(session, "launched")
            if age > limit + self._options.slack_seconds:
                _kill(
                    session, f"killed: still running {age:.0f} s after its start; the limit is {limit:.0f} s"
                )
        return Sight(sighting, outbox)

    def _own(self, name: str) -> SessionFolder | None:
        """The session's folder, if this platform staged it."""
        try:
            session = SessionFolder.of(self._folder, name)
        except Rejected:
            return None
        try:
            order = session.ordered()
        except ValueError:
            return session  # its own training damaged the order; it must still be stopped
        return session if order is not None and order.platform == self._name else None

    def _is_foreign(self, session: SessionFolder) -> bool:
        """Whether another platform staged it. An unreadable order counts as ours, because the folder is."""
        try:
            order = session.ordered()
        except (ValueError, OSError):
            return False
        return order is not None and order.platform != self._name

    def _age(self, session: SessionFolder, note: str) -> float:
        """Seconds since the time in one of our notes in the session's folder. At least the time since this
        controller first asked, because the session can change the note."""
        now = self._clock.elapsed()
        asked_at = self._asked_at.setdefault((session.root.name, note), now)
        try:
            return max(now - asked_at, now - float(_text(session.root / note) or "nothing"))
        except ValueError:
            return now - asked_at

    def _reap(self) -> None:
        with self._children_lock:
            for pid in tuple(self._children):
                try:
                    ended, _ = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    ended = pid
                if ended:
                    self._children.discard(pid)

    def open(self, name: str) -> FolderOutbox:
        session = self._own(name)
        with suppress(OSError):  # it lies behind a link
            if session is not None and look(session.outbox) is not None:
                return FolderOutbox(session.outbox)
        raise NotFound(f"no outbox of {name}", backend=self._name, operation="collect")

    def stop(self, name: str) -> StopReply:
        session = SessionFolder.of(self._folder, name)
        if self._is_foreign(session):
            return StopReply.ENDED  # we have no session of this name
        if not session.reclaim():
            _end_rest(session)
            return StopReply.ENDED
        make_folder(session.root, 0o700)  # so that it is not staged later
        first = not session.stopped
        if first:
            _leave(session, "stop", repr(self._clock.elapsed()))
        with session.locked(self._clock) as lock:
            if lock is not None:
                _end_rest(session)
                return StopReply.ENDED
        waited = self._age(session, "stop")
        if waited > self._options.grace_seconds:
            _kill(session, f"killed: still running {waited:.0f} s after it was asked to stop")
        elif first and session.incarnation is not None:
            _signal(session, signal.SIGTERM)  # earlier, the agent cannot handle it; the file is enough
        return StopReply.REQUESTED

    def discard(self, name: str) -> None:
        session = SessionFolder.of(self._folder, name)
        if not session.reclaim() or look(session.root) is None:
            _end_rest(session)  # it may have removed its own folder
            return
        if self._is_foreign(session):
            return
        with session.locked(self._clock) as lock:
            if lock is None:
                raise Transient(f"{name} is still running", backend=self._name, operation="discard")
            _end_rest(session)
            session.remove()
        self._ended.discard(name)
        self._asked_at = {key: at for key, at in self._asked_at.items() if key[0] != name}
        self._reap()

    def leftovers(self) -> tuple[Leftover, ...]:
        paths = sorted(self._folder.iterdir()) if self._folder.is_dir() else []
        there = (self._own(path.name) for path in paths if path.is_dir() and not path.is_symlink())
        sessions = (_leftover(session) for session in there if session is not None)
        return (*sessions, *environments.unused(self._folder / ENVIRONMENTS, self._clock.now()))

    def remove(self, leftover: Leftover) -> None:
        if leftover.kind == environments.KIND:
            environments.remove(self._folder / ENVIRONMENTS, leftover.name, self._name)
            return
        session = self._own(leftover.name)
        if session is not None and leftover.alive and session.alive():
            _kill(session, "killed: no run needs it any more")
        self.discard(leftover.name)  # Transient until it has died

    def tidy(self) -> None:
        """Kills processes of sessions whose lock nobody holds, because nothing may outlive its agent and
        guardian. Removes drafts of sessions that were being staged or removed."""
        for root in processes.values(processes.SESSION, f"{self._folder}{os.sep}"):
            if Path(root).parent == self._folder and SESSION.fullmatch(Path(root).name):
                session = SessionFolder(Path(root))
                if not session.alive():
                    _end_rest(session)
        if self._folder.is_dir():
            sweep(self._folder)


def _uv() -> str | None:
    from uv import find_uv_bin

    try:
        return str(find_uv_bin())
    except OSError:
        return None


def _leftover(session: SessionFolder) -> Leftover:
    name, alive = session.root.name, session.alive()
    state = "running" if alive else "never started" if session.incarnation is None else "ended"
    return Leftover("session folder", name, name, run_of(name), state, alive)


def _kill(session: SessionFolder, reason: str) -> None:
    """Kills everything of the session at once. Leaves the reason where observe finds it."""
    again = _text(session.root / "killed") is not None
    with suppress(OSError):  # a session whose folder cannot be written is killed as well
        _leave(session, "killed", reason)
    found = _end_rest(session)
    _signal(session, signal.SIGKILL)  # an agent started by an earlier version has no mark
    if again and not found:
        session.break_lock()


def _end_rest(session: SessionFolder) -> bool:
    """Kills every process of the session, even those not started by its agent. Returns whether there were
    any."""
    return processes.end(f"{processes.SESSION}={session.root}", sessions=True)


def _leave(session: SessionFolder, name: str, text: str) -> None:
    """Writes one of our notes to the session's folder, replacing whatever the session put there."""
    try:
        write_whole(session.root / name, text.encode())
    except (IsADirectoryError, PermissionError):
        allow(session.root)
        remove_tree(session.root / name)
        write_whole(session.root / name, text.encode())


def _signal(session: SessionFolder, number: signal.Signals) -> None:
    """Signals the agent; SIGKILL goes to its whole group. Does nothing if its pid was reused."""
    text = _text(session.root / "agent.pid") or ""
    if not text.isascii() or not text.isdecimal() or len(text) > 9 or not 1 < int(text) < _PID_LIMIT:
        return
    pid = int(text)
    try:
        held = os.pidfd_open(pid)  # from here on, the descriptor means one process only
    except OSError:
        return
    try:
        command = Path(f"/proc/{pid}/cmdline")
        if not session.alive() or str(session.root).encode() not in command.read_bytes().split(b"\0"):
            return
        if number is signal.SIGKILL:
            os.killpg(pid, number)
        else:
            signal.pidfd_send_signal(held, number)
    except (ProcessLookupError, FileNotFoundError):
        return
    finally:
        os.close(held)


def _text(path: Path) -> str | None:
    data = read_small(path)
    return None if data is None else data.decode(errors="replace").strip()


def _host_memory_gb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9


def _disk_free_gb(folder: Path) -> float:
    """Free space on the disk where the folder is or will be."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free / 1e9
