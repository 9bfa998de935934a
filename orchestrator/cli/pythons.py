"""The user's own Python in words."""

from __future__ import annotations

from orchestrator.client.own_python import Told


def facts(found: tuple[Told, ...]) -> list[tuple[str, str]]:
    """One row each, with the platform's name where there are several."""
    return [("python", each.text if len(found) == 1 else f"{each.platform}: {each.text}") for each in found]
