"""Makes `.venv` ready: finds a Python, builds the environment, installs what constraints.txt pins.

Decides which build of torch this machine gets. Standard library only, and readable by every Python 3.7+,
so that one that is too old can say so. Does nothing when nothing changed since the last time.
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
CONSTRAINTS = Path("scripts", "constraints.txt")
DECISIVE = (Path("pyproject.toml"), CONSTRAINTS, Path("scripts", "setup.py"))
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
    pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", "-c", str(root / CONSTRAINTS)]
    torch, driver = pinned(root, "torch"), has_nvidia_driver()
    print(f"set-up: installing {torch} ({'CUDA' if driver else 'CPU'} build)", flush=True)
    index = [] if driver else cpu_index(pip, torch, CPU_INDEX)
    run([*pip, *index, torch], "installing torch")
    print("set-up: installing the project and its tools", flush=True)
    run([*pip, "--quiet", "--editable", f"{root}[postgresql,training,test]"], "installing the project")


def cpu_index(pip: list[str], torch: str, url: str) -> list[str]:
    """The index options with which pip gets a build of torch without CUDA.

    From the CPU index at `url` if that offers one, otherwise from wherever pip is configured to look;
    raises SetupError where only a CUDA build would be found.
    """
    index = ["--extra-index-url", url]
    alone = [*pip, *PROBE, "--no-deps", torch]
    if dry_run([*alone, *index]) == dry_run(alone):
        index = []
    cuda = sorted(filter(is_cuda, dry_run([*pip, *index, torch])))
    if cuda:
        raise SetupError(
            f"this machine has no NVIDIA driver, and the only build of {torch} that pip finds would bring "
            f"{len(cuda)} CUDA packages ({', '.join(cuda[:3])} …), gigabytes of no use here.\n"
            f"The CPU build is at {url}, which could not be reached: make it reachable, name a mirror\n"
            "by TORCH_CPU_INDEX=https://…, or put the wheel into a folder named by PIP_FIND_LINKS."
        )
    return index


def is_cuda(name: str) -> bool:
    return name.lower().startswith(("nvidia-", "nvidia_", "cuda-", "cuda_"))


def dry_run(command: list[str]) -> dict[str, str]:
    """Name → URL of all that a pip command would install were none of it there; empty where it fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        extra = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        if subprocess.run([*command, *extra], capture_output=True).returncode:
            return {}
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"]: item["download_info"]["url"] for item in items}


def pinned(root: Path, package: str) -> str:
    lines = (root / CONSTRAINTS).read_text(encoding="utf-8").splitlines()
    return next(line for line in lines if line.startswith(f"{package}=="))


def run(command: list[str], what: str) -> None:
    if subprocess.run(command).returncode:
        raise SetupError(f"{what} failed; pip's own words are above. The next make starts where it stopped.")


if __name__ == "__main__":
    sys.exit(main())
