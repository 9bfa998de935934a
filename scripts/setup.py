"""Makes `.venv` ready: finds a Python, builds the environment, installs what the locks list.

Decides which build of torch this machine gets. pip takes a package only if its hash is in a lock. Standard
library only, and readable by every Python 3.7+, so that one that is too old can say so. Does nothing when
nothing changed since the last time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
TORCH_CPU = Path("images", "base", "torch-cpu.txt")
TORCH_CUDA = Path("images", "base", "torch-cuda.txt")
LOCKS = (Path("scripts", "runtime.lock"), Path("scripts", "development.lock"))
DECISIVE = (Path("pyproject.toml"), TORCH_CPU, TORCH_CUDA, *LOCKS, Path("scripts", "setup.py"))
# All that is taken is in the lists, in one version and with its hashes. Nothing is built, as what builds a
# package would come without a hash.
LOCKED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
# An index that is not there may cost this much, not pip's default of minutes.
PROBE = ("--retries", "1", "--timeout", "10")


class SetupError(Exception):
    """What is wrong and what to do about it, for the user."""


def main() -> int:
    try:
        use_recent_python()
        ensure(ROOT)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


def use_recent_python() -> None:
    """Starts this script again under a newer Python where the present one is too old."""
    if sys.version_info >= OLDEST:
        return
    for minor in (13, 12, 11, 14):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            os.execv(found, [found, *sys.argv])
    raise SetupError(
        "Python 3.11 or newer is needed; this is {}.{} and no newer one was found.\n"
        "On Debian 12 or Ubuntu 24.04:  sudo apt-get update && sudo apt-get install -y python3 python3-venv\n"
        "Installed elsewhere?           make PYTHON=/path/to/python3.12 ...".format(*sys.version_info[:2])
    )


def ensure(root: Path) -> None:
    """Leaves `root/.venv` complete. Rebuilds it when interrupted, moved, or made for another machine."""
    venv = root / ".venv"
    stamp, wanted = venv / ".setup-stamp.json", fingerprint(root)
    made = read_stamp(stamp)
    if made == wanted:
        return
    python = venv / "bin" / "python"
    stamp.unlink(missing_ok=True)
    if made.get("machine") != wanted["machine"]:
        create(venv)
    install(root, python)
    stamp.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
    print("set-up: ready", flush=True)


def fingerprint(root: Path) -> dict[str, object]:
    """What the environment depends on: `machine` asks for a new one when it changes, `files` for pip."""
    digest = hashlib.sha256()
    for path in DECISIVE:
        digest.update((root / path).read_bytes())
    machine = [sys.version, os.path.realpath(sys.executable), str(root), has_nvidia_driver()]
    return {"machine": machine, "files": digest.hexdigest()}


def read_stamp(stamp: Path) -> dict[str, object]:
    try:
        content = json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def has_nvidia_driver() -> bool:
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def create(venv: Path) -> None:
    missing = subprocess.run([sys.executable, "-c", "import ensurepip, venv"], capture_output=True).returncode
    if missing:
        package = "python3.{1}-venv".format(*sys.version_info[:2])
        raise SetupError(
            f"this Python ({sys.executable}) cannot make virtual environments: python3-venv is missing.\n"
            f"On Debian or Ubuntu:  sudo apt-get update && sudo apt-get install -y {package}\n"
            "Then run the same make command again."
        )
    print("set-up: making .venv with Python {}.{}.{}".format(*sys.version_info[:3]), flush=True)
    made = subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)])
    if made.returncode:
        raise SetupError("python -m venv failed; its own words are above")


def install(root: Path, python: Path) -> None:
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check"]
    driver = has_nvidia_driver()
    lock = TORCH_CUDA if driver else TORCH_CPU
    torch = pinned(root / lock, "torch")
    print(f"set-up: installing {torch} ({'CUDA' if driver else 'CPU'} build)", flush=True)
    index = [] if driver else cpu_index(pip, torch, CPU_INDEX)
    run([*pip, *index, *LOCKED, "-r", str(root / lock)], "installing torch")
    print("set-up: installing the project and its tools", flush=True)
    lists = [word for path in LOCKS for word in ("-r", str(root / path))]
    run([*pip, "--quiet", *LOCKED, *lists], "installing what the project needs")
    # By the setuptools that the lists brought: an isolated build would fetch one without a hash.
    own = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(root)]
    run([*pip, *own], "installing the project")


def cpu_index(pip: list[str], torch: str, url: str) -> list[str]:
    """The index options with which pip gets `torch`, a build without CUDA.

    None from wherever pip is configured to look if it is there, otherwise the CPU index at `url`; raises
    SetupError where neither has it.
    """
    for index in ([], ["--extra-index-url", url]):
        if dry_run([*pip, *index, *PROBE, "--no-deps", torch]):
            return index
    raise SetupError(
        f"this machine has no NVIDIA driver, so it needs {torch}, a build without CUDA; PyPI has none.\n"
        f"It is at {url}, which could not be reached: make it reachable, name a mirror\n"
        "by TORCH_CPU_INDEX=https://…, or put the wheel into a folder named by PIP_FIND_LINKS."
    )


def dry_run(command: list[str]) -> dict[str, str]:
    """Name → URL of all that a pip command would install were none of it there; empty where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        extra = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        if subprocess.run([*command, *extra], capture_output=True).returncode:
            return {}
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"]: item["download_info"]["url"] for item in items}


def pinned(lock: Path, package: str) -> str:
    """Its line for this system, without its hashes: `torch==2.13.0+cpu`."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    here = [line.rstrip(" \\") for line in lines if line.startswith(f"{package}==")]
    named = [line for line in here if f"'{sys.platform}'" in line or ";" not in line]
    return named[0].partition(" ;")[0]


def run(command: list[str], what: str) -> None:
    if subprocess.run(command).returncode:
        raise SetupError(f"{what} failed; pip's own words are above. The next make starts where it stopped.")


if __name__ == "__main__":
    sys.exit(main())
