"""Finds an account's credentials, in the places where the `kaggle` package itself looks.

Reads only what it is given: makes no request, no folder and no cache. Must never repeat a key in any text.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.files import read_own
from orchestrator.user import expanded

SETTINGS = "kaggle.com/settings → API"
TO_LOG_IN = f"save a token of {SETTINGS} as ~/.kaggle/access_token"
ENTRY = "kaggle: {type: kaggle}"  # in a config
_TOKEN_FILES = ("access_token", "access_token.txt")
_KEY_FILE = "kaggle.json"
_FILE_BYTES_MAX = 1 << 16


@dataclass(frozen=True)
class Credentials:
    """An access token, or a user name with a legacy key. A token takes precedence.

    The name may be empty with a token, because a token identifies its user. Raises InputError for characters
    that an HTTP header cannot contain, without repeating the value.
    """

    username: str
    key: str = field(repr=False, default="")
    token: str = field(repr=False, default="")

    def __post_init__(self) -> None:
        if not (self.token or (self.username and self.key)):
            raise InputError(f"needs a Kaggle token, or a username and a key; get one at {SETTINGS}")
        for what, value in (("username", self.username), ("key", self.key), ("token", self.token)):
            if not (value.isascii() and value.isprintable()) or " " in value:
                raise InputError(
                    f"the Kaggle {what} contains spaces or other invalid characters; copy it again"
                )

    @property
    def secrets(self) -> tuple[str, ...]:
        """The values that no text may contain."""
        return tuple(each for each in (self.key, self.token) if each)


def find(environ: Mapping[str, str], home: Path | None) -> Credentials | None:
    """What kaggle itself would use, in its own order (docs/references/kaggle.md#credentials).

    First KAGGLE_API_TOKEN (a token, or the path of one), then ~/.kaggle/access_token. Then KAGGLE_USERNAME
    and KAGGLE_KEY, which override kaggle.json. None if there is nothing. A browser login does not count: it
    would have to be renewed over the network.

    Raises InputError if a file exists but contains no credentials.
    """
    token = _token(environ, home)
    if token:
        return Credentials(environ.get("KAGGLE_USERNAME", ""), token=token)
    found = _key_file(environ, home)
    stored = {} if found is None else _read(found)
    username = environ.get("KAGGLE_USERNAME") or stored.get("username", "")
    key = environ.get("KAGGLE_KEY") or stored.get("key", "")
    return Credentials(username, key=key) if username and key else None


def exposed(environ: Mapping[str, str], home: Path | None) -> tuple[Path, ...]:
    """The credential files that other users of this machine can read (fix: `chmod 600`)."""
    found = [] if home is None else [home / ".kaggle" / name for name in _TOKEN_FILES]
    key_file = _key_file(environ, home)
    found += [] if key_file is None else [key_file]
    open_to_others = stat.S_IRWXG | stat.S_IRWXO
    return tuple(path for path in found if path.is_file() and path.stat().st_mode & open_to_others)


def _token(environ: Mapping[str, str], home: Path | None) -> str:
    given = environ.get("KAGGLE_API_TOKEN", "").strip()
    if given and not _is_file(Path(given)):
        return given
    places = [] if home is None else [home / ".kaggle" / name for name in _TOKEN_FILES]
    return next((text for path in ([Path(given)] if given else places) if (text := _text(path))), "")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a long token is not a path
        return False


def _text(path: Path) -> str:
    return read(path) if _is_file(path) else ""


def read(path: Path) -> str:
    """The text of a credentials file. The path may begin with ~/. Raises InputError."""
    place = expanded(path)
    try:
        return read_own(place, _FILE_BYTES_MAX).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be read ({getattr(error, 'strerror', None) or 'not text'})"
        ) from None


def _key_file(environ: Mapping[str, str], home: Path | None) -> Path | None:
    config = environ.get("XDG_CONFIG_HOME") or (home and home / ".config")
    places = ([] if home is None else [home / ".kaggle"]) + ([Path(config, "kaggle")] if config else [])
    moved = environ.get("KAGGLE_CONFIG_DIR")
    folders = [Path(moved)] if moved else places
    return next((path for folder in folders if _is_file(path := folder / _KEY_FILE)), None)


def _read(path: Path) -> dict[str, str]:
    text = _text(path)
    try:
        stored = json.loads(text or "{}")
        return {name: str(stored.get(name) or "") for name in ("username", "key")}
    except (ValueError, AttributeError):
        raise InputError(f"{path} is not a Kaggle key file; get a new one at {SETTINGS}") from None
