"""Sets up `.venv`: finds a Python, creates the environment, and installs what the locks list.

Decides which build of torch this machine gets. pip takes a package only if its hash is in a lock. Uses only
the standard library and runs on every Python from 3.7 on, so that a Python that is too old can say so. Does
nothing if nothing has changed since the last time.
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
# The lists have every package, with one version and its hashes. Nothing is built, because the tools for that
# would come without a hash.
LOCKED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
# For an index that does not answer. pip's default would wait for minutes.
PROBE = ("--retries", "1", "--timeout", "10")


class SetupError(Exception):
    """Tells the user what is wrong and what to do."""


def main() -> int:
    try:
        use_recent_python()
        ensure(ROOT)
    except SetupError as error:
        print(f"set-up: {error}", file=sys.stderr)
        return 1
    return 0


def use_recent_python() -> None:
    """Starts this script again with a newer Python if the current one is too old."""
    if sys.version_info >= OLDEST:
        return
    for minor in (13, 12, 11, 14):
        found = shutil.which(f"python3.{minor}")
        if found and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:
            os.execv(found, [found, *sys.argv])
    raise SetupError(
        "Python 3.11 or newer is needed. This is {}.{}, and no newer one was found.\n"
        "On Debian 12 or Ubuntu 24.04:  sudo apt-get update && sudo apt-get install -y python3 python3-venv\n"
        "Installed elsewhere?           make PYTHON=/path/to/python3.12 ...".format(*sys.version_info[:2])
    )


def ensure(root: Path) -> None:
    """Completes `root/.venv`. Rebuilds it if it was interrupted, moved, or made for another machine."""
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
    """What the environment depends on. If `machine` changes, it is rebuilt; if `files` change, pip runs."""
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
        raise SetupError("python -m venv failed; see its output above")


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
    # With the setuptools of the lists: an isolated build would fetch another one without a hash.
    own = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--editable", str(root)]
    run([*pip, *own], "installing the project")


def cpu_index(pip: list[str], torch: str, url: str) -> list[str]:
    """The index options with which pip gets `torch`, a build without CUDA.

    No options if pip's configured index has it, otherwise the CPU index at `url`. Raises SetupError if
    neither has it.
    """
    for index in ([], ["--extra-index-url", url]):
        if dry_run([*pip, *index, *PROBE, "--no-deps", torch]):
            return index
    raise SetupError(
        f"this machine has no NVIDIA driver, so it needs {torch}, a build without CUDA. PyPI has none.\n"
        f"It is at {url}, which could not be reached. Make it reachable, set TORCH_CPU_INDEX\n"
        "to the URL of a mirror, or set PIP_FIND_LINKS to a folder that contains the wheel."
    )


def dry_run(command: list[str]) -> dict[str, str]:
    """Name → URL of all packages that a pip command would install into an empty environment; empty if it
    fails."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        extra = ["--dry-run", "--ignore-installed", "--quiet", "--report", str(report)]
        if subprocess.run([*command, *extra], capture_output=True).returncode:
            return {}
        items = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {item["metadata"]["name"]: item["download_info"]["url"] for item in items}


def pinned(lock: Path, package: str) -> str:
    """The lock's line for torch on this system, without hashes: `torch==2.13.0+cpu`."""
    lines = lock.read_text(encoding="utf-8").splitlines()
    here = [line.rstrip(" \\") for line in lines if line.startswith(f"{package}==")]
    named = [line for line in here if f"'{sys.platform}'" in line or ";" not in line]
    return named[0].partition(" ;")[0]


def run(command: list[str], what: str) -> None:
    if subprocess.run(command).returncode:
        raise SetupError(f"{what} failed; see pip's output above. The next make continues from here.")


if __name__ == "__main__":
    sys.exit(main())
