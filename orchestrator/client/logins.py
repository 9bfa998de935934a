"""Logs a platform in, on the terminal of the person who asks for it."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.client.wiring import Wired
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.platforms.platform import LoggingIn


def log_in(wired: Wired, name: str, say: Callable[[str], None]) -> None:
    """`say` takes a line of progress. Raises InputError if there is no such platform or if it has no login of
    its own, and AccessDenied if the login is refused."""
    given = {each.name: each for each in wired.config.platforms}
    if name not in given:
        raise InputError(unknown(f"platform {name!r}", name, sorted(given)))
    platform = wired.bare(given[name])
    if not isinstance(platform, LoggingIn):
        raise InputError(f"{name} ({given[name].type}) needs no login: its options say how it is reached")
    platform.log_in(say)
