"""The keys of an S3 store: looked up when they are used, so that a renewed key needs no restart.

Decides where a key comes from. Must never show one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import AccessDenied, InputError
from orchestrator.references import REFERENCE, resolve


@dataclass(frozen=True)
class Keys:
    """The keys as they are now. `token` is empty for a long-lived pair."""

    access_key: str = field(repr=False)
    secret_key: str = field(repr=False)
    token: str = field(default="", repr=False)


class Credentials:
    """Where the keys are. A config has references, which are relative to `home`; a session has the keys
    themselves, and no home."""

    def __init__(self, home: Path | None, access_key: str, secret_key: str, token: str = "") -> None:
        self._home = home
        self._given = {"access_key": access_key, "secret_key": secret_key, "session_token": token}

    def now(self, backend: str) -> Keys:
        """The present keys. Raises AccessDenied if one cannot be found, or cannot be a key."""
        found = {name: self._found(name, given, backend) for name, given in self._given.items()}
        return Keys(found["access_key"], found["secret_key"], found["session_token"])

    def _found(self, name: str, given: str, backend: str) -> str:
        value = given
        if self._home is not None and REFERENCE.fullmatch(given):
            try:
                value = resolve(given, self._home)
            except InputError as error:
                raise AccessDenied(f"`{name}` of the store {backend}: {error}", backend=backend) from None
        # A line break in a header would break off the request; obstore's error would quote the value.
        if not value.isascii() or not value.isprintable():
            message = f"`{name}` of the store {backend} is not a key: it has a line break or odd characters"
            raise AccessDenied(message, backend=backend)
        return value
