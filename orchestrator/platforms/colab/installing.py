"""Installs Colab's command line: complete or not at all, and never twice at the same time.

It takes up to some minutes, which is longer than most callers wait. So a process of its own does it, and
goes on if its caller stops waiting or ends. Decides with which Python. Must never know what the command line
is for.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import AccessDenied, Preparing, Transient
from orchestrator.files import flock, make_folder, open_file, remove_tree, written
from orchestrator.files.drafts import draft_folder, set_aside, sweep
from orchestrator.files.reading import read_small
from orchestrator.user import known_home

LOCK = Path(__file__).with_name("cli.lock")
OLDEST = (3, 12)
INSTALL_SECONDS = 600.0
_PYTHONS = ">=3.12,<3.16"
_SAID_MAX = 500
_DENIED = 3  # the exit code if a person must act
_UNDER_WAY = "Google Colab's command line is being installed, which may take some minutes; try again later"


def install(place: Path, python: Path | None, seconds: float | None, say: Callable[[str], None]) -> None:
    """Installs the command line in the folder `place`, with this interpreter or the newest that is found.
    Does nothing if it is there. With `seconds`, raises Preparing if it is not there after that time: the
    installation goes on. Raises AccessDenied if there is no suitable Python, with the commands that help;
    Transient if the packages cannot be fetched."""
    place = place.absolute()
    with _only_one(place.parent, wait=seconds is None) as lock:
        if (place / "bin" / "python").exists():
            return
        say("Installing Google Colab's command line")
        sweep(place.parent)
        path = place.parent / "colab-cli.said"
        failed = _said(path)  # by an installation that nobody waited for
        with written(path) as output:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(place), str(python or "")], umask=0o077,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                pass_fds=[lock],  # held until its end
            )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            threading.Thread(target=process.wait, daemon=True).start()
            more = f" (it failed before: {failed})" if failed else ""
            raise Preparing(f"{_UNDER_WAY}{more}", retried=True) from None
        said = _said(path)
        remove_tree(path)
    if code == _DENIED:
        raise AccessDenied(said)
    if code:
        raise Transient(f"Google Colab's command line cannot be installed: {said}")


def main(place: Path, python: Path | None) -> int:
    """The process that installs. What it prints is the reason why it failed."""
    try:
        _install(place, find_python(python))
    except AccessDenied as error:
        sys.stdout.write(str(error))
        return _DENIED
    except (UvFailed, OSError) as error:
        sys.stdout.write(str(error))
        return 1
    return 0


def _install(place: Path, python: Path) -> None:
    with draft_folder(place.parent, 0o700) as draft:
        _uv("venv", "--no-project", "--allow-existing", "--python", str(python), str(draft))
        _uv(
            "pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--python",
            str(draft / "bin" / "python"), "--compile-bytecode", "--requirements", str(LOCK),
        )  # fmt: skip
        set_aside(place)  # its interpreter may be gone
        draft.rename(place)


def find_python(given: Path | None = None) -> Path:
    """A Python that the command line runs on: the given one, or one that is found. Raises AccessDenied with
    the commands that help."""
    from uv import find_uv_bin

    try:
        if given is None:
            return Path(_uv("python", "find", "--no-project", _PYTHONS).strip())
        version = _uv("python", "find", "--no-project", "--show-version", str(given)).strip()
    except UvFailed as error:
        if given is not None:
            raise AccessDenied(f"{given} does not start: {error}") from error
        raise AccessDenied(
            "Google Colab's command line needs Python 3.12 or newer, and none was found.\n"
            f"To get one:  {find_uv_bin()} python install 3.13\n"
            "Or name one with the platform's option `python`"
        ) from error
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise AccessDenied(f"{given} is Python {version}; Colab's command line needs 3.12 or newer")
    return given


class UvFailed(Exception):
    """What uv said."""


def _uv(*words: str) -> str:
    """Runs uv and returns what it printed. Raises UvFailed."""
    from uv import find_uv_bin

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"PATH": os.pathsep.join([environ.get("PATH", os.defpath), *map(str, _pythons())])}
    if index := environ.get("PIP_INDEX_URL"):
        environ.setdefault("UV_DEFAULT_INDEX", index)
    environ.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            [find_uv_bin(), *words, "--no-config", "--no-python-downloads"], env=environ,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UvFailed(f"uv: {type(error).__name__}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-_SAID_MAX:]
        raise UvFailed(said or f"uv ended with {done.returncode}")
    return done.stdout.decode()


def _pythons() -> Iterator[Path]:
    """pyenv's interpreters: on the PATH it has only programs that refuse to start without a choice."""
    home = known_home()
    if root := os.environ.get("PYENV_ROOT") or (home and home / ".pyenv"):
        yield from sorted(Path(root).glob("versions/*/bin"), reverse=True)


def _said(path: Path) -> str:
    return (read_small(path, 1 << 16) or b"").decode("utf-8", "replace").strip()


@contextmanager
def _only_one(folder: Path, *, wait: bool) -> Iterator[int]:
    """Holds the lock of the installation, as a descriptor. Raises Preparing rather than wait."""
    make_folder(folder, 0o700)
    lock = open_file(folder / "colab-cli.lock", os.O_RDWR | os.O_CREAT)
    try:
        kind = fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB
        if not flock(lock, kind, folder, "XDG_CACHE_HOME"):
            raise Preparing(_UNDER_WAY, retried=True)
        yield lock
    finally:
        os.close(lock)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2] else None))
