"""What Kaggle runs: finds its materials, hands them to the agent, and says in its log how that is doing.

This file's text is pushed as the kernel, with a call of `main` below it: standard library only, nothing of
ours, so it writes by itself. It trusts no mount, which may be stale (docs/references/kaggle.md#inputs):
every file is checked by its hash. Where it cannot start the agent it leaves the result itself, in the agent's
words, since whoever looks knows no other. Must never print a secret: a kernel's log is kept.
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
    """This machine was not given what the session needs; another attempt may be."""


def main(session: dict) -> int:  # type: ignore[type-arg]
    """Lives the session. `session` holds its `name`; `files`, name → sha256, of which one is the materials
    and one may be the checkpoint; `hand_over`, the name of a checkpoint in another kernel's output, or null,
    and `hand_over_sha256`, that of its manifest, or null where none was kept; `machine`, the quota it spends,
    and `seconds`, its limit, for the log; `settings` of the agent; `report_seconds`. Returns the kernel's
    exit code: 0 when there is a result."""
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
    """The manifest of the checkpoint in the output of the kernel before: the one that was accepted."""
    found = sorted(Path(INPUT).rglob(f"checkpoints/{name}/manifest.json"))
    for path in found:
        if sha256 is None or digest(path) == sha256:
            return path
    seen = "was replaced in" if found else "is not in"
    raise Unfit(f"checkpoint {name} {seen} the output of the kernel before")


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(name: str, sha256: str) -> Path:
    """Where the file of this name and content lies; by search: the folders have changed their names."""
    found = sorted(Path(INPUT).rglob(name))
    for path in found:
        if digest(path) == sha256:
            return path
    mounted = sorted(str(path.relative_to(INPUT)) for path in Path(INPUT).rglob("*") if path.is_file())[:20]
    seen = "arrived altered" if found else "was not mounted"
    raise Unfit(f"{name} {seen}; there are: {', '.join(mounted) or 'no inputs'}")


def unpack(archive: tarfile.TarFile, root: Path) -> None:
    """Files and folders only: we packed it, and it was verified."""
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
    """The result of a session whose agent never started: LOST sends the run on, from where it was."""
    who = secrets.token_hex(8)
    result = {"incarnation": who, "outcome": "lost", "exit_code": None, "step": None, "message": message}
    (outbox / "incarnation").write_text(f"{who}\n")
    (outbox / "result.json").write_text(json.dumps(result))
    _say(f"the session cannot start: {message}")


# --- Beside the agent -------------------------------------------------------------------------------------


def live(root: Path, settings: dict, report_seconds: float) -> int:  # type: ignore[type-arg]
    """Runs the agent to its end, telling its status every `report_seconds` where there is news."""
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
    """Prints the status, unless it was told already; returns what was told last."""
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
