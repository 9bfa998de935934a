"""The URL of the ledger's database, as the config gives it or refers to it. Never shows a password."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import InputError
from orchestrator.references import REFERENCE, resolve
from orchestrator.spec.mistakes import unknown

_DIALECTS = ("sqlite", "postgresql", "postgresql+psycopg")
_URL = re.compile(r"([A-Za-z0-9_+.-]+)://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"://[^@]*:[^@]*@|[?&](password|sslpassword)=", re.IGNORECASE)


class Database:
    """The URL that `database:` gives, or the problem with it. No message repeats any part of it."""

    def __init__(self, home: Path, given: object) -> None:
        self.url: str | None = None
        self.problem: str | None = None
        if not isinstance(given, str) or not given:
            return
        literal = REFERENCE.fullmatch(given) is None
        try:
            url = given if literal else resolve(given, home)
            self.url = _checked(url, home, literal=literal)
        except InputError as error:
            self.problem = str(error)


def _checked(url: str, home: Path, *, literal: bool) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise InputError("not a URL; valid: sqlite:///PATH, postgresql://HOST/NAME, env:NAME or file:PATH")
    dialect, rest = match.groups()
    if literal and dialect != "sqlite" and _PASSWORD.search(url):
        raise InputError(
            "the config may not contain a password; write the whole URL into an environment variable or a "
            "file that only you can read, and refer to it: env:NAME or file:PATH"
        )
    if dialect not in _DIALECTS:
        raise InputError(unknown("database", dialect, _DIALECTS))
    if dialect != "sqlite":
        return f"postgresql+psycopg://{rest}"
    path = rest.removeprefix("/")
    if not rest.startswith("/") or path.split("?")[0] in ("", ":memory:"):
        raise InputError("not a file; valid: sqlite:///PATH, because the ledger must outlive the process")
    return f"sqlite:///{home / path}"
