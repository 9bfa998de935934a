"""The platforms that a person logs in to."""

from __future__ import annotations

from orchestrator.client.adding import how_to_add
from orchestrator.client.home import Home
from orchestrator.client.wiring import Wired
from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.platforms.platform import LoggingIn


def platform(home: Home, wired: Wired, name: str) -> LoggingIn:
    """Raises InputError if there is no such platform, or if it has no login of its own."""
    given = {each.name: each for each in wired.config.platforms}
    if name not in given:
        text = unknown(f"platform {name!r}", name, sorted(given))
        raise InputError(f"{text}\nTo use Google Colab: {how_to_add(home, 'colab')}")
    found = wired.bare(given[name])
    if not isinstance(found, LoggingIn):
        raise InputError(f"{name} ({given[name].type}) needs no login: its options say how it is reached")
    return found
