"""How this program was installed, and the command that uninstalls it."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

NAME = "accelerator-orchestrator"


@dataclass(frozen=True)
class Installation:
    """`how`: uv tool, pipx, pip or a checkout. `command`: what a person types to uninstall it."""

    how: str
    place: Path
    command: str


def found(prefix: Path | None = None) -> Installation:
    """Of the running program. Never raises."""
    place = Path(sys.prefix) if prefix is None else prefix
    if (place / "uv-receipt.toml").is_file():
        return Installation("uv tool", place, f"uv tool uninstall {NAME}")
    if (place / "pipx_metadata.json").is_file():
        return Installation("pipx", place, f"pipx uninstall {NAME}")
    python = shlex.quote(str(Path(sys.executable).absolute()))
    how = "a checkout" if _is_editable() else "pip"
    if find_spec("pip") is not None:
        return Installation(how, place, f"{python} -m pip uninstall {NAME}")
    return Installation(how, place, f"uv pip uninstall --python {python} {NAME}")


def _is_editable() -> bool:
    try:
        text = distribution(NAME).read_text("direct_url.json")
        told = json.loads(text) if text else {}
        return bool(told.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, OSError, ValueError, AttributeError):
        return False
