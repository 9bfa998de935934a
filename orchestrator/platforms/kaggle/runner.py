"""The program that Kaggle runs: finds its materials, starts the agent and prints its status to the log.

This file's text is pushed as the kernel, with a call of `main` appended. So it uses only the standard
library and nothing of ours. It does not trust mounts, which may be stale
(docs/references/kaggle.md#inputs): it checks the hash of every file. If it cannot start the agent, it writes
the result itself, in the agent's format. Must never print a secret, because Kaggle keeps a kernel's log.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

INPUT, WORKING, SCRATCH = "/kaggle/input", "/kaggle/working", "/kaggle/tmp"
SAYS = "orchestrator: "
_CHUNK = 1 << 20


class Unfit(Exception):
    """This machine lacks something that the session needs. Another attempt may have it."""


def main(session: dict) -> int:  # type: ignore[type-arg]
    """Runs the session. Returns the kernel's exit code: 0 if there is a result.

    `session` has: `name`; `files`, name → sha256 of the materials and perhaps the checkpoint; `hand_over`,
    the name of a checkpoint in another kernel's output, or null; `hand_over_sha256`, the hash of its
    manifest, or null if unknown; `machine`, the quota it spends, and `seconds`, its limit, both for the log;
    `settings` of the agent; `report_seconds`.
    """
    root = Path(SCRATCH, session["name"])
    outbox = Path(WORKING, "outbox")
    root.mkdir(parents=True)
    outbox.mkdir(parents=True, exist_ok=True)
    (root / "outbox").symlink_to(outbox)
    try:
        _say(f"{session['name']} on a {session['machine']} for {session['seconds']} s")
        lay_out(session, root)
    except (Unfit, OSError, tarfile.TarError) as error:
        refuse(outbox, f"{type(error).__name__}: {error}" if not isinstance(error, Unfit) else str(error))
        return 1
    code = live(root, session["settings"], session["report_seconds"])
    for path in sorted(outbox.rglob(".tmp-*")):
        if path.is_file():
            path.unlink()
    return code


# --- Before -----------------------------------------------------------------------------------------------


def lay_out(session: dict, root: Path) -> None:  # type: ignore[type-arg]
    """Puts the session folder (docs/session-folder.md) together in `root`. Raises Unfit."""
    for name, sha256 in session["files"].items():
        with tarfile.open(verified(name, sha256)) as archive:
            unpack(archive, root)
    if session["hand_over"] is not None:
        manifest = handed_over(session["hand_over"], session["hand_over_sha256"])
        (root / "staged").symlink_to(manifest.parents[2])  # the agent checks every byte of it


def handed_over(name: str, sha256: str | None) -> Path:
    """The manifest of the accepted checkpoint, in the output of the previous kernel."""
    found = sorted(Path(INPUT).rglob(f"checkpoints/{name}/manifest.json"))
    for path in found:
        if sha256 is None or digest(path) == sha256:
            return path
    seen = "was replaced in" if found else "is not in"
    raise Unfit(f"checkpoint {name} {seen} the output of the previous kernel")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(name: str, sha256: str) -> Path:
    """Finds the file of this name and content. It searches, because Kaggle has renamed folders before."""
    found = sorted(Path(INPUT).rglob(name))
    for path in found:
        if digest(path) == sha256:
            return path
    mounted = sorted(str(path.relative_to(INPUT)) for path in Path(INPUT).rglob("*") if path.is_file())[:20]
    seen = "was changed on the way" if found else "was not mounted"
    raise Unfit(f"{name} {seen}; mounted files: {', '.join(mounted) or 'none'}")


def unpack(archive: tarfile.TarFile, root: Path) -> None:
    """Unpacks files and folders. There is nothing else: we packed it, and its hash was checked."""
    for member in archive:
        path = root / member.name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(member)
        assert content is not None
        with content, path.open("wb") as file:
            os.fchmod(file.fileno(), member.mode & 0o700)
            shutil.copyfileobj(content, file, _CHUNK)


def refuse(outbox: Path, message: str) -> None:
    """Writes the result of a session whose agent never started. LOST lets the run continue elsewhere."""
    who = secrets.token_hex(8)
    result = {"incarnation": who, "outcome": "lost", "exit_code": None, "step": None, "message": message}
    (outbox / "incarnation").write_text(f"{who}\n")
    (outbox / "result.json").write_text(json.dumps(result))
    _say(f"the session cannot start: {message}")


# --- Beside the agent -------------------------------------------------------------------------------------


def live(root: Path, settings: dict, report_seconds: float) -> int:  # type: ignore[type-arg]
    """Runs the agent until it ends. Prints its status every `report_seconds` if it has changed."""
    command = [sys.executable, str(root / "agent.pyz"), str(root), "--settings", json.dumps(settings)]
    agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.send_signal(signal.SIGTERM))
    told = ""
    while True:
        try:
            code = agent.wait(report_seconds)
        except subprocess.TimeoutExpired:
            told = tell(root, told)
        else:
            tell(root, told)
            return code


def tell(root: Path, told: str) -> str:
    """Prints the status unless it was printed before. Returns the last one printed."""
    try:
        status = json.dumps(json.loads((root / "outbox" / "status.json").read_text()))
    except (OSError, ValueError):
        return told
    if status != told:
        _say(status)
    return status


def _say(text: str) -> None:
    sys.stdout.write(f"{SAYS}{text}\n")
    sys.stdout.flush()
