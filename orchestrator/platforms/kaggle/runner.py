"""The program that Kaggle runs: finds its materials, starts the agent, and prints its status and the end of
the training's log to Kaggle's own log.

This file's text is pushed as the kernel, with a call of `main` appended. So it uses only the standard
library and nothing of ours. It does not trust mounts, which may be stale
(docs/references/kaggle.md#inputs): it checks the hash of every file. If it cannot start the agent, it writes
the result itself, in the agent's format. Must never print a secret, because Kaggle keeps a kernel's log; the
agent has masked those in what it writes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import traceback
from pathlib import Path

INPUT, WORKING, SCRATCH = "/kaggle/input", "/kaggle/working", "/kaggle/tmp"
SAYS = "orchestrator: "
QUOTES = "| "  # begins a line of the training's log
LINE_MAX = 500  # characters
TAIL_BYTES, TAIL_LINES = 4096, 20  # of the log, at each report
END_BYTES, END_LINES = 32768, 200  # at the end
QUOTED_BYTES_MAX = 2 << 20  # in all: nobody knows how much Kaggle keeps of a log
MOUNT_PAUSE_SECONDS = 5.0
MOUNT_DEPTH = 3  # folders: datasets/owner/slug
_CHUNK = 1 << 20
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029]")


class Unfit(Exception):
    """This machine lacks something that the session needs. Another attempt may have it."""


def main(session: dict) -> int:  # type: ignore[type-arg]
    """Runs the session. Returns the kernel's exit code: 0 if there is a result.

    `session` has: `name`; `files`, name → sha256 of the materials and perhaps the checkpoint; `inputs`, name
    → `place`, `path` and `sha256` of those that Kaggle mounts itself; `hand_over`, the name of a checkpoint
    in another kernel's output, or null; `hand_over_sha256`, the hash of its manifest, or null if unknown;
    `header`, how many bytes come before the archive in each of the files;
    `mount_seconds`, how long all of them may take to appear; `machine`, the quota it spends, and `seconds`,
    its limit, both for the log; `home`, by which doctor knows whose the kernel is; `settings` of the agent;
    `report_seconds`.
    """
    root = Path(SCRATCH, session["name"])
    outbox = Path(WORKING, "outbox")
    root.mkdir(parents=True)
    outbox.mkdir(parents=True, exist_ok=True)
    try:
        _say(f"{session['name']} on a {session['machine']} for {session['seconds']} s")
        number = session_id(os.environ)
        if number is not None:
            _say(json.dumps({"session_id": number}))
        lay_out(session, root)
    except Unfit as error:
        refuse(outbox, str(error))
        return 1
    except (OSError, tarfile.TarError) as error:
        sys.stdout.write(traceback.format_exc())
        refuse(outbox, f"{type(error).__name__}: {error}")
        return 1
    code = live(root, outbox, session["settings"], session["report_seconds"])
    for path in sorted(outbox.rglob(".tmp-*")):
        if path.is_file():
            path.unlink()
    sizes = {path: path.stat().st_size for path in outbox.rglob("*") if path.is_file()}
    empty = sorted(str(path.relative_to(outbox)) for path, size in sizes.items() if size == 0)
    _say(json.dumps({"left": code, "files": len(sizes) - len(empty), "empty": empty}))
    return code


def session_id(environ) -> int | None:  # type: ignore[no-untyped-def]
    """What Kaggle calls this session: the digits at the end of its container's name
    (docs/references/kaggle.md#cancelling-and-deleting). None if it does not say."""
    match = re.search(r"(\d+)$", environ.get("KAGGLE_CONTAINER_NAME", ""))
    return None if match is None else int(match[1])


# --- Before -----------------------------------------------------------------------------------------------


def lay_out(session: dict, root: Path) -> None:  # type: ignore[type-arg]
    """Puts the session folder (docs/session-folder.md) together in `root`. Raises Unfit."""
    seconds = session["mount_seconds"]
    for name, sha256 in session["files"].items():
        path, seconds = appeared(lambda name=name, sha256=sha256: verified(name, sha256), seconds)
        with path.open("rb") as file:
            file.seek(session["header"])
            with tarfile.open(fileobj=file) as archive:
                unpack(archive, root)
    for name, wanted in session.get("inputs", {}).items():
        path, seconds = appeared(lambda name=name, wanted=wanted: mounted_input(name, wanted), seconds)
        (root / "inputs").mkdir(exist_ok=True)
        (root / "inputs" / name).symlink_to(path)
    name, sha256 = session["hand_over"], session["hand_over_sha256"]
    if name is not None:
        manifest, _ = appeared(lambda: handed_over(name, sha256), seconds)
        (root / "staged").symlink_to(manifest.parents[2])  # the agent checks every byte of it


def appeared(find, seconds: float) -> tuple[Path, float]:  # type: ignore[no-untyped-def]
    """What `find` returns, as soon as it does not raise Unfit: inputs may be mounted late. And how many of
    these seconds are left. Raises Unfit after them."""
    while True:
        try:
            return find(), seconds
        except Unfit as missing:
            if seconds <= 0:
                raise
            _say(f"{missing}; looking again for {seconds:.0f} s")
        pause = min(seconds, MOUNT_PAUSE_SECONDS)
        threading.Event().wait(pause)
        seconds -= pause


def mounted(file: str | None = None) -> list[Path]:
    """The input files of this name, or all of them, also behind links, which Kaggle uses for some inputs. No
    folder is entered twice, so a circle of links ends."""
    found, entered = [], set()
    for folder, folders, files in os.walk(INPUT, followlinks=True):
        here = Path(folder)
        entered.add(here.resolve())
        folders[:] = [each for each in sorted(folders) if (here / each).resolve() not in entered]
        found += [here / each for each in files if file in (None, each)]
    return sorted(found)


def handed_over(name: str, sha256: str | None) -> Path:
    """The manifest of the accepted checkpoint, in the output of the previous kernel."""
    found = [path for path in mounted("manifest.json") if path.parts[-3:-1] == ("checkpoints", name)]
    for path in found:
        if sha256 is None or digest(path) == sha256:
            return path
    seen = "was replaced in" if found else "is not in"
    raise Unfit(f"checkpoint {name} {seen} the output of the previous kernel")


def mounted_input(name: str, wanted: dict) -> Path:  # type: ignore[type-arg]
    """An input in the data set that Kaggle has mounted, wherever that is, with the content that is wanted."""
    owner, slug = wanted["place"].split("/")
    given: list[Path] = [each / wanted["path"] for each in folders_named(slug)]
    found = [each for each in given if each.exists()]
    for path in sorted(found, key=lambda each: owner not in each.parts):
        if whole_digest(path) == wanted["sha256"]:
            return path
    seen = "has other content than at the submit" if found else "was not mounted"
    raise Unfit(
        f"input {name}: {wanted['place']} {seen}; `mount_inputs: false` for this platform uploads it instead"
    )


def folders_named(slug: str) -> list[Path]:
    """Folders of this name, not far below the inputs."""
    found: list[Path] = []
    places = [Path(INPUT)]
    for _ in range(MOUNT_DEPTH):
        places = [
            each for place in places if place.is_dir() for each in sorted(place.iterdir()) if each.is_dir()
        ]
        found += [each for each in places if each.name == slug]
        places = [each for each in places if each.name != slug]
    return found


def whole_digest(path: Path) -> str:
    """Of a file, or of a folder as a submit makes it: the sha256 of its sorted lines `<sha256>  <path>`."""
    if path.is_file():
        return digest(path)
    files = [Path(here) / name for here, _, names in os.walk(path, followlinks=True) for name in names]
    named = sorted((each.relative_to(path).as_posix(), each) for each in files)
    lines = "".join(f"{digest(each)}  {name}\n" for name, each in named)
    return hashlib.sha256(lines.encode("utf-8", "surrogateescape")).hexdigest()


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified(name: str, sha256: str) -> Path:
    """Finds the file of this name and content. It searches, because Kaggle has renamed folders before."""
    found = mounted(name)
    for path in found:
        if digest(path) == sha256:
            return path
    others = [str(path.relative_to(INPUT)) for path in mounted()][:20]
    seen = "was changed on the way" if found else "was not mounted"
    raise Unfit(f"{name} {seen}; mounted files: {', '.join(others) or 'none'}")


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


def live(root: Path, outbox: Path, settings: dict, report_seconds: float) -> int:  # type: ignore[type-arg]
    """Runs the agent until it ends. Prints its status every `report_seconds` if it has changed."""
    settings = settings | {"outbox": str(outbox)}  # Kaggle keeps what is in its working folder
    command = [sys.executable, str(root / "agent.pyz"), str(root), "--settings", json.dumps(settings)]
    agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: agent.send_signal(signal.SIGTERM))
    told, quoted = "", Quoted(outbox / "log")
    while True:
        try:
            code = agent.wait(report_seconds)
        except subprocess.TimeoutExpired:
            quoted.quote()
            told = tell(outbox, told)
        else:
            quoted.finish()
            tell(outbox, told)
            explain(outbox)
            return code


class Quoted:
    """Prints what is new in the training's log, or only its end if that is much. So a session whose output is
    lost still explains itself."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segment, self._read_to = "", 0  # up to which byte it was printed
        self._left = QUOTED_BYTES_MAX

    def quote(self) -> None:
        """Prints whole lines. What the end may need is left over."""
        data = self._fresh(TAIL_BYTES)
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to -= len(data) - len(whole)
        self._print(whole, TAIL_LINES, keep=END_BYTES)

    def finish(self) -> None:
        self._print(self._fresh(END_BYTES), END_LINES, keep=0)

    def _fresh(self, size: int) -> bytes:
        """What is new, but at most the last `size` bytes."""
        try:
            segment = max(self._folder.glob("*.log"))
            start = self._read_to if segment.name == self._segment else 0
            with segment.open("rb") as file:
                start = max(start, file.seek(0, os.SEEK_END) - size)
                file.seek(start)
                data = file.read(size)
        except (OSError, ValueError):  # there is no log
            return b""
        self._segment, self._read_to = segment.name, start + len(data)
        return data

    def _print(self, data: bytes, count: int, keep: int) -> None:
        lines = [line for line in data.decode("utf-8", "replace").split("\n") if line.strip()]
        for line in lines[-count:]:
            text = _UNPRINTABLE.sub(" ", line)[:LINE_MAX]
            if len(text.encode()) <= self._left - keep:
                self._left -= len(text.encode())
                sys.stdout.write(f"{QUOTES}{text}\n")
        sys.stdout.flush()


def explain(outbox: Path) -> None:
    """Prints how the session ended, by the agent's result."""
    try:
        result = json.loads((outbox / "result.json").read_text())
        _say(_UNPRINTABLE.sub(" ", f"{result['outcome']}: {result['message']}")[:LINE_MAX])
    except (OSError, ValueError, KeyError, TypeError):
        _say("the agent has left no result")


def tell(outbox: Path, told: str) -> str:
    """Prints the status unless it was printed before. Returns the last one printed."""
    try:
        status = json.dumps(json.loads((outbox / "status.json").read_text()))
    except (OSError, ValueError):
        return told
    if status != told:
        _say(status)
    return status


def _say(text: str) -> None:
    sys.stdout.write(f"{SAYS}{text}\n")
    sys.stdout.flush()
