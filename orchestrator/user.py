"""This machine's user: their home folder, the folders in it, and their name.

Any of them may be missing: in a container that runs under an arbitrary uid, or in a bare cron job. Only this
module asks for them, so that each message says what is missing. Must never know what a folder is for.
"""

from __future__ import annotations

import getpass
import os
import pwd
from pathlib import Path

from orchestrator.errors import InputError


class NoHome(InputError, ValueError):
    """It is not known where this user's home folder is. A ValueError too: pydantic then names the option."""


def home() -> Path:
    """`$HOME`, else what the system's list of users says. As in platformdirs, a HOME that is no absolute path
    does not count: it would be another folder in each folder that a command runs in. Raises NoHome."""
    given = os.environ.get("HOME", "")
    if given.startswith("/"):
        return Path(given)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        what = f"HOME is {given!r}, which is no absolute path," if given else "HOME is not set"
        raise NoHome(f"{what} and no passwd entry names a home folder of uid {os.getuid()}") from None


def known_home() -> Path | None:
    """The same for somebody who only looks there."""
    try:
        return home()
    except NoHome:
        return None


def expanded(path: Path) -> Path:
    """The path with a user's home folder in place of `~`. Raises NoHome if that is not known."""
    first = path.parts[0] if path.parts else ""
    if not first.startswith("~"):
        return path
    try:
        return Path(home(), *path.parts[1:]) if first == "~" else path.expanduser()
    except NoHome as error:
        raise NoHome(f"~ in {str(path)!r} is not known: {error}; write the whole path, or set HOME") from None
    except RuntimeError:
        raise NoHome(f"the home folder of {first!r} is not known: write the whole path") from None


def data(name: str) -> Path:
    """This user's folder for the data of a program. Raises NoHome."""
    from platformdirs import user_data_path

    try:
        return user_data_path(name, appauthor=False)
    except RuntimeError:
        home()
        raise


def cache(name: str) -> Path:
    """This user's folder for what a program can make again. Raises NoHome."""
    from platformdirs import user_cache_path

    try:
        return user_cache_path(name, appauthor=False)
    except RuntimeError:
        try:
            home()
        except NoHome as error:
            raise NoHome(f"this user's cache is not known: {error}; set HOME or XDG_CACHE_HOME") from None
        raise


def name() -> str:
    """The user's name. Raises InputError."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        raise InputError(
            f"this user has no name: USER is not set, and no passwd entry names uid {os.getuid()}; set USER"
        ) from None
