"""The user's own Python in words."""

from __future__ import annotations

from orchestrator.client.own_python import Told


def facts(found: tuple[Told, ...]) -> list[tuple[str, str]]:
    """One row for each Python, with the names of its platforms where there are several."""
    platforms: dict[str, list[str]] = {}
    for each in found:
        platforms.setdefault(each.text, []).append(each.platform)
    if len(platforms) == 1:
        return [("python", text) for text in platforms]
    return [("python", f"{', '.join(names)}: {text}") for text, names in platforms.items()]
