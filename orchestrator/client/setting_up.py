"""Looks at this machine and writes the config: its CPU, the devices of its Docker engine, Kaggle's keys.

Parts that do not answer are left out, with a note. Asks only this machine and its engine; `checkup` asks
whether Kaggle accepts the keys.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from orchestrator import config as configuration
from orchestrator import nvidia
from orchestrator.client import own_gpus
from orchestrator.client.adding import how_to_add
from orchestrator.client.amending import next_old
from orchestrator.client.home import Home
from orchestrator.config import DEFAULT_PLATFORMS, PlatformConfig
from orchestrator.core.needs import platforms_of
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.files import own_trouble
from orchestrator.platforms.docker import discovery
from orchestrator.platforms.docker.discovery import FoundEngine
from orchestrator.platforms.docker.gpus import Gpu
from orchestrator.platforms.kaggle import credentials
from orchestrator.user import known_home

PROBE_SECONDS = 10.0
HERE = "here"
MEMORY_SHARE = 0.8  # the rest is for the system and the controller
# Renewed over the network, so not used: docs/references/kaggle.md#credentials
_BROWSER_LOGIN = Path(".kaggle", "credentials.json")


@dataclass(frozen=True)
class Found:
    """A part of this machine: its kind, what was found, and whether the config uses it."""

    what: str
    text: str
    used: bool


@dataclass(frozen=True)
class _Machine:
    """This machine and its engine as platforms. `advice`: what a person does so that its GPUs can be used."""

    found: tuple[Found, ...]
    platforms: tuple[PlatformConfig, ...]
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SetUp:
    """What was found, and the config that was written. `kept`: where the old config is now. `advice`: what a
    person does so that this machine's GPUs can be used, one command or sentence each. `old_name`: the name of
    the default config, which this machine's platform keeps because runs are on it; usually empty. `notes`:
    why each of its GPUs is used or not.
    """

    config: Path
    kept: Path | None
    found: tuple[Found, ...]
    platforms: tuple[PlatformConfig, ...]
    advice: tuple[str, ...] = ()
    old_name: str = ""
    notes: tuple[str, ...] = ()


def init(home: Home, *, force: bool) -> SetUp:
    """Writes config.yaml with this machine as a platform.

    Raises InputError if it cannot be written, or if a config exists and `force` is False.
    """
    path = home.folders.config
    if os.path.lexists(path) and not force:
        if wrong := own_trouble(path):
            raise InputError(f"{path} {wrong}: move it away, or replace it with force")
        raise InputError(f"{path} already exists: edit it, or replace it with force")
    home.tighten()
    name = _name(home)
    machine = _machine(name, _memory_gb())
    kaggle = _kaggle(home)
    platforms = (*machine.platforms, *((PlatformConfig("kaggle", "kaggle"),) if kaggle.used else ()))
    platforms = platforms or (PlatformConfig("docker", "docker", {"accelerator": "cpu"}),)  # none works here
    kept = _moved_away(path)
    try:
        configuration.write_default(home.path, platforms)
    except BaseException:
        if kept is not None:
            kept.replace(path)
        raise
    old_name = name if name != HERE else ""
    return SetUp(path, kept, (*machine.found, kaggle, _colab(home)), platforms, machine.advice, old_name,
                 machine.notes)  # fmt: skip


def _name(home: Home) -> str:
    """The name of the platform for processes of this machine. The default config's if runs are on it, because
    they would be held if the new config had no such platform."""
    default = DEFAULT_PLATFORMS[0].name
    try:
        ledger = home.existing_ledger()
        if ledger is None:
            return HERE
        with ledger:
            used = {name for record in ledger.live() for name in platforms_of(record)}
    except OrchestratorError:  # such as a wrong config, which is about to be replaced
        return HERE
    return default if default in used and HERE not in used else HERE


def _moved_away(path: Path) -> Path | None:
    if not os.path.lexists(path):
        return None
    kept = next_old(path)
    path.rename(kept)
    return kept


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _machine(name: str, memory: float) -> _Machine:
    """`name`: of the platform for its processes."""
    cpu = Found("cpu", f"{os.cpu_count() or 1} cores, {memory:.0f} GB", used=True)
    shown = nvidia.Asker(seconds=PROBE_SECONDS).gpus()
    seen = tuple(Gpu(str(each.index), each.uuid, each.name, each.memory_gb) for each in shown.gpus)
    engine, trouble = _engine(seen)
    share = memory * MEMORY_SHARE
    own = own_gpus.of_this_machine(shown, name)
    if not own_gpus.is_supported():
        own = own_gpus.OwnGpus((), ("processes of this machine need Linux: use Docker",))
    if engine is None:
        gpus = Found("gpu", _names(seen), used=bool(own.platforms))
        here = _here(name, share)
        found = (cpu, gpus, Found("docker", trouble, used=False))
        return _Machine(found, (*here, *own.platforms), notes=own.notes)
    given = discovery.entries(engine, share / 2 if engine.here else engine.memory_gb * MEMORY_SHARE)
    alone = not engine.here or any(each["accelerator"] != "cpu" for each in given.values())
    here = _here(name, share if alone else share / 2)
    used = any("gpus" in each for each in given.values())
    if used and engine.here:
        notes = ("they go to Docker, and not to processes too: neither would see that the other uses one",)
        own = own_gpus.OwnGpus((), notes)
    gpus = Found("gpu", _gpus_text(engine, seen), used=used or bool(own.platforms))
    docker = Found("docker", f"{engine.version} at {engine.place}", used=True)
    return _Machine(
        (cpu, gpus, docker),
        (
            *here,
            *own.platforms,
            *(PlatformConfig(each, "docker", options) for each, options in given.items()),
        ),
        engine.advice if seen and engine.here and not used else (),
        own.notes,
    )


def _here(name: str, memory: float) -> tuple[PlatformConfig, ...]:
    """The platform for processes on this machine's CPU, where they are supported."""
    return (PlatformConfig(name, "process", _process_options(memory)),) if own_gpus.is_supported() else ()


def _process_options(memory: float) -> dict[str, object]:
    return {"accelerator": "cpu", "memory_gb": max(1, int(memory))}


def _engine(seen: tuple[Gpu, ...]) -> tuple[FoundEngine | None, str]:
    """The engine, or why there is none."""
    if not discovery.is_expected():
        return None, "none"
    try:
        return discovery.find(seen), ""
    except (OrchestratorError, OSError) as error:
        return None, f"left out: {(str(error).splitlines() or [type(error).__name__])[0]}"


def _gpus_text(engine: FoundEngine, seen: tuple[Gpu, ...]) -> str:
    if not engine.gpus and engine.lack is None:
        return "the engine gives some; `doctor` names them once the engine has an image"
    if not engine.gpus:
        return _names(seen) + (f"; {engine.lack}" if seen and engine.lack else "")
    strange = discovery.strange(engine)
    unknown = f"; not in the catalogue of accelerators: {', '.join(strange)}" if strange else ""
    return _names(engine.gpus) + unknown


def _names(gpus: tuple[Gpu, ...]) -> str:
    """`2 × NVIDIA GeForce RTX 4090, 25.8 GB`."""
    counts = Counter(f"{each.name}, {each.memory_gb:.1f} GB" for each in gpus)
    return "; ".join(f"{count} × {name}" if count > 1 else name for name, count in counts.items()) or "none"


def _kaggle(home: Home) -> Found:
    """The credentials that the platform would use, or why there are none. Does not contact Kaggle."""
    user_home = known_home()
    browser = user_home / _BROWSER_LOGIN if user_home is not None else None
    try:
        found = credentials.find(os.environ, user_home)
    except (InputError, OSError) as error:
        return Found("kaggle", f"left out: {error}", used=False)
    if found is not None:
        text = f"the key of {found.username}" if found.key else "an access token"
        return Found("kaggle", text, used=True)
    if browser is not None and browser.is_file():
        text = f"left out: {browser} is a browser login; create a token at {credentials.SETTINGS}"
        return Found("kaggle", text, used=False)
    return Found("kaggle", f"no account; to use Kaggle, {how_to_add(home, 'kaggle')}", used=False)


def _colab(home: Home) -> Found:
    """Never used unasked: what opens the account is made on a terminal, and each machine costs."""
    return Found("colab", f"to use Google Colab, {how_to_add(home, 'colab')}", used=False)
