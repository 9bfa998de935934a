"""`init`: looks at this machine and writes the config. Only reports what later versions will use."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from orchestrator import config as configuration
from orchestrator.cli.call import Call, Exit
from orchestrator.config import PlatformConfig
from orchestrator.errors import InputError

PROBE_SECONDS = 10.0
MEMORY_SHARE = 0.8  # the rest is the system's, and the controller's
_KAGGLE_FILES = ("access_token", "access_token.txt", "kaggle.json", "credentials.json")
_KAGGLE_VARIABLES = ("KAGGLE_API_TOKEN", "KAGGLE_TOKEN", "KAGGLE_KEY")


@dataclass(frozen=True)
class Found:
    """Something of this machine: what it is, what was found, whether this version uses it."""

    what: str
    text: str
    used: bool


def init(call: Call) -> int:
    """Writes config.yaml with this machine as a platform; an existing one is replaced only with --force."""
    path = call.home.config_file
    if path.exists() and not call.options.force:
        raise InputError(f"{path} is there already: edit it, or `{call.command('init', '--force')}`")
    memory = _memory_gb()
    found = [
        Found("cpu", f"{os.cpu_count() or 1} cores, {memory:.0f} GB", used=True),
        _gpus(),
        _docker(),
        _kaggle(),
        _colab(),
    ]
    kept = _moved_away(path)
    options = {"accelerator": "cpu", "memory_gb": max(1, int(memory * MEMORY_SHARE))}
    try:
        configuration.write_default(call.home.path, [PlatformConfig("here", "process", options)])
    except BaseException:
        if kept is not None:
            kept.replace(path)
        raise
    call.out.document({"config": str(path), "kept": str(kept) if kept else None,
                       "found": [vars(each) for each in found]})  # fmt: skip
    later = call.out.paint("  (not used by this version)", "dim")
    call.out.facts(
        (each.what, each.text + ("" if each.used or each.text == "none" else later)) for each in found
    )
    call.out.say()
    call.out.facts([
        ("written", str(path)),
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


def _gpus() -> Found:
    said = _answer("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader")
    return Found("gpu", "; ".join(line.strip() for line in said.splitlines()) or "none", used=False)


def _docker() -> Found:
    if shutil.which("docker") is None:
        return Found("docker", "none", used=False)
    version = _answer("docker", "version", "--format", "{{.Server.Version}}").strip()
    return Found("docker", version or "installed, its daemon does not answer", used=False)


def _kaggle() -> Found:
    """Only whether there are credentials, and where; facts/kaggle.md has the order."""
    named = [name for name in _KAGGLE_VARIABLES if os.environ.get(name)]
    folder = Path(os.environ.get("KAGGLE_CONFIG_DIR") or "~/.kaggle").expanduser()
    files = [str(folder / name) for name in _KAGGLE_FILES if (folder / name).is_file()]
    places = [*(f"${name}" for name in named), *files]
    return Found("kaggle", f"credentials in {places[0]}" if places else "none", used=False)


def _colab() -> Found:
    given = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    path = Path(given or "~/.config/gcloud/application_default_credentials.json").expanduser()
    return Found("colab", f"credentials in {path}" if path.is_file() else "none", used=False)


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
