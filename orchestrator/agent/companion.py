"""The uplink's process beside the agent: starts it, hears it, starts it again when it dies, ends it. Installs
what it lacks, where only the uplink sees it.

Nothing that happens to the uplink fails the session: without it the session only ships nothing. Must never
know what the uplink does, nor open the store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator.agent import packages
from orchestrator.agent.folder import Folder, write_whole
from orchestrator.agent.settings import Settings
from orchestrator.clock import Clock
from orchestrator.core.order import Order
from orchestrator.core.wire import encode
from orchestrator.files import make_folder, remove_tree
from orchestrator.processes import SESSION
from orchestrator.session.words import LACKING, SHIPPED, SUPERSEDED, USELESS, WORD_BYTES_MAX, heard

NOT_INSTALLED = "the uplink's packages could not be installed yet: the session's log says why"
DIED = "the uplink died, and was started again"
# One thread each, for every library that may be loaded: the rest of the machine is the training's.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS")
_DOUBLINGS_MAX = 20
_LINES_MAX = 100
_JOIN_SECONDS = 5.0


@dataclass(frozen=True)
class _Pace:
    """What the uplink reads as its own Pace."""

    beat: float
    ship: float
    daily_bytes: float | None


class Companion(threading.Thread):
    """`given` opens the store. It goes to the process through a pipe, with the order, and with the `parcel`
    until that is fetched. The thread ends when the result is shipped, when the uplink is of no use, or after
    `end`.

    The kernel kills the process when this thread is gone, so it lives as long as the process.
    """

    def __init__(
        self,
        folder: Folder,
        order: Order,
        incarnation: str,
        given: bytes,
        settings: Settings,
        clock: Clock,
        say: Callable[[str], None],
        parcel: bytes | None = None,
    ) -> None:
        super().__init__(name="uplink", daemon=True)
        self._folder = folder
        self._order = order
        self._parcel = parcel
        self._given = given
        self._settings = settings
        self._clock = clock
        self._say = say
        pace = _Pace(settings.uplink_beat, settings.uplink_ship, settings.uplink_daily_bytes)
        self._words = [
            str(folder.uplink), str(folder.root), str(folder.outbox), incarnation, str(os.getpid()),
            encode(pace).decode(),
        ]  # fmt: skip
        self._installed = False
        self._over = threading.Event()
        self._awake = threading.Event()  # ends a pause
        self._process: subprocess.Popen[bytes] | None = None
        self._warnings: deque[str] = deque()
        self._uploads: deque[tuple[int, float | None]] = deque()
        self.fetched = parcel is None
        self.unfetchable = ""  # why what the session needs will never come
        self.superseded = False
        self.asked_to_leave = False
        self._result_written = False
        self.moved_at = clock.monotonic()  # when it last sent or fetched something
        self.reached_at: float | None = None  # when it last reached the store

    def warnings(self) -> Iterator[str]:
        """Each new warning, once."""
        while self._warnings:
            yield self._warnings.popleft()

    def uploads(self) -> Iterator[tuple[int, float | None]]:
        """Each checkpoint shipped since the last call: its step, and the seconds that it took. They are None
        if an uplink that died has shipped it."""
        while self._uploads:
            yield self._uploads.popleft()

    def finish(self) -> None:
        """Call it once the agent has written its result. An uplink that is not running starts again now."""
        self._result_written = True
        self._awake.set()

    def end(self) -> None:
        """Kills the uplink. What it has not shipped stays in the outbox."""
        self._over.set()
        self._awake.set()
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
        self.join(_JOIN_SECONDS)

    def run(self) -> None:
        failures = 0
        while not self._over.is_set():
            began = self._clock.monotonic()
            code = self._live()
            if code == LACKING and not self._installed and self._installs():
                continue
            if self._over.is_set() or self._is_final(code):
                return
            failures = 0 if self._clock.monotonic() - began > self._settings.uplink_calm else failures + 1
            pause = min(
                self._settings.uplink_restart_max,
                self._settings.uplink_restart * 2.0 ** min(max(0, failures - 1), _DOUBLINGS_MAX),
            )
            self._say(f"the uplink ended ({_how(code)}); it starts again in {pause:.0f} s")
            self._warnings.append(NOT_INSTALLED if code == LACKING else DIED)
            self._clock.wait(self._awake, pause)
            self._awake.clear()

    def _is_final(self, code: int | None) -> bool:
        """An uplink that found a result is done only if the agent wrote it: the training may forge one. If it
        still lacks a package then, there is nothing to wait for."""
        self.superseded = code == SUPERSEDED
        return code in (SUPERSEDED, USELESS) or (code in (SHIPPED, LACKING) and self._result_written)

    def _installs(self) -> bool:
        """Installs the lists of packages that the store needs. Nothing else in the session sees them."""
        names = _packages_in(self._given)
        text = packages.listed(names)
        if not text:
            return False
        self._say(f"installing for the uplink, checked by hashes: {', '.join(names)}")
        listed = self._folder.shipping / "packages.lock"
        lines: deque[str] = deque(maxlen=_LINES_MAX)
        try:
            remove_tree(self._site)  # what an installation left that was broken off
            write_whole(listed, text.encode(), durable=False)
            code = self._run(
                packages.command(listed, self._site),
                packages.variables(_environment()),
                hear=lambda line: lines.append(line.decode(errors="replace")),
            )
        except OSError as error:
            self._say(f"pip cannot be started: {error.strerror or error}")
            return False
        self._installed = code == 0
        if code and not self._over.is_set():
            self._say(f"pip failed: {packages.failure(lines)}")
        return self._installed

    @property
    def _site(self) -> Path:
        return self._folder.shipping / "site"

    def _live(self) -> int | None:
        """Runs the uplink until it exits, and hears what it says. None if it could not be started.

        It sees the environment's packages, or only those that were installed for it: versions of both would
        not fit together.
        """
        alone = ["-S"] if self._installed else []
        variables = {"PYTHONPATH": str(self._site)} if self._installed else {}
        try:
            make_folder(self._folder.shipping, parents=False)
            told = b"" if self.fetched or self._parcel is None else self._parcel
            given = encode(self._order) + b"\n" + told + b"\n" + self._given
            return self._run(
                [sys.executable, *alone, *self._words], _environment() | variables, given, self._hear
            )
        except OSError as error:
            self._say(f"the uplink cannot be started: {error.strerror or error}")
            return None

    def _run(
        self,
        command: list[str],
        variables: dict[str, str],
        given: bytes = b"",
        hear: Callable[[bytes], None] = lambda _: None,
    ) -> int:
        """Runs a process until it exits, and hears each line of its output. Raises OSError if it could not be
        started."""
        process = subprocess.Popen(
            command,
            cwd=self._folder.root,
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._process = process
        with process, suppress(OSError):
            assert process.stdin is not None
            assert process.stdout is not None
            if self._over.is_set():
                process.kill()
            with suppress(OSError):
                write_whole(self._folder.shipping / "pid", b"%d\n" % process.pid, durable=False)
            process.stdin.write(given)
            process.stdin.close()
            while line := process.stdout.readline(WORD_BYTES_MAX):
                hear(line)
        return process.returncode

    def _hear(self, line: bytes) -> None:
        word = heard(line)
        if word.say:
            self._say(f"uplink: {word.say}")
        self.asked_to_leave |= word.leave
        if word.reached:
            self.reached_at = self._clock.monotonic()
        if word.trouble:
            self._warnings.append(word.trouble)
        self.fetched |= word.fetched
        self.unfetchable = self.unfetchable or word.unfetchable
        if word.sent_bytes or word.fetched_bytes:
            self.moved_at = self._clock.monotonic()
        if word.shipped_step is not None:
            self._uploads.append((word.shipped_step, word.shipped_seconds))


def _packages_in(given: bytes) -> list[str]:
    try:
        found = json.loads(given)["packages"]
    except (ValueError, KeyError, TypeError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def secrets_in(given: bytes) -> tuple[str, ...]:
    """The secrets in what opens the store, so that no log shows them: also those inside a JSON document."""
    try:
        values = json.loads(given)["secret"].values()
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()
    return tuple(text for value in values if isinstance(value, str) for text in (value, *_texts(value)))


def key_in(parcel: bytes) -> tuple[str, ...]:
    """The secret key in what tells the uplink what to fetch."""
    try:
        found = json.loads(parcel)["key"]
    except (ValueError, KeyError, TypeError):
        return ()
    return (found,) if isinstance(found, str) and found else ()


def _texts(value: object) -> Iterator[str]:
    """The texts of a JSON document, and of those inside it."""
    if isinstance(value, str):
        try:
            inner = json.loads(value)
        except ValueError:
            return
        yield from _leaves(inner)


def _leaves(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _leaves(each)


def _environment() -> dict[str, str]:
    """The agent's environment. Keeps the session's mark, by which the platform finds its processes, but not
    that of the training, by which the agent ends the training."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("ORCHESTRATOR_")}
    if SESSION in os.environ:
        variables[SESSION] = os.environ[SESSION]
    return variables | dict.fromkeys(_THREADS, "1")


def _how(code: int | None) -> str:
    if code is None:
        return "it could not be started"
    return f"killed by signal {-code}" if code < 0 else f"exit code {code}"
