"""Runs Colab's command line: the only module that starts its processes.

Each call is one process in its own group with a time limit (starting.py). What happened is
read from the answer that errand.py writes, never from an exit code: the command line exits with 0 after many
failures (docs/references/colab.md#exit-codes). What a failure means is in refusals.py. Knows nothing about
sessions of ours but their names.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

from orchestrator.clock import Clock, SystemClock
from orchestrator.errors import AccessDenied, BackendError, NotFound, Rejected, Transient
from orchestrator.files import allow_file, make_folder, remove_tree, rename, written
from orchestrator.files.drafts import draft_file, draft_folder, sweep, sync_folder, write_whole
from orchestrator.files.reading import read_small
from orchestrator.platforms.colab import errand
from orchestrator.platforms.colab.environment import Environment, make_home
from orchestrator.platforms.colab.refusals import meaning
from orchestrator.platforms.colab.starting import Running, Start, run_on_terminal, start
from orchestrator.platforms.colab.values import (
    ACCELERATORS,
    CPU,
    TPUS,
    Assignment,
    Found,
    Reading,
    decode_assignments,
    decode_entry,
    decode_units,
    notebook,
)

FILE_BYTES_MAX = 4 << 20
MARKER = "orchestrator: started {session}"
ANSWER_BYTES_MAX = 256 << 20
_READY_SECONDS = 20.0  # shorter than anybody waits for a survey
_LOOK_SECONDS = 0.05
_TAIL_BYTES = 4000
_LOGIN_BYTES_MAX = 1 << 16
T = TypeVar("T")


@dataclass(frozen=True)
class Patience:
    """How long to wait, in seconds. `request`: for one answer of Colab's; `file`: for a machine's answer
    about a file; `call`: for a whole process, except one that allocates (`new`), moves a file (`upload`) or
    runs a cell. All machines together get a third of that to be read.
    After a 502, 503 or 504, the command line asks `attempts` times for a machine, with pauses of `pause`,
    twice that, and so on."""

    request: float = 60.0
    file: float = 20.0
    call: float = 180.0
    new: float = 600.0
    upload: float = 600.0
    attempts: int = 3
    pause: float = 10.0


class Cli:
    """Colab's command line for one account. All calls block; threads may share it.

    Every call raises:
    - Preparing: the command line is being installed. Not raised by `ready` and `login`, which wait for it.
    - AccessDenied: nobody is logged in, the login has expired, or the account is barred. The message has the
      command that helps.
    - Transient: no answer in time, too many requests, or a fault of Colab's.
    - Rejected: this version of the command line is not the one that was expected, or the answer cannot be
      read.
    A session is named by our name for it. Its machine is found again by that name, with or without the files
    on this machine: as `session's machine` in what follows.
    """

    def __init__(
        self,
        environment: Environment,
        *,
        backend: str = "",
        clock: Clock | None = None,
        patience: Patience | None = None,
    ) -> None:
        """`backend` is the platform's name in the user's config, for messages. Starts nothing."""
        self.environment = environment
        self.backend = backend
        self.patience = patience or Patience()
        self._clock = clock or SystemClock()

    def ready(self) -> None:
        """Makes the environment if needed, and waits for it (Environment.ready)."""
        self.environment.ready()

    def new(self, session: str, accelerator: str, *, high_mem: bool = False) -> Assignment:
        """Gets the session a machine, or returns the one that it already has. `accelerator` is one of
        values.ACCELERATORS. The machine may have another accelerator than the one asked for: compare. It is
        errand.UNKNOWN if Colab does not list the machine yet and gave it earlier.

        Raises NoCapacity if Colab has no machine now: too many machines, a usage limit or no capacity, which
        cannot be told apart; QuotaExhausted if it says that the quota or the usage time is spent; Rejected
        if the account may not have this accelerator. After Transient there may be a machine: call again, or
        stop it.
        """
        if accelerator not in ACCELERATORS:  # the command line would ask for an A100 instead
            raise self._error(Rejected, "new", f"{accelerator} is not one of {', '.join(ACCELERATORS)}")
        words = ["new", *_asked(accelerator), *(["--high-mem"] if high_mem else [])]
        request = {"session": self._session(session), "words": words}
        answer = self._ask("new", request, operation="new", seconds=self.patience.new)
        [machine] = self._decoded("new", lambda: decode_assignments({"assignments": [answer["machine"]]}))
        return machine

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
        files = files or {}
        request = {
            "units": units,
            "sessions": [self._session(name) for name in dict.fromkeys((*names, *files))],
            "files": {name: list(paths) for name, paths in files.items()},
            "bytes_max": bytes_max,
            "machines_seconds": self.patience.call / 3,
        }
        answer = self._ask("read", request, operation="read", seconds=self.patience.call)
        return self._decoded("read", lambda: _reading(answer))

    def upload(self, session: str, source: Path, target: str) -> None:
        """Puts a file on the session's machine, replacing what is there; the target's folder must exist.
        Raises NotFound if the session has no machine, Rejected if the machine refuses the file, for example
        because it is too large (docs/references/colab.md#files)."""
        request = {"session": self._session(session), "words": ["upload", str(source.absolute()), target]}
        seconds = self.patience.upload
        self._expect_machine("upload", self._ask("command", request, operation="upload", seconds=seconds))

    def download(self, session: str, source: str, target: Path, *, bytes_max: int) -> bool:
        """Gets a file from the session's machine, of any size up to `bytes_max`; in memory on both sides.
        `target` appears when it is complete. Returns False if there is no such file. Raises NotFound if the
        session has no machine, Rejected if the file is too large."""
        with draft_file(target.parent) as draft:
            request = {
                "session": self._session(session), "path": source, "target": str(draft.path),
                "bytes_max": bytes_max,
            }  # fmt: skip
            answer = self._ask("download", request, operation="download", seconds=self.patience.upload)
            self._expect_machine("download", answer)
            if answer.get("problem"):
                raise self._error(Transient, "download", f"{source}: {answer['problem']}")
            if answer.get("too_large"):
                raise self._error(Rejected, "download", f"{source} is larger than {bytes_max} bytes")
            if not answer["found"]:
                return False
            draft.replace(target)
        return True

    def start(
        self, session: str, cell: Path, *, seconds_max: float, cancelled: threading.Event | None = None
    ) -> None:
        """Runs the cell, a Python file, in the session's machine, until it prints a line that is
        MARKER.format(session=session). Then it goes on by itself: its kernel stays busy, and this process
        ends. The cell is sent once. Raises NotFound if the session has no machine, Rejected if the cell ended
        without that line, with the end of its output; Transient if there was no such line in `seconds_max`:
        the cell may have started all the same, or may start later."""
        words = ["exec", "-f", str(cell.absolute()), "--timeout", f"{seconds_max:g}"]
        request = {"session": self._session(session), "words": words}
        marker = MARKER.format(session=session).encode()
        with self._errand("command", request, seconds_max, marker=marker, cancelled=cancelled) as done:
            if done.marked:
                return
            answer = self._answer(done, "start")
            self._expect_machine("start", answer)
            raise self._error(Rejected, "start", f"the cell ended before it said so: {done.tail()}")

    def stop(self, session: str) -> bool:
        """Gives the session's machine back. Returns True once Colab neither lists it nor has it for the
        session's notebook, also if there was none; False if it is still there: call again."""
        request = {"session": self._session(session), "words": ["stop"]}
        answer = self._ask("stop", request, operation="stop", seconds=self.patience.call)
        return not answer["has_machine"]

    def login(self) -> None:
        """Logs in on this terminal: a person opens an address and pastes the code shown there. The new login
        replaces the old one only if Colab accepts it. Raises AccessDenied otherwise."""
        environment = self.environment
        if environment.auth != "oauth2":
            raise self._error(AccessDenied, "login", f"the login is the file {environment.adc_file}")
        with draft_folder(self._folder("work"), 0o700) as folder:
            home = folder / "home"
            make_home(home)
            with self._errand("login", {}, None, home=home) as done:
                self._answer(done, "login")
            made = home / environment.token.relative_to(environment.home)
            allow_file(made)
            rename(made, environment.token)
            sync_folder(environment.token.parent)

    # --- Processes --------------------------------------------------------------------------------------

    def adopt(self, session: str, endpoint: str) -> None:
        """Makes a machine that Colab lists the session's own. Asks nobody."""
        record = {"name": session, "endpoint": endpoint, "token": "", "url": "http://unknown"}
        write_whole(self._record(session), json.dumps({session: record}).encode())

    def forget(self, session: str) -> None:
        """Removes what is kept here of a session whose machine is gone."""
        remove_tree(self._record(session))

    def tidy(self) -> None:
        """Removes what processes left behind that were killed: each has a copy of the login."""
        sweep(self._folder("work"))

    def _ask(
        self, name: str, request: Mapping[str, Any], *, operation: str, seconds: float
    ) -> dict[str, Any]:
        with self._errand(name, request, seconds) as done:
            return self._answer(done, operation)

    @contextmanager
    def _errand(
        self,
        name: str,
        request: Mapping[str, Any],
        seconds: float | None,
        *,
        marker: bytes | None = None,
        cancelled: threading.Event | None = None,
        home: Path | None = None,
    ) -> Iterator[_Done]:
        """Runs an errand to its end, its marker or its time limit; without a limit, on this terminal."""
        if seconds is not None:
            self._expect_login(name)
        python = self.environment.ready(None if seconds is None else _READY_SECONDS)
        with draft_folder(self._folder("work"), 0o700) as folder:
            done = _Done(folder)
            whole = {
                "errand": name, "auth": self.environment.auth, "seconds": self.patience.request,
                "file_seconds": self.patience.file, **request,
            }  # fmt: skip
            write_whole(done.request, json.dumps(whole).encode(), sync=False)
            own = home or folder / "home"
            mine, lent = (own, None) if seconds is None else self._lend(own)
            variables = self.environment.variables(own) | {
                "COLAB_CLI_ASSIGN_RETRIES": str(self.patience.attempts),
                "COLAB_CLI_RETRY_BACKOFF": f"{self.patience.pause:g}",
                "COLAB_CLI_REQUEST_TIMEOUT": f"{self.patience.request:g}",
            }
            with written(done.output) as output:
                wanted = Start([str(done.request), str(done.answer)], variables, folder, output.fileno())
                if seconds is None:
                    run_on_terminal(python, wanted)
                else:
                    process = start(python, wanted)
                    try:
                        self._wait(process, done, seconds, marker, cancelled or threading.Event())
                    finally:
                        process.kill()
                    self._keep(mine, lent)
            yield done

    def _lend(self, home: Path) -> tuple[Path, bytes | None]:
        """Puts a copy of the login into the home of one process; returns where it is, and what. The command
        line writes it in place: with one home, two processes may read half of it, and one that is killed
        meanwhile loses it."""
        environment = self.environment
        mine = home / environment.token.relative_to(environment.home)
        lent = read_small(environment.token, _LOGIN_BYTES_MAX)
        make_home(home)
        if lent is not None:
            write_whole(mine, lent, sync=False)
        return mine, lent

    def _keep(self, mine: Path, lent: bytes | None) -> None:
        """Keeps a login that was renewed, unless a person has logged in since."""
        renewed = read_small(mine, _LOGIN_BYTES_MAX)
        token = self.environment.token
        if renewed in (None, lent) or read_small(token, _LOGIN_BYTES_MAX) != lent:
            return
        with suppress(ValueError):  # it was cut off
            json.loads(renewed)
            write_whole(token, renewed)

    def _wait(
        self,
        process: Running,
        done: _Done,
        seconds: float,
        marker: bytes | None,
        cancelled: threading.Event,
    ) -> None:
        """Returns at the process's end, at the marker, or when it has been long enough."""
        until = self._clock.monotonic() + seconds
        with done.output.open("rb") as output:
            while not done.marked:
                ended = process.ended(0.0)
                done.marked = marker is not None and _says(output, marker)
                if ended or cancelled.is_set():
                    return
                if self._clock.monotonic() >= until:
                    done.late = seconds
                    return
                process.ended(_LOOK_SECONDS)

    def _answer(self, done: _Done, operation: str) -> dict[str, Any]:
        """The errand's answer, if it was done. Raises what its failure means."""
        try:
            if done.answer.stat().st_size > ANSWER_BYTES_MAX:
                raise self._error(Rejected, operation, "the answer is too large")
            answer: dict[str, Any] = json.loads(done.answer.read_bytes())
        except FileNotFoundError:
            late = done.late
            why = f"no answer within {late:g} s" if late else f"its process ended early: {done.tail()}"
            raise self._error(Transient, operation, f"Colab's command line: {why}") from None
        if answer["kind"] != "done":
            answer["message"] = f"{answer.get('message', '')} {done.said()}".strip()
            raise meaning(answer, backend=self.backend, operation=operation, login=self._login())
        return answer

    def _expect_login(self, operation: str) -> None:
        """Whoever is not logged in needs no command line yet."""
        if self.environment.is_logged_in():
            return
        if self.environment.auth == "oauth2":
            why = f"nobody is logged in to Colab; log in with: {self._login()}"
        else:
            why = f"nobody is logged in to Colab: there is no file {self.environment.adc_file}"
        raise self._error(AccessDenied, operation, why)

    def _login(self) -> str:
        return f"orchestrator colab login {self.backend}".strip()

    def _expect_machine(self, operation: str, answer: Mapping[str, Any]) -> None:
        if not answer["has_machine"]:
            raise self._error(NotFound, operation, "the session has no machine")

    def _decoded(self, operation: str, decode: Callable[[], T]) -> T:
        try:
            return decode()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"Colab's answer cannot be read: {type(error).__name__}: {error}"
            raise self._error(Rejected, operation, message) from error

    def _error(self, kind: type[BackendError], operation: str, message: str) -> BackendError:
        return kind(message, backend=self.backend, operation=operation)

    def _session(self, name: str) -> dict[str, str]:
        return {"name": name, "notebook": str(notebook(name)), "record": str(self._record(name))}

    def _record(self, name: str) -> Path:
        return self._folder("sessions") / f"{name}.json"

    def _folder(self, name: str) -> Path:
        folder = self.environment.folder / name
        make_folder(folder, 0o700)
        return folder


@dataclass
class _Done:
    """What is left of an errand. `marked`: it printed its marker; `late`: it was killed after so long."""

    folder: Path
    marked: bool = False
    late: float | None = None

    @property
    def request(self) -> Path:
        return self.folder / "request.json"

    @property
    def answer(self) -> Path:
        return self.folder / "answer.json"

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def tail(self) -> str:
        """The end of what it printed, on one line."""
        if not self.output.exists():
            return ""
        with self.output.open("rb") as output:
            output.seek(max(0, output.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return " ".join(errand.hidden(output.read().decode("utf-8", "replace")).split())[-500:]

    def said(self) -> str:
        """The command line's own last message, which it prints instead of raising an error."""
        text = self.output.read_text("utf-8", "replace") if self.output.exists() else ""
        lines = [line for line in text.splitlines() if line.startswith("[colab] ")]
        return errand.hidden(lines[-1].removeprefix("[colab] ")) if lines else ""


def _says(output: IO[bytes], marker: bytes) -> bool:
    """Whether there is a new line that is the marker."""
    place = output.tell()
    text = output.read()
    output.seek(place + text.rfind(b"\n") + 1)  # the rest is no whole line yet
    return marker in (line.strip() for line in text.split(b"\n"))


def _asked(accelerator: str) -> list[str]:
    if accelerator == CPU:
        return []
    return ["--tpu" if accelerator in TPUS else "--gpu", accelerator.lower()]


def _reading(answer: Mapping[str, Any]) -> Reading:
    return Reading(
        assignments=decode_assignments(answer),
        endpoints=dict(answer["endpoints"]),
        units=None if answer.get("units") is None else decode_units(answer["units"]),
        found={name: _found(each) for name, each in answer["found"].items()},
    )


def _found(answer: Mapping[str, Any]) -> Found:
    return Found(
        files={path: base64.b64decode(text) for path, text in answer["files"].items()},
        folders={path: tuple(map(decode_entry, each)) for path, each in answer["folders"].items()},
        too_large=dict(answer["too_large"]),
        problem=str(answer["problem"]),
    )
