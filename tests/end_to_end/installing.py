"""Builds the wheel, and installs it by the usual installers into folders of a test, without any network.

Every package that the wheel requires is there as an empty one of the same version; what they really contain
comes from the environment of the tests, by a line in a .pth file. So nothing is downloaded or copied, and the
installers still resolve and record all that the wheel says.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
OURS = "accelerator-orchestrator"
BINARIES = Path(sys.executable).parent


@dataclass(frozen=True)
class Built:
    """`files`: the repository's own, as git lists them."""

    wheel: Path
    sdist: Path
    files: tuple[str, ...]


def build(folder: Path) -> Built:
    """Both distributions, from a copy of what git tracks or would. The wheel is built from the other one."""
    listed = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listed, capture_output=True, text=True, check=True)
    files = tuple(sorted(name for name in set(done.stdout.split("\0")) if name and (ROOT / name).is_file()))
    for name in files:
        target = folder / "source" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    run(
        [str(BINARIES / "uv"), "build", "--offline", "--no-build-isolation", "--python", sys.executable,
         "-o", str(folder / "dist")],
        folder / "source", environment(folder),
    )  # fmt: skip
    [wheel], [sdist] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    return Built(wheel, sdist, files)


def empty_packages(folder: Path) -> Path:
    """A folder with an empty wheel of each package that ours requires."""
    folder.mkdir()
    for line in distribution(OURS).requires or ():
        name = re.match(r"[\w.-]+", line)
        if name is not None and "extra ==" not in line:
            _empty(folder, name[0], version(name[0]))
    return folder


def _empty(folder: Path, name: str, release: str) -> None:
    stem = f"{re.sub('[-_.]+', '_', name).lower()}-{release}"
    info = f"{stem}.dist-info"
    files = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {release}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in files.items()
    }
    rows = [f"{path},sha256={digests[path]},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def borrowed_packages(folder: Path) -> Path:
    """A folder with all packages of the tests' environment but ours, as links."""
    folder.mkdir()
    for name in ("purelib", "platlib"):
        for path in Path(sysconfig.get_path(name)).iterdir():
            of_ours = path.name.startswith((OURS.replace("-", "_"), "__editable__"))
            if not of_ours and path.suffix != ".pth" and not (folder / path.name).exists():
                (folder / path.name).symlink_to(path)
    return folder


def lend(packages: Path, environment: Path) -> None:
    """Lets a virtual environment import these packages, too."""
    [site] = environment.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{packages}\n")


def environment(folder: Path, *programs: Path, **more: str) -> dict[str, str]:
    """Variables of a user whose folders are all below `folder`. Their active Python is that of the tests."""
    path = os.pathsep.join((*map(str, programs), str(folder / "bin"), "/usr/local/bin", "/usr/bin", "/bin"))
    (folder / "tmp").mkdir(parents=True, exist_ok=True)
    (folder / "user").mkdir(parents=True, exist_ok=True)
    return {
        "PATH": path, "HOME": str(folder / "user"), "TMPDIR": str(folder / "tmp"), "LANG": "C.UTF-8",
        "VIRTUAL_ENV": sys.prefix, "UV_CACHE_DIR": str(folder / "uv-cache"), "UV_PYTHON_DOWNLOADS": "never",
        **more,
    }  # fmt: skip


def offline(packages: Path) -> dict[str, str]:
    """Variables that keep every installer to this folder."""
    return {
        "UV_OFFLINE": "1", "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(packages),
        "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages), "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip


def run(command: list[str], folder: Path, variables: dict[str, str]) -> str:
    """Runs a command to its end, which must be a success; returns its standard output."""
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, timeout=PATIENCE,
        stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout
