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

from orchestrator.agent.folder import Folder, write_whole
from orchestrator.agent.requirements import masked
from orchestrator.agent.settings import Settings
from orchestrator.clock import Clock
from orchestrator.core.order import Order
from orchestrator.core.wire import encode
from orchestrator.processes import SESSION
from orchestrator.session.words import LACKING, SHIPPED, SUPERSEDED, USELESS, WORD_BYTES_MAX, heard

# List → what it names, as in our own pyproject.toml.
PACKAGES = {
    "drive": ("PyDrive2>=1.21.3,<2",),
    "pyrage": ("pyrage>=1.4,<2",),
    "s3": ("obstore>=0.12.1,<0.13",),
}
NOT_INSTALLED = "the uplink's packages could not be installed yet: the session's log says why"
_PIP = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--only-binary=:all:")
DIED = "the uplink died, and was started again"
# One thread each, for every library that may be loaded: the rest of the machine is the training's.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "TOKIO_WORKER_THREADS")
_DOUBLINGS_MAX = 20
_JOIN_SECONDS = 5.0


@dataclass(frozen=True)
class _Pace:
    """What the uplink reads as its own Pace."""

    beat: float
    ship: float
    daily_bytes: float | None


class Companion(threading.Thread):
    """`given` opens the store. It goes to the process through a pipe, with the order. The thread ends when
    the result is shipped, when the uplink is of no use, or after `end`.

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
    ) -> None:
        super().__init__(name="uplink", daemon=True)
        self._folder = folder
        self._given = encode(order) + b"\n" + given
        self._settings = settings
        self._clock = clock
        self._say = say
        pace = _Pace(settings.uplink_beat, settings.uplink_ship, settings.uplink_daily_bytes)
        self._command = [
            sys.executable, str(folder.uplink), str(folder.root), incarnation, str(os.getpid()),
            encode(pace).decode(),
        ]  # fmt: skip
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._warnings: deque[str] = deque()
        self._uploads: deque[tuple[int, float | None]] = deque()
        self.superseded = False
        self.result_written = False  # set it once the agent has written its result
        self.moved_at = clock.monotonic()  # when it last sent something

    def warnings(self) -> Iterator[str]:
        """Each new warning, once."""
        while self._warnings:
            yield self._warnings.popleft()

    def uploads(self) -> Iterator[tuple[int, float | None]]:
        """Each checkpoint shipped since the last call: its step, and the seconds that it took. They are None
        if an uplink that died has shipped it."""
        while self._uploads:
            yield self._uploads.popleft()

    def end(self) -> None:
        """Kills the uplink. What it has not shipped stays in the outbox."""
        self._over.set()
        process = self._process
        if process is not None:
            with suppress(OSError):
                process.kill()
        self.join(_JOIN_SECONDS)

    def run(self) -> None:
        failures, installed = 0, False
        while not self._over.is_set():
            began = self._clock.monotonic()
            code = self._live()
            if self._over.is_set() or self._is_final(code):
                return
            if code == LACKING and not installed:
                installed = self._could_install()
                if installed:
                    continue
            failures = 0 if self._clock.monotonic() - began > self._settings.uplink_calm else failures + 1
            pause = min(
                self._settings.uplink_restart_max,
                self._settings.uplink_restart * 2.0 ** min(max(0, failures - 1), _DOUBLINGS_MAX),
            )
            self._say(f"the uplink ended ({_how(code)}); it starts again in {pause:.0f} s")
            self._warnings.append(NOT_INSTALLED if code == LACKING else DIED)
            self._clock.wait(self._over, pause)

    def _is_final(self, code: int | None) -> bool:
        """An uplink that found a result is done only if the agent wrote it: the training may forge one."""
        self.superseded = code == SUPERSEDED
        return code in (SUPERSEDED, USELESS) or (code == SHIPPED and self.result_written)

    def _could_install(self) -> bool:
        try:
            return self._installs()
        except OSError as error:
            self._say(f"pip cannot be started: {error.strerror or error}")
            return False

    def _installs(self) -> bool:
        """Installs the lists of packages that the store needs. Nothing else in the session sees them."""
        wanted = [each for name in _packages_in(self._given) for each in PACKAGES.get(name, ())]
        if not wanted:
            return False
        self._say(f"installing for the uplink: {', '.join(wanted)}")
        command = [sys.executable, *_PIP, "--target", str(self._site), *wanted]
        process = subprocess.Popen(
            command,
            cwd=self._folder.root,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
        self._process = process
        with process:
            assert process.stdout is not None
            last = b""
            while line := process.stdout.readline(WORD_BYTES_MAX):
                last = line.strip() or last
        if process.returncode:
            self._say(f"pip failed: {masked(last.decode(errors='replace'))}")
        return process.returncode == 0

    @property
    def _site(self) -> Path:
        return self._folder.shipping / "site"

    def _live(self) -> int | None:
        """Runs the process until it exits, and hears what it says. None if it could not be started."""
        try:
            process = subprocess.Popen(
                self._command,
                cwd=self._folder.root,
                env=_environment() | {"PYTHONPATH": str(self._site)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        except OSError as error:
            self._say(f"the uplink cannot be started: {error.strerror or error}")
            return None
        self._process = process
        with process, suppress(OSError):
            assert process.stdin is not None
            assert process.stdout is not None
            if self._over.is_set():
                process.kill()
            with suppress(OSError):
                self._folder.shipping.mkdir(exist_ok=True)
                write_whole(self._folder.shipping / "pid", b"%d\n" % process.pid, durable=False)
            process.stdin.write(self._given)
            process.stdin.close()
            while line := process.stdout.readline(WORD_BYTES_MAX):
                self._hear(line)
        return process.returncode

    def _hear(self, line: bytes) -> None:
        word = heard(line)
        if word.say:
            self._say(f"uplink: {word.say}")
        if word.trouble:
            self._warnings.append(word.trouble)
        if word.sent_bytes:
            self.moved_at = self._clock.monotonic()
        if word.shipped_step is not None:
            self._uploads.append((word.shipped_step, word.shipped_seconds))


def _packages_in(given: bytes) -> list[str]:
    try:
        found = json.loads(given.partition(b"\n")[2])["packages"]
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
