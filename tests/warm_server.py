"""Imports what programs import, then forks a process for each that is asked for: `warm_server.py FD KIND`.

A program of this repository: tests/warm.py starts it and asks. A message has a program's words, folder and
environment, with the descriptors of its three streams and of a pipe that is told its process and its exit
code. Decides how the forked process becomes that program. Must never know what it does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

TOLD_BYTES = 10  # as in tests/warm.py
_ASKED_BYTES_MAX = 1 << 18
_OF_COMMANDS = (  # beyond their own modules; nothing that starts a thread
    "alembic.command", "alembic.runtime.migration", "orchestrator.client.submitting",
    "orchestrator.client.trying", "orchestrator.client.wiring", "orchestrator.platforms.process",
    "orchestrator.stores.folder", "pydantic.dataclasses", "rich.progress", "rich.table",
    "sqlalchemy.dialects.sqlite",
)  # fmt: skip
_OF_TRANSFORMERS = ("transformers.trainer", "transformers.models.bert")
# An optimizer imports torch._dynamo, which takes as long as torch itself.
_OF_TRAININGS = ("torch", "torch._dynamo", "torch.distributed", "torch.utils.data", "orchestrator.training")


def main(descriptor: int, kind: str) -> int:
    imports, becomes = KINDS[kind]
    imports()
    gc.freeze()  # so that no program's search for garbage copies all of it
    asked = serve(socket.socket(fileno=descriptor))
    return becomes(asked["words"]) if asked is not None else 0


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Returns in each forked process, with what it was asked to be; with None in the server itself, once
    nobody can ask any more."""
    ends: dict[int, tuple[int, int]] = {}  # pidfd → process, and who is told its end
    with selectors.DefaultSelector() as selector:
        selector.register(connection, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fd != connection.fileno():
                    selector.unregister(key.fd)
                    _tell_end(key.fd, *ends.pop(key.fd))
                    continue
                data, given, _, _ = socket.recv_fds(connection, _ASKED_BYTES_MAX, 4)
                if not data:
                    return None
                if (pid := os.fork()) == 0:
                    _close(connection.fileno(), *ends, *(told for _, told in ends.values()))
                    return _settled(json.loads(data), given)
                _close(*given[:3])
                _tell(given[3], pid)
                pidfd = os.pidfd_open(pid)
                ends[pidfd] = pid, given[3]
                selector.register(pidfd, selectors.EVENT_READ)


def _tell_end(pidfd: int, pid: int, told: int) -> None:
    _, status = os.waitpid(pid, 0)
    _tell(told, os.waitstatus_to_exitcode(status))
    _close(told, pidfd)


def _tell(told: int, number: int) -> None:
    with suppress(BrokenPipeError):  # nobody waits for it any more
        os.write(told, b"%*d" % (TOLD_BYTES, number))


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)


def _settled(asked: dict[str, Any], given: Sequence[int]) -> dict[str, Any]:
    """In the new process: with its own streams, folder and environment."""
    for number, each in enumerate(given[:3]):
        os.dup2(each, number)
    _close(*given)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    return asked


# --- Kinds of programs ------------------------------------------------------------------------------------


def _import_commands() -> None:
    from orchestrator.cli import arguments

    for command in arguments.COMMANDS:
        importlib.import_module(f"orchestrator.cli.{command.runs.partition(':')[0]}")
    _import(*_OF_COMMANDS)


def _command(words: Sequence[str]) -> int:
    """`orchestrator …` or `submit …`, as the installed script does it."""
    import orchestrator.cli

    sys.argv = [str(Path(sys.executable).parent / words[0]), *words[1:]]
    code: int = {"orchestrator": orchestrator.cli.main, "submit": orchestrator.cli.main_submit}[words[0]]()
    return code


def _import(*names: str) -> None:
    for name in names:
        importlib.import_module(name)


def _script(words: Sequence[str]) -> int:
    """`python …`: a file or `-m` and a module, with their arguments."""
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if words[0] == "-m":
        sys.path[:0] = [str(Path.cwd()), *paths]
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[:0] = [str(Path(words[0]).absolute().parent), *paths]
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")
    return 0


KINDS: Mapping[str, tuple[Callable[[], None], Callable[[Sequence[str]], int]]] = {
    "command": (_import_commands, _command),
    "training": (partial(_import, *_OF_TRAININGS), _script),
    "transformers": (partial(_import, *_OF_TRAININGS, *_OF_TRANSFORMERS), _script),
    "lightning": (partial(_import, *_OF_TRAININGS, "lightning.pytorch"), _script),
}


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2]))
