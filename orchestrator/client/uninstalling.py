"""`uninstall`: what this program leaves here and elsewhere, and the removal of what only it needs.

Decides what may go without a loss (the service, completion scripts, caches) and what goes only if it was
named and confirmed: the home. In a home it removes what it knows by name, never the folder with all that is
in it, and in folders with a common name (`runs`, `images`) only entries of ours. Never touches a platform, a
store outside the home, or the package itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatch
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from orchestrator import home as layout
from orchestrator.client import service as services
from orchestrator.client import shell_files
from orchestrator.client.home import Home, default
from orchestrator.clock import Clock
from orchestrator.core.lifecycle import FINAL
from orchestrator.core.wording import count_text
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.fetching import cache
from orchestrator.files import remove_tree
from orchestrator.installation import Installation
from orchestrator.installation import found as installation
from orchestrator.pruning import listing
from orchestrator.pruning.listing import disk_bytes
from orchestrator.user import NoHome

if TYPE_CHECKING:
    from orchestrator.client.client import Client

_RUNS_SHOWN = 3
# A folder without any of these is no home, whatever somebody gave as --home.
_MARKS = (
    layout.LEDGER, layout.CONTROLLER_LOG, layout.SUBMIT_LOCK, layout.FORECASTS, "agent.pyz", layout.UPLINK,
    "tick.json",
)  # fmt: skip
# Folders with common names, into which `pruning.listing` looks.
_SHARED = (layout.BUNDLES, layout.IMAGES, layout.INPUTS, layout.STAGED, layout.RUNS)
_OF_A_HOME = (
    layout.CONFIG, f"{layout.CONFIG}.old-*", "credentials", "drive-credentials.json", f"{layout.LEDGER}*",
    layout.PLATFORMS, "store", layout.RESULTS, layout.TRIALS, layout.FORECASTS, layout.PULLED, "agent.pyz",
    layout.UPLINK,
    "tick.json", "crash.log", f"{layout.CONTROLLER_LOG}*", layout.SUBMIT_LOCK, ".tmp-orchestrator-*",
)  # fmt: skip


# Of the folders that `pruning.listing` does not look into: the names at each level below.
_INSIDE = {
    "store": (r"runs|\.registers|\.tmp-orchestrator-.*",),
    layout.PLATFORMS: (r"[A-Za-z0-9][A-Za-z0-9-]*", r".*"),
    layout.RESULTS: (r"[a-z0-9][a-z0-9-]*", r"step-\d+"),
    layout.TRIALS: (r".+\.md",),
    "credentials": (r".+",),
}


class Goes(StrEnum):
    """When `uninstall` removes a thing."""

    ASKED = "asked"  # nothing is lost with it
    PURGED = "purge"  # with --purge, confirmed by name
    NEVER = "never"


@dataclass(frozen=True)
class Left:
    """One thing that stays behind. `how`: the command or the way to remove it by hand."""

    what: str
    where: str
    how: str
    goes: Goes
    size: int | None = None


@dataclass(frozen=True)
class Survey:
    """All of it. `running`: sentences on what still runs, and what to do first."""

    installation: Installation
    left: tuple[Left, ...]
    running: tuple[str, ...]

    def going(self, *, purge: bool) -> tuple[Left, ...]:
        wanted = {Goes.ASKED, Goes.PURGED} if purge else {Goes.ASKED}
        return tuple(each for each in self.left if each.goes in wanted)


def survey(client: Client) -> Survey:
    """What is left after the package is gone. Changes nothing; what cannot be read is said so."""
    return Survey(installation(), tuple(_left(client.home, client.clock)), tuple(_running(client)))


def remove(client: Client, things: Iterable[Left], *, purge: bool = False) -> list[str]:
    """Removes these, and returns what stayed and why. With `purge`, raises InputError if anything still runs
    for this home, before anything is removed."""
    if purge and (running := tuple(_running(client))):
        raise InputError(f"{running[0]}: the home was not removed, and neither was anything else")
    stayed: list[str] = []
    for each in things:
        try:
            if each.what == "service":
                services.uninstall(client.home)
            elif each.what == "home":
                stayed += _purge(client.home.path)
            else:
                remove_tree(Path(each.where))
                if (above := Path(each.where).parent).name == "orchestrator":  # of the caches
                    with contextlib.suppress(OSError):  # something else is in it
                        above.rmdir()
        except (OSError, OrchestratorError) as error:
            stayed.append(f"{each.where}: {error}")
    return stayed


# --- What is there ------------------------------------------------------------------------------------------


def _left(home: Home, clock: Clock) -> Iterator[Left]:
    service = services.look(home)
    if service.installed and service.path is not None:
        yield Left("service", str(service.path), "orchestrator service uninstall", Goes.ASKED)
    with contextlib.suppress(NoHome):  # then nothing is there
        yield from _in_users_folders(clock)
    if (path := Path(tempfile.gettempdir()) / f"orchestrator-crash-{os.getuid()}.log").exists():
        yield Left("crash log", str(path), f"rm -r {quote(str(path))}", Goes.ASKED, _size(path))
    if _is_home(home.path):
        yield Left("home", str(home.path), "orchestrator uninstall --purge", Goes.PURGED, _size(home.path))
    yield from _other_homes(home, service.path)
    yield from _elsewhere(home)


def _in_users_folders(clock: Clock) -> Iterator[Left]:
    from orchestrator.platforms.colab.environment import user_cache

    for path in shell_files.installed():
        yield Left("completion", str(path), f"rm {quote(str(path))}", Goes.ASKED, _size(path))
    if (path := user_cache()).exists():  # Google Colab's command line
        yield Left("cache", str(path), f"rm -r {quote(str(path))}", Goes.ASKED, _size(path))
    if (inputs := cache.folder()).exists():
        how = f"rm -r {quote(str(inputs))}, if no home of yours needs them: it is for all homes"
        yield Left("inputs", str(inputs), how, Goes.NEVER, _size(inputs))
    yield from _gpu_locks(clock)


def _other_homes(home: Home, unit: Path | None) -> Iterator[Left]:
    """The default home if this is another one, and the units of other homes' services."""
    with contextlib.suppress(NoHome):
        usual = default()
        if usual.exists() and usual != home.path:
            how = f"orchestrator uninstall --home {quote(str(usual))}"
            yield Left("another home", str(usual), how, Goes.NEVER, _size(usual))
    for path in sorted(unit.parent.glob("*orchestrator*")) if unit is not None else ():
        if path != unit and fnmatch(path.name, "*orchestrator*.[sp]*"):
            yield Left("another service", str(path), "orchestrator service uninstall, with its --home",
                       Goes.NEVER)  # fmt: skip


def _elsewhere(home: Home) -> Iterator[Left]:
    """Ledgers, stores and platforms outside the home, by the config."""
    from orchestrator import config

    if not home.folders.config.exists():
        return
    try:
        found = config.load(home.path)
        if not home.database().startswith("sqlite:"):
            yield Left("ledger", "the database that the config names", "drop it there", Goes.NEVER)
    except OrchestratorError as error:
        yield Left("unknown", str(home.folders.config), f"it cannot be read: {error}", Goes.NEVER)
        return
    for store in found.stores:
        where = str(store.options.get("path") or store.options.get("bucket") or store.type)
        inside = store.type == "folder" and (home.path / where).is_relative_to(home.path)
        if not inside:
            yield Left("store", f"{store.name}: {where}", "delete its runs/ there", Goes.NEVER)
    for platform in found.platforms:
        how = f"orchestrator doctor --clean {platform.name}"
        yield Left("platform", f"{platform.name} ({platform.type})", how, Goes.NEVER)


def _running(client: Client) -> Iterator[str]:
    try:
        owner = client.ledgers.owner()
        runs = [each.run for each in client.runs() if each.unreadable or each.phase not in FINAL]
    except OrchestratorError as error:
        yield f"whether anything runs is unknown, because the ledger cannot be read ({error})"
        return
    if owner is not None:
        yield f"the controller runs ({owner}): `orchestrator down` stops it"
    if runs:
        names = ", ".join(runs[:_RUNS_SHOWN]) + (", …" if len(runs) > _RUNS_SHOWN else "")
        yield (
            f"{count_text(len(runs), 'run')} not over ({names}): `orchestrator cancel RUN` ends one with its "
            "session, while a controller runs"
        )


def _gpu_locks(clock: Clock) -> Iterator[Left]:
    """They go only while nobody holds one: without its file, a second session could take the same GPU."""
    from orchestrator.platforms import gpu_locks

    path = gpu_locks.folder()
    if path.is_dir():
        held = gpu_locks.GpuLocks(path, clock).any_held()
        how = f"rm -r {quote(str(path))}" + (", once no session uses a GPU here" if held else "")
        yield Left("GPU locks", str(path), how, Goes.NEVER if held else Goes.ASKED, _size(path))


def _is_home(path: Path) -> bool:
    """Whether we keep anything here. A project may have a `config.yaml` of its own, so ours must be valid."""
    from orchestrator import config

    if any((path / name).exists() for name in _MARKS):
        return True
    try:
        return (path / layout.CONFIG).is_file() and bool(config.load(path))
    except OrchestratorError:
        return False


def _size(path: Path) -> int:
    return disk_bytes(path)[0] if path.is_dir() else path.stat().st_size


# --- The home -----------------------------------------------------------------------------------------------


def _purge(home: Path) -> list[str]:
    """Removes what a home has, then the folder if nothing else is in it. Links go, not what they lead to.
    What tells that it is a home goes last, so that a purge which was interrupted can be repeated."""
    mixed = _mixed(home)
    names = (*_OF_A_HOME, *_SHARED)
    for entry in sorted(home.iterdir(), key=lambda each: (each.name in _MARKS, each.name)):
        if entry.name not in mixed and any(fnmatch(entry.name, pattern) for pattern in names):
            remove_tree(entry)
    others = [entry.name for entry in home.iterdir() if entry.name not in mixed]
    stayed = [f"{home / name}: {inside} in it is not ours" for name, inside in mixed.items()]
    if others:
        stayed.append(f"{home}: {count_text(len(others), 'file')} not ours ({', '.join(others[:3])})")
    if not stayed:
        with contextlib.suppress(OSError):
            home.rmdir()
        if home.exists():
            stayed.append(f"{home} is a link or in use: remove it by hand")
    return stayed


def _mixed(home: Path) -> dict[str, str]:
    """The folders that have one of our names and hold something that we did not write: name → one such thing.
    A home may be any folder, and many people have a folder named `runs` or `images`."""
    strange = [*listing.look(home, measure=False).strange]
    for name, patterns in _INSIDE.items():
        strange += _unknown(home / name, name, patterns)
    found: dict[str, str] = {}
    for path in strange:
        top, _, inside = path.partition("/")
        if inside or not (home / top).is_symlink():
            found.setdefault(top, inside or top)
    return found


def _unknown(folder: Path, path: str, patterns: Sequence[str]) -> Iterator[str]:
    """What in a folder has none of our names. `patterns`: one for each level below it."""
    if not patterns or folder.is_symlink() or not folder.exists():
        return
    if not folder.is_dir():
        yield path
        return
    for each in folder.iterdir():
        below = f"{path}/{each.name}"
        if re.fullmatch(patterns[0], each.name):
            yield from _unknown(each, below, patterns[1:])
        else:
            yield below
