"""What a person does to add a platform to their config, by its type."""

from __future__ import annotations

from orchestrator.client.home import Home
from orchestrator.platforms.kaggle import credentials

# By type: what to do first, the line in the config, and what to do then.
_STEPS = {
    "kaggle": (f"{credentials.TO_LOG_IN}, and ", credentials.ENTRY, ""),
    "colab": ("", "colab: {type: colab}", ", and run `orchestrator colab login colab`"),
}
TRIED = ("kaggle", "colab")  # the types with a service that `doctor --live` can try


def how_to_add(home: Home, type: str) -> str | None:
    """The steps, as a clause; None for a type that needs no account."""
    if type not in _STEPS:
        return None
    first, entry, then = _STEPS[type]
    return f"{first}add the line `{entry}` to `platforms` in {home.folders.config}{then}"
