"""The types of platform, and those of which a config may have only one.

A type is one line here plus its module or package. Does not know what a platform does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator import catalog
from orchestrator.catalog import Entry
from orchestrator.clock import Clock
from orchestrator.errors import InputError
from orchestrator.files import guard
from orchestrator.platforms.platform import Platform

_HERE = "orchestrator.platforms"
TYPES: Mapping[str, Entry] = {
    "colab": Entry(f"{_HERE}.colab.options:ColabOptions", f"{_HERE}.colab.platform:configured"),
    "docker": Entry(f"{_HERE}.docker.options:DockerOptions", f"{_HERE}.docker.platform:DockerPlatform"),
    "kaggle": Entry(f"{_HERE}.kaggle.options:KaggleOptions", f"{_HERE}.kaggle.platform:configured"),
    "notebook": Entry(
        f"{_HERE}.notebook.options:NotebookOptions", f"{_HERE}.notebook.platform:NotebookPlatform"
    ),
    "process": Entry(f"{_HERE}.process_options:ProcessOptions", f"{_HERE}.process:ProcessPlatform"),
    "simulated": Entry(f"{_HERE}.simulated:Scenario", f"{_HERE}.simulated.platform:configured"),
}
# The types whose sessions always ship, without an option.
SHIPPING: frozenset[str] = frozenset({"colab", "notebook"})
# The types that tell this home's sessions from others by the id in its file `home-id`.
IDENTIFIED: frozenset[str] = frozenset({"docker", "kaggle", "notebook"})
# The types whose sessions are bound to a machine (`Traits.machine`).
BOUND: frozenset[str] = frozenset({"docker", "process"})
# The types whose sessions run in the user's own Python (`Traits.own_python`), which has the option `python`.
OWN_PYTHON: frozenset[str] = frozenset({"process"})
# The types of which a config may have only one, with the reason.
SINGLE: Mapping[str, str] = {
    "colab": "Google forbids several accounts to get around Colab's limits, and one account has one balance",
    "kaggle": "Kaggle's terms allow one account per person, and forbid several to get around its limits",
}


def build(name: str, type: str, options: Mapping[str, object], *, folder: Path, clock: Clock) -> Platform:
    """The platform `name` of a user's config. `folder` is its own folder here, which may be a link.

    Raises InputError as `orchestrator.catalog.build` does.
    """
    platform: Platform = catalog.build("platform", name, type, options, TYPES, guard(folder), clock)
    return platform


def check_single(name: str, type: str, others: Iterable[tuple[str, str]]) -> None:
    """Raises InputError, with the reason, for a second platform of a type in SINGLE. `others` are (name,
    type) of the platforms before it in the config."""
    for other, its_type in others:
        if type in SINGLE and its_type == type:
            raise InputError(f"platform {name!r} ({type}): {other!r} already is one; {SINGLE[type]}")
