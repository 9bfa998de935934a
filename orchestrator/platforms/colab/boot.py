"""The program that a machine of Colab runs: unpacks the session's files, starts the agent, and stays until it
has ended.

This file's text is the cell, with a call of `main` appended. So it uses only the standard library and nothing
of ours. It blocks: a kernel that is busy keeps its machine (docs/references/colab.md#liveness). A cell may be
sent twice, so the first one to rename its files into place starts the agent, and the others leave. Must never
print a secret: the command line keeps what cells print.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

FOLDER = "orchestrator"  # not hidden: Jupyter shows no hidden files
STARTED, LEFT = "started", "left.json"  # in the session's folder
# Another name for the outbox's folder of checkpoints: Jupyter answers a path that ends with /checkpoints with
# something else (docs/references/colab.md#files).
SAVES, SAVES_ARE = "saves", "outbox/checkpoints"
_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Unfit(Exception):
    """The session cannot be started with what is here. Another upload may help."""


def main(session: dict) -> None:  # type: ignore[type-arg]
    """Runs the session, unless another cell has. Prints a line that ends with `started NAME` once it runs.

    `session` has: `name`; `archive`, the uploaded file, and its `sha256`; `order`, which says for which order
    it is; `settings` of the agent; `age_seconds`, for how long the machine has been ours; `linger_seconds`,
    for how long it stays after the session's end.
    """
    here = Path.cwd()
    archive = here / session["archive"]
    root = here / FOLDER / session["name"]
    try:
        is_first = lay_out(session, archive, root)
    except (Unfit, OSError, tarfile.TarError) as error:
        say(f"{session['name']} cannot start: {type(error).__name__}: {error}")
        return
    agent, why = start(session, root) if is_first else (None, "")
    say(f"started {session['name']}")
    if not is_first:
        return
    code = None if agent is None else outlast(agent)
    leave(root, code, why)
    threading.Event().wait(session["linger_seconds"])
    give_back()


def lay_out(session: dict, archive: Path, root: Path) -> bool:  # type: ignore[type-arg]
    """Puts the session's folder in place, whole and only for its owner. False if it is there already. Removes
    the archive, which holds credentials. Raises Unfit if it is not the one that was meant."""
    if root.exists():
        return False
    root.parent.mkdir(mode=0o700, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix="draft-", dir=root.parent))
    try:
        unpack(archive, session["sha256"], draft)
        (draft / SAVES).symlink_to(SAVES_ARE)
        (draft / STARTED).write_text(session["order"])
        draft.rename(root)
    except (OSError, Unfit):
        if root.exists():  # another cell was faster
            return False
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    archive.unlink(missing_ok=True)
    return True


def unpack(archive: Path, sha256: str, folder: Path) -> None:
    """There are only files and folders in it: we packed it, and its hash is checked."""
    if not archive.is_file():
        raise Unfit("its files are not here")
    with archive.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != sha256:
            raise Unfit("its files are not the ones that were sent")
        file.seek(0)
        with tarfile.open(fileobj=file) as packed:
            for member in packed:
                path = folder / member.name
                (path if member.isdir() else path.parent).mkdir(mode=0o700, parents=True, exist_ok=True)
                content = packed.extractfile(member)
                if content is not None:
                    put(path, content, member.mode & 0o700)


def put(path: Path, content, mode: int) -> None:  # type: ignore[no-untyped-def]
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with content, os.fdopen(os.open(path, flags, mode), "wb") as file:
        shutil.copyfileobj(content, file)


def start(session: dict, root: Path):  # type: ignore[no-untyped-def,type-arg]
    """The agent's process, which outlives this one, or None and the reason."""
    command = [
        sys.executable,
        str(root / "agent.pyz"),
        str(root),
        "--settings",
        json.dumps(session["settings"]),
    ]
    began = max(0.0, time.clock_gettime(_BOOTTIME) - session["age_seconds"])
    environment = {**os.environ, "ORCHESTRATOR_STARTED_ELAPSED": repr(began)}
    try:
        with (root / "agent.out").open("ab") as out:
            agent = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environment, umask=0o077,
                start_new_session=True,
            )  # fmt: skip
    except OSError as error:
        return None, f"{type(error).__name__}: {error}"
    return agent, ""


def outlast(agent) -> int:  # type: ignore[no-untyped-def]
    """Waits for the agent's end, also if somebody interrupts this cell."""
    while True:
        with contextlib.suppress(KeyboardInterrupt):
            return int(agent.wait())


def leave(root: Path, code: int | None, why: str) -> None:
    """Says that the agent has ended: whatever it left in its outbox is all there will be."""
    temporary = root / f".{LEFT}"
    temporary.write_text(json.dumps({"code": code, "why": why}))
    temporary.rename(root / LEFT)


def give_back() -> None:
    """Gives the machine back, so that it uses no more units."""
    try:
        importlib.import_module("google.colab.runtime").unassign()
    except Exception as error:  # noqa: BLE001 - it may not be there; Colab ends idle machines itself
        say(f"the machine was not given back: {type(error).__name__}: {error}")


def say(text: str) -> None:
    sys.stdout.write(f"orchestrator: {text}\n")
    sys.stdout.flush()
