"""The program in the notebook's one cell: takes the Secret, starts the worker, shows what it says.

This file's text is written into the notebook, with a call of `main` appended. So it uses only the standard
library and nothing of ours. The cell stays busy while the worker runs, because Colab takes back a machine
whose kernel is idle. Must never print the Secret, nor pass it in an argument, a variable of the environment,
or a file.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

_PIP = (
    "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--require-hashes",
    "--no-deps", "--only-binary", ":all:",
)  # fmt: skip


def main(notebook: dict) -> None:  # type: ignore[type-arg]
    """Attends to the mailbox until the cell is interrupted.

    `notebook` has: `mailbox`, its name; `accelerator`; `secret`, the name of the Colab Secret; `place`, a
    name of the store that it opens; `program`, the worker as one zip application in base64; `packages`, the
    locked list of what it needs.
    """
    secret = _secret(notebook["secret"], notebook["mailbox"])
    if secret is None:
        return
    folder = Path.cwd() / f".orchestrator-{notebook['mailbox']}"
    folder.mkdir(mode=0o700, exist_ok=True)
    program = _unpacked(folder, base64.b64decode(notebook["program"]))
    site = _installed(folder, notebook["packages"], notebook["mailbox"])
    if site is None:
        return
    # With packages of its own it sees no others: versions of both would not fit together.
    alone, own = (["-S"], [str(site)]) if notebook["packages"] else ([], [])
    words = [notebook["mailbox"], notebook["accelerator"], notebook["place"], str(folder / "sessions"), *own]
    worker = subprocess.Popen(
        [sys.executable, *alone, str(program), "work", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,  # an interrupt of the cell is for us alone
    )
    assert worker.stdin is not None
    try:
        worker.stdin.write(f"{secret}\n")
        worker.stdin.close()
    except OSError:
        pass  # it has ended, and says why
    _show(worker)


def _secret(name: str, mailbox: str) -> str | None:
    """The Secret's text; None, and said why, if there is none."""
    once = f"`orchestrator colab notebook {mailbox}` prints what to paste."
    try:
        userdata = import_module("google.colab.userdata")
    except ImportError:
        _say("This notebook runs in Google Colab only: open it at https://colab.research.google.com.")
        return None
    try:
        found = userdata.get(name)
    except Exception as error:  # noqa: BLE001 any of Colab's own, whose classes change
        kind = type(error).__name__
        if "NotFound" in kind:
            _say(f"There is no Secret {name}: click the key on the left, add it, and paste its value. {once}")
        elif "Access" in kind:
            _say(
                f"This notebook may not read the Secret {name}: click the key on the left, and switch it on."
            )
        else:
            _say(f"Colab did not give the Secret {name} ({kind}): run this cell again.")
        return None
    if not isinstance(found, str) or not found.strip():
        _say(f"The Secret {name} is empty. {once}")
        return None
    return "".join(found.split())


def _unpacked(folder: Path, data: bytes) -> Path:
    """Under the name of its content, so that two notebooks on one machine do not disturb each other."""
    path = folder / f"worker-{hashlib.sha256(data).hexdigest()[:16]}.pyz"
    if not path.exists():
        draft = folder / f"draft-{os.getpid()}"
        draft.write_bytes(data)
        draft.rename(path)
    return path


def _installed(folder: Path, packages: str, mailbox: str) -> Path | None:
    """The folder with the packages, which nothing else on this machine sees; None if pip failed."""
    site = folder / f"site-{hashlib.sha256(packages.encode()).hexdigest()[:16]}"
    if site.exists() or not packages:
        return site
    _say("Installing what the worker needs, checked by hashes …")
    draft = folder / f"site-draft-{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    listed = folder / f"packages-{os.getpid()}.lock"
    listed.write_text(packages)
    words = [sys.executable, *_PIP, "--target", str(draft), "-r", str(listed)]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    listed.unlink()
    if done.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        _say(f"pip could not install them: {_fault(done.stderr or done.stdout)}")
        _say(
            "Run this cell again. If that does not help, make a new notebook with a newer version of "
            f"`orchestrator colab notebook {mailbox}`."
        )
        return None
    try:
        draft.rename(site)
    except OSError:  # another notebook on this machine was faster
        shutil.rmtree(draft, ignore_errors=True)
    return site


def _fault(said: str) -> str:
    """The line in which pip says what went wrong: its last ones are details, such as hashes."""
    lines = said.strip().splitlines() or ["it said nothing"]
    return next((line for line in lines if line.startswith("ERROR:")), lines[-1])


def _show(worker: subprocess.Popen[str]) -> None:
    """Prints what the worker says, until it ends. An interrupt asks it to save and leave, a second one kills
    it."""
    assert worker.stdout is not None
    asked = False
    while True:
        try:
            for line in worker.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
            if worker.wait() < 0:
                _say(f"The worker was killed by signal {-worker.returncode}: run this cell again.")
            return
        except KeyboardInterrupt:
            if asked:
                worker.kill()
                _say("Killed. What was not shipped yet is lost.")
                return
            asked = True
            worker.send_signal(signal.SIGINT)
            _say("Saving and leaving; interrupt again to kill it at once.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
