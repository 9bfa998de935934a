"""What a person does to add a platform to their config, by its type."""

from __future__ import annotations

from orchestrator.client.home import Home
from orchestrator.platforms.kaggle import credentials

_STEPS = {"kaggle": (credentials.TO_LOG_IN, credentials.ENTRY)}


def how_to_add(home: Home, type: str) -> str | None:
    """The steps, as a clause; None for a type that needs no account."""
    if type not in _STEPS:
        return None
    first, entry = _STEPS[type]
    return f"{first}, and add the line `{entry}` to `platforms` in {home.folders.config}"
