"""`init`: looks at this machine and writes the config: its CPU, and what its Docker engine gives.

Only reports what later versions will use. What does not answer is left out, with a word.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.cli.call import Call, Exit
from orchestrator.config import PlatformConfig
from orchestrator.errors import InputError, OrchestratorError
from orchestrator.platforms.docker import discovery
from orchestrator.platforms.docker.discovery import FoundEngine
from orchestrator.platforms.docker.gpus import Gpu

PROBE_SECONDS = 10.0
MEMORY_SHARE = 0.8  # the rest is the system's, and the controller's
_KAGGLE_FILES = ("access_token", "access_token.txt", "kaggle.json", "credentials.json")
_KAGGLE_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_TOKEN", "KAGGLE_KEY")


@dataclass(frozen=True)
class Found:
    """Something of this machine: what it is, what was found, whether the config uses it. `later`: another
    version will."""

    what: str
    text: str
    used: bool
    later: bool = False


@dataclass(frozen=True)
class _Machine:
    """This machine and its engine, as platforms; `mend` is what a human does to have its GPUs used."""

    found: tuple[Found, ...]
    platforms: tuple[PlatformConfig, ...]
    mend: tuple[str, ...] = ()


def init(call: Call) -> int:
    """Writes config.yaml with this machine as a platform; an existing one is replaced only with --force."""
    path = call.home.config_file
    if path.exists() and not call.options.force:
        raise InputError(f"{path} is there already: edit it, or `{call.command('init', '--force')}`")
    memory = _memory_gb()
    machine = _machine(memory)
    found = [*machine.found, _kaggle(), _colab()]
    kept = _moved_away(path)
    try:
        configuration.write_default(call.home.path, machine.platforms)
    except BaseException:
        if kept is not None:
            kept.replace(path)
        raise
    call.out.document({"config": str(path), "kept": str(kept) if kept else None,
                       "found": [vars(each) for each in found]})  # fmt: skip
    later = call.out.paint("  (not used by this version)", "dim")
    call.out.facts((each.what, each.text + (later if each.later else "")) for each in found)
    call.out.say()
    call.out.facts([
        ("written", str(path)),
        *(("platform", f"{each.name}: {each.options['accelerator']}, {each.type}")
          for each in machine.platforms),
        *(("to have gpus", command) for command in machine.mend),
        ("to have gpus", call.command("init", "--force") if machine.mend else ""),
        ("kept", f"the old one as {kept}" if kept else ""),
        ("next", call.command("doctor")),
        ("", call.command("submit", "JOB.yaml", "--follow")),
    ])  # fmt: skip
    return Exit.OK


def _moved_away(path: Path) -> Path | None:
    if not path.exists():
        return None
    number = 1
    while (kept := path.with_name(f"{path.name}.old-{number}")).exists():
        number += 1
    path.rename(kept)
    return kept


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1024**3


def _machine(memory: float) -> _Machine:
    cpu = Found("cpu", f"{os.cpu_count() or 1} cores, {memory:.0f} GB", used=True)
    seen = discovery.seen_here(_answer(*discovery.ASK_NVIDIA))
    engine, trouble = _engine(seen)
    share = memory * MEMORY_SHARE
    if engine is None:
        gpus = Found("gpu", _names(seen), used=False)
        here = PlatformConfig("here", "process", _process_options(share))
        return _Machine((cpu, gpus, Found("docker", trouble, used=False)), (here,))
    given = discovery.entries(engine, share / 2 if engine.here else engine.memory_gb * MEMORY_SHARE)
    alone = not engine.here or any(each["accelerator"] != "cpu" for each in given.values())
    here = PlatformConfig("here", "process", _process_options(share if alone else share / 2))
    used = any("gpus" in each for each in given.values())
    gpus = Found("gpu", _gpus_text(engine, seen), used=used)
    docker = Found("docker", f"{engine.version} at {engine.place}", used=True)
    return _Machine(
        (cpu, gpus, docker),
        (here, *(PlatformConfig(name, "docker", options) for name, options in given.items())),
        engine.mend if seen and engine.here and not used else (),
    )


def _process_options(memory: float) -> dict[str, object]:
    return {"accelerator": "cpu", "memory_gb": max(1, int(memory))}


def _engine(seen: tuple[Gpu, ...]) -> tuple[FoundEngine | None, str]:
    """The engine, or a word on why there is none."""
    if not discovery.is_expected():
        return None, "none"
    try:
        return discovery.find(seen), ""
    except (OrchestratorError, OSError) as error:
        return None, f"left out: {(str(error).splitlines() or [type(error).__name__])[0]}"


def _gpus_text(engine: FoundEngine, seen: tuple[Gpu, ...]) -> str:
    if not engine.gpus and engine.lack is None:
        return "the engine gives some; which, is seen once it has an image: `doctor` says then"
    if not engine.gpus:
        return _names(seen) + (f"; {engine.lack}" if seen and engine.lack else "")
    strange = discovery.strange(engine)
    unknown = f"; not in the catalogue of accelerators: {', '.join(strange)}" if strange else ""
    return _names(engine.gpus) + unknown


def _names(gpus: tuple[Gpu, ...]) -> str:
    return "; ".join(f"{each.name}, {each.memory_gb:.1f} GB" for each in gpus) or "none"


def _kaggle() -> Found:
    """Only whether there are credentials, and where; facts/kaggle.md has the order."""
    named = [name for name in _KAGGLE_VARIABLES if os.environ.get(name)]
    folder = Path(os.environ.get("KAGGLE_CONFIG_DIR") or "~/.kaggle").expanduser()
    files = [str(folder / name) for name in _KAGGLE_FILES if (folder / name).is_file()]
    places = [*(f"${name}" for name in named), *files]
    return _later("kaggle", f"credentials in {places[0]}" if places else "")


def _colab() -> Found:
    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(given or "~/.config/gcloud/application_default_credentials.json").expanduser()
    return _later("colab", f"credentials in {path}" if path.is_file() else "")


def _later(what: str, text: str) -> Found:
    return Found(what, text or "none", used=False, later=bool(text))


def _answer(*command: str) -> str:
    """What a program of this machine prints; nothing where it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
