"""From arguments to an exit code: parses, calls the command's function, and puts every failure into words."""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from orchestrator.cli import arguments, starting, streams
from orchestrator.cli.call import FULL, Call, Exit, exit_code, os_error_text
from orchestrator.cli.local_times import localiser
from orchestrator.cli.output import Output
from orchestrator.cli.streams import OutputLost
from orchestrator.cli.terminal import plain
from orchestrator.client import Client
from orchestrator.client.home import Home
from orchestrator.clock import SystemClock, utc_text
from orchestrator.core.wording import size_text
from orchestrator.errors import DiskFull, OrchestratorError, SpecError
from orchestrator.files import open_log

GARBAGE_THRESHOLD = 100_000  # imports make no garbage, and looking for it took a fifth of a listing's time
# Their files belong to the user, so they get the user's own umask.
SHARES = ("pull", "examples", "completion", "curves")
TIGHTENS = (
    "up",
    "submit",
    "init",
    "doctor",
    "prune",
    "rm",
    "hold",
    "release",
    "retry",
    "cancel",
    "adopt",
    "schedule",
)  # listings change nothing
# These print times in the user's zone. Logs and live views keep UTC, as do all other commands.
LOCAL = frozenset({
    "backup", "doctor", "health", "list", "notify", "plan", "ps", "quota", "replay", "restore", "schedule",
    "show", "status", "submit", "why",
})  # fmt: skip
CRASH_BYTES_MAX = 4 * 1024 * 1024


def run(given: Sequence[str]) -> int:
    """Runs one command. Raises nothing."""
    gc.set_threshold(GARBAGE_THRESHOLD)
    out = Output("--json" in given)
    home: Home | None = None
    try:
        try:
            options = arguments.parse(given)
        except SystemExit:  # argparse has printed the help or the version
            return streams.ended(Exit.OK)
        out = Output(getattr(options, "json", False))
        home = Home.of(getattr(options, "home", None))
        if options.command not in SHARES:
            os.umask(0o077)
        if options.command in TIGHTENS and (told := home.tighten()):
            out.remark(told)
        if options.command in LOCAL and not getattr(options, "follow", False):
            out.local = localiser(home.folders.config)
        command = _command(options.command)
        starting.over()
        with Client(home) as client:
            code = command(Call(options, client, out))
        return streams.ended(code, out.done)
    except BrokenPipeError:
        _silence()
        return Exit.PIPE
    except KeyboardInterrupt:
        out.remark("interrupted")
        return Exit.INTERRUPTED
    except OutputLost:
        return streams.tell_loss(Exit.UNAVAILABLE, "; ".join(filter(None, ("the view has ended", out.done))))
    except (OrchestratorError, OSError) as error:
        return _failed(out, error, home)
    except Exception as bug:  # noqa: BLE001 - the edge: a bug's traceback goes into a file, not to the user
        return _bug(out, bug, home)


def _command(name: str | None) -> Callable[[Call], int]:
    if name is None:
        return _help
    [command] = (c for c in arguments.COMMANDS if c.name == name)
    module, function = command.runs.split(":")
    found: Callable[[Call], int] = getattr(importlib.import_module(f"orchestrator.cli.{module}"), function)
    return found


def _help(_call: Call) -> int:
    arguments.parser().print_help()
    return Exit.OK


def _failed(out: Output, error: OrchestratorError | OSError, home: Home | None) -> int:
    message = os_error_text(error, home.path if home else None) if isinstance(error, OSError) else str(error)
    if home is not None and (isinstance(error, DiskFull) or getattr(error, "errno", None) in FULL):
        message += _free_hint(home)
    code = exit_code(error)
    document: dict[str, object] = {"type": type(error).__name__, "message": message, "exit_code": int(code)}
    if isinstance(error, SpecError):
        document["faults"] = list(error.mistakes)
    _tell(out, document, message if isinstance(error, SpecError) else f"orchestrator: {message}")
    return code


def _tell(out: Output, document: dict[str, object], message: str) -> None:
    """Prints an error: as JSON if asked for and possible, else as a line on standard error."""
    with contextlib.suppress(BrokenPipeError):
        out.record({"error": document})
        (Output(as_json=False) if streams.lost() else out).remark(message)


def _free_hint(home: Home) -> str:
    from orchestrator.client import growth

    with contextlib.suppress(OrchestratorError, OSError):
        found = growth.of_home(home, SystemClock(), growth.HINT_SECONDS)
        if found.freed:
            some = "" if found.complete else "at least "
            return f"; that would free {some}{size_text(found.freed)}"
    return ""


def _bug(out: Output, bug: Exception, home: Home | None) -> int:
    path = _write_crash("".join(traceback.format_exception(bug)), home)
    message = (
        f"a bug in the orchestrator: {type(bug).__name__}; runs are not affected. Please report it with the "
        f"traceback in {path}"
    )
    _tell(out, {"type": "Bug", "message": message, "exit_code": int(Exit.BUG)}, message)
    return Exit.BUG


def _write_crash(text: str, home: Home | None) -> Path:
    """Writes into the home's crash.log; if that fails, into the folder for temporary files."""
    entry = f"{utc_text(SystemClock().now())} orchestrator {' '.join(sys.argv[1:2])}\n{text}\n"
    for path in ([home.folders.crash_log] if home is not None else []) + [_temporary()]:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with os.fdopen(open_log(path), "a", encoding="utf-8", errors="replace") as stream:
                if os.fstat(stream.fileno()).st_size > CRASH_BYTES_MAX:
                    stream.truncate(0)
                stream.write(entry)
            return path
    sys.stderr.write(plain(entry))
    return Path("/dev/stderr")


def _temporary() -> Path:
    return Path(tempfile.gettempdir()) / f"orchestrator-crash-{os.getuid()}.log"


def _silence() -> None:
    """Stops all further output, also at exit, because its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
