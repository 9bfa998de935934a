"""Finishes one declared training job on free and owned accelerators; docs/architecture.md is the map."""

from __future__ import annotations

TYPE_CHECKING = False  # loading `typing` would delay each command

if TYPE_CHECKING:
    from orchestrator.client import Client

__all__ = ["Client", "__version__"]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Loads the client when it is asked for: the agent ships without it."""
    if name == "Client":
        from orchestrator.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
