"""What is read on a session's machine, and where it lies there. Starts and changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from orchestrator.core import bounds
from orchestrator.errors import NotFound, Transient
from orchestrator.files import Odd
from orchestrator.platforms.colab.boot import FOLDER, LEFT, STARTED
from orchestrator.platforms.colab.runner import Cli
from orchestrator.platforms.colab.values import Assignment, Entry, Found, Reading
from orchestrator.session.layout import OUTBOX, STOP, WHOLE

ROOT = "content"  # where kernels work, from the root that Jupyter shows (docs/references/colab.md#files)


def archive_name(session: str) -> str:
    """The file with what the session needs, in ROOT until the session starts."""
    return f"{FOLDER}-{session}.tar"


def path_of(session: str, name: str) -> str:
    """A file of the session's folder."""
    return f"{ROOT}/{FOLDER}/{session}/{name}"


def stop_path(session: str) -> str:
    """The file that asks the session's agent to save and leave, wherever it is."""
    return path_of(session, STOP)


def state_paths(session: str) -> tuple[str, ...]:
    return tuple(path_of(session, each) for each in (STARTED, LEFT))


def small_paths(session: str) -> tuple[str, ...]:
    """What one look at a session reads."""
    return (*state_paths(session), *(path_of(session, f"{OUTBOX}/{name}") for name in WHOLE))


@dataclass(frozen=True)
class Left:
    """How the agent ended: its exit code, or why it could not be started."""

    code: int | None
    why: str

    @property
    def text(self) -> str:
        if self.why:
            return f"its agent could not be started: {self.why}"
        return f"its agent died ({self.code})" if self.code else "its agent has ended"


@dataclass(frozen=True)
class Machine:
    """A session's machine at one look. `assignment` is None if only its notebook shows it, not the account's
    list. `order` says for which order it was started, empty if it was not, or if that cannot be read now."""

    endpoint: str
    assignment: Assignment | None
    order: str
    left: Left | None
    found: Found

    @property
    def is_started(self) -> bool:
        return bool(self.order)


def seen(reading: Reading, session: str) -> Machine | None:
    """The session's machine; None if it has none."""
    if session not in reading.endpoints:
        return None
    found = reading.found.get(session, Found(problem="it was not read"))
    order = found.files.get(path_of(session, STARTED), b"").decode(errors="replace").strip()
    left = _left(found.files.get(path_of(session, LEFT)))
    return Machine(reading.endpoints[session], reading.assignment(session), order, left, found)


def _left(data: bytes | None) -> Left | None:
    if data is None:
        return None
    try:
        body = json.loads(data)
        code = body["code"]
        return Left(code if isinstance(code, int) else None, bounds.text(str(body["why"]), 1000))
    except (ValueError, KeyError, TypeError):
        return Left(None, "it cannot be read how it ended")


def look(cli: Cli, session: str, paths: Iterable[str] | None = None) -> Machine | None:
    """One look at one session. Raises what Cli.read raises."""
    wanted = state_paths(session) if paths is None else tuple(paths)
    return seen(cli.read(files={session: wanted}), session)


def file_of(cli: Cli, session: str, path: str, bytes_max: int) -> tuple[bytes | None, bool]:
    """A file of the session's machine, and whether it is too large to be read. Raises Transient if it cannot
    be read now, or if the machine is gone, which the next look shows."""
    found = _found(cli, session, (path,), bytes_max)
    return found.files.get(path), path in found.too_large


def listed(cli: Cli, session: str, path: str) -> tuple[Entry, ...]:
    """What is in a folder; empty if there is none. Raises Odd if it has too many names."""
    found = _found(cli, session, (f"{path}/",), 0)
    if f"{path}/" in found.too_large:
        raise Odd(f"{path} has too many names")
    return found.folders.get(f"{path}/", ())


def files_of(cli: Cli, session: str, paths: tuple[str, ...], bytes_max: int) -> Found:
    """Those that exist, and which of them are too large."""
    return _found(cli, session, paths, bytes_max) if paths else Found()


def _found(cli: Cli, session: str, paths: tuple[str, ...], bytes_max: int) -> Found:
    reading = cli.read(files={session: paths}, bytes_max=bytes_max)
    if session not in reading.endpoints:
        raise Transient(f"the machine of {session} is gone", operation="collect", retried=True)
    found = reading.found.get(session, Found(problem="it was not read"))
    if found.problem:
        raise Transient(f"the machine of {session} cannot be read now: {found.problem}", operation="collect")
    return found


def must_be_there(machine: Machine | None, session: str) -> Machine:
    """Raises NotFound if the session left nothing, and Transient if that cannot be told now."""
    if machine is None:
        raise NotFound(f"{session} has no machine", operation="collect")
    if not machine.is_started:
        if machine.found.problem:
            raise Transient(f"the machine of {session} cannot be read: {machine.found.problem}")
        raise NotFound(f"{session} has not started on its machine", operation="collect")
    return machine
