"""Writes the lists of packages that pip installs for us: exact versions, each with the hashes of its wheels.

    python scripts/lock.py              keeps the versions, for a changed pyproject.toml
    python scripts/lock.py --upgrade    takes the newest versions that fit

Decides what is in which list. uv resolves for every supported Python and machine at once. No list contains an
address: pip's own settings say where packages come from, and the lists say what they are. Only TORCH changes
the version of torch, because a resume is bitwise only within one build of it.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

ROOT = Path(__file__).resolve().parent.parent
PYTHON = "3.11"
PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14))
MACHINES = ("x86_64", "aarch64")
TORCH = "2.13.0"
TPU_TORCH = "2.9.0"  # torch_xla has no later release
TPU = (f"torch=={TPU_TORCH}", f"torch-xla[tpu]=={TPU_TORCH}", "numpy")
CPU_INDEX = os.environ.get("TORCH_CPU_INDEX", "https://download.pytorch.org/whl/cpu")
CPU_BUILDS = ROOT / "scripts" / "torch-cpu.sha256"

HEAD = "# {what}\n# Every wheel that pip may take, by its hash. Written by scripts/lock.py.\n"
LISTS = {
    "scripts/build.lock": "What builds the orchestrator's own wheel.",
    "scripts/runtime.lock": "What the orchestrator needs to run, PostgreSQL's driver included.",
    "scripts/development.lock": "What tests and tools need beyond runtime.lock and images/base/torch-*.txt.",
    "images/base/torch-cpu.txt": "torch for the CPU, whole: every package it needs, in one version each.",
    "images/base/torch-cuda.txt": (
        "torch for NVIDIA GPUs, from PyPI: built for CUDA 13.0, which wants a driver of series 580 or newer\n"
        "# and a compute capability of 7.5 (T4) or more. `===` keeps builds with a suffix (+cpu) out."
    ),
    "images/base/torch-tpu.txt": (
        "torch for TPUs: torch_xla 2.9.0 is the last release and goes with torch 2.9 alone; torch is the\n"
        "# CPU build, as torch_xla brings the device. For Python 3.11 and 3.12."
    ),
    "images/graphmer/requirements.lock": "What jobs/graphmer/requirements.txt asks for beyond images/base.",
    "orchestrator/agent/packages/drive.lock": "What an uplink needs for a store in Drive, whole. For Linux.",
    "orchestrator/agent/packages/pyrage.lock": "What an uplink needs for an encrypted store. For Linux.",
    "orchestrator/agent/packages/s3.lock": "What an uplink needs for a store in a bucket. For Linux.",
    "orchestrator/platforms/colab/cli.lock": "Google Colab's command line, whole. For Python 3.12 and newer.",
    "tests/stand_ins/colab/machine.lock": "Jupyter, which the machines of the local Colab run, whole.",
}  # fmt: skip
# Lists for environments of their own, with what they are for and the oldest Python there.
OWN = {
    # A new version of it: compare docs/references/colab.md.
    "orchestrator/platforms/colab/cli.lock": (("google-colab-cli==0.7.5",), "3.12"),
    "tests/stand_ins/colab/machine.lock": (("jupyter-server>=2.14,<3", "ipykernel>=6.29,<8"), "3.11.5"),
}
TPU_LIST = "images/base/torch-tpu.txt"
UPLINK = {"drive": "pydrive2", "pyrage": "pyrage", "s3": "obstore"}  # list → what its store imports

# CPython 3.11 to 3.14 on Linux with glibc, and on macOS. Sessions run on Linux, some in images with musl.
_PYTHON_TAG = re.compile(r"cp31[1-4]|py3|py2\.py3")
_PLATFORM_TAG = re.compile(r"any|.*manylinux.*_(?:x86_64|aarch64)|macosx_.*_(?:arm64|universal2)")
_LINUX_TAG = re.compile(r"any|.*(?:manylinux|musllinux).*_(?:x86_64|aarch64)")
_STABLE_TAG = re.compile(r"cp3(\d+)")
_ELSEWHERE = re.compile(r"== '(?:win32|nt|Windows|emscripten)'")
_OF_CUDA = re.compile(r"(?:nvidia|cuda)-.*|triton")


@dataclass(frozen=True)
class Package:
    """One version of a package: the machines that need it, and its wheels (file name → sha256)."""

    name: str
    version: str
    marker: str
    wheels: Mapping[str, str]

    def text(self, operator: str = "==", version: str | None = None) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        hashes = "".join(f" \\\n    --hash=sha256:{each}" for each in sorted(set(self.wheels.values())))
        return f"{self.name}{operator}{version or self.version}{marker}{hashes}\n"


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes every list of packages that pip installs for us.")
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions, except of torch")
    upgrade = parser.parse_args(words).upgrade
    torch = f"torch=={TORCH}"
    kept = {} if upgrade else pinned(ROOT / name for name in LISTS if name not in (TPU_LIST, *OWN))
    kept |= {"torch": TORCH}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    build = project["build-system"]["requires"]
    runtime = project["project"]["dependencies"] + project["project"]["optional-dependencies"]["postgresql"]
    extras = [line for lines in project["project"]["optional-dependencies"].values() for line in lines]
    whole = resolved([*build, *runtime, *extras, torch], kept)
    same = {each.name: each.version for each in whole}
    of_torch = resolved([torch, "numpy", *build], same)
    of_cpu = [each for each in of_torch if not is_cuda(each.name)]
    of_runtime = resolved(runtime, same)
    job = (ROOT / "jobs/graphmer/requirements.txt").read_text(encoding="utf-8").splitlines()
    write("scripts/build.lock", resolved(build, same))
    write("scripts/runtime.lock", of_runtime)
    write("scripts/development.lock", without(whole, of_runtime, of_torch))
    write("images/base/torch-cpu.txt", of_cpu, torch=cpu_torch)
    write("images/base/torch-cuda.txt", of_torch, torch=cuda_torch)
    write("images/graphmer/requirements.lock", without(resolved([*job, torch], same), of_torch))
    for name, wanted in UPLINK.items():
        write(f"orchestrator/agent/packages/{name}.lock", complete(resolved([wanted], same, _LINUX_TAG)))
    for name, (asked, python) in OWN.items():
        write(name, resolved(asked, {} if upgrade else pinned([ROOT / name]), python=python))
    tpu = pinned([ROOT / TPU_LIST])
    of_tpu = resolved(
        TPU,
        {name: version for name, version in same.items() if not is_cuda(name)}
        | ({} if upgrade else tpu)
        | {"torch": TPU_TORCH},
    )
    write(TPU_LIST, [each for each in of_tpu if not is_cuda(each.name)], torch=cpu_torch)
    return 0


def pinned(files: Iterable[Path]) -> dict[str, str]:
    """Name → version of every package in those lists that exist. Left out: what has different versions for
    different Pythons."""
    return {name: version for name, (version, *others) in versions(files).items() if not others}


def versions(files: Iterable[Path]) -> dict[str, set[str]]:
    """Name → versions of every package in those lists that exist; for torch, without the build."""
    lines = [
        line for path in files if path.exists() for line in path.read_text(encoding="utf-8").splitlines()
    ]
    found = (re.match(r"([A-Za-z0-9._-]+)={2,3}([^\s+;\\]+)", line) for line in lines)
    listed: dict[str, set[str]] = {}
    for match in filter(None, found):
        listed.setdefault(match[1], set()).add(match[2])
    return listed


def resolved(
    wanted: Iterable[str],
    versions: Mapping[str, str],
    machines: re.Pattern[str] = _PLATFORM_TAG,
    python: str = PYTHON,
) -> list[Package]:
    """All packages that these requirements need on every supported Python and machine, at `versions`."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "wanted.txt").write_text("".join(f"{line}\n" for line in wanted), encoding="utf-8")
        lines = (f"{name}=={version}\n" for name, version in versions.items())
        (folder / "versions.txt").write_text("".join(lines), encoding="utf-8")
        command = [
            sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--universal",
            "--python-version", python, "--python", sys.executable, "--no-build", "--generate-hashes",
            "--format", "pylock.toml", "--output-file", str(folder / "pylock.toml"),
            "--constraints", str(folder / "versions.txt"), str(folder / "wanted.txt"),
        ]  # fmt: skip
        if subprocess.run(command, stdout=subprocess.DEVNULL).returncode:
            raise SystemExit("lock: uv found no versions that fit together; see its output above")
        packages = tomllib.loads((folder / "pylock.toml").read_text(encoding="utf-8"))["packages"]
    return [package(each, machines) for each in packages if not _ELSEWHERE.search(each.get("marker", ""))]


def is_cuda(name: str) -> bool:
    return _OF_CUDA.fullmatch(name) is not None


def package(found: Mapping[str, Any], machines: re.Pattern[str] = _PLATFORM_TAG) -> Package:
    names = {
        urllib.parse.unquote(wheel["url"].rsplit("/", 1)[-1]): wheel["hashes"]["sha256"]
        for wheel in found.get("wheels", ())
    }
    wheels = {name: sha256 for name, sha256 in names.items() if serves(name, machines)}
    if not wheels:
        raise SystemExit(
            f"lock: {found['name']} {found['version']} has no wheel for our systems; packages are never built"
        )
    return Package(found["name"], found["version"], found.get("marker", ""), wheels)


def serves(wheel: str, machines: re.Pattern[str] = _PLATFORM_TAG) -> bool:
    """Whether this file is for one of these machines, and for one of our Pythons."""
    python, abi, platform = wheel.removesuffix(".whl").rsplit("-", 3)[1:]
    if not machines.fullmatch(platform):
        return False
    stable = _STABLE_TAG.fullmatch(python)
    if abi == "abi3" and stable is not None:
        return int(stable[1]) <= PYTHONS[-1][1]
    return _PYTHON_TAG.fullmatch(python) is not None and not abi.endswith("t")


def complete(packages: Iterable[Package]) -> list[Package]:
    """The packages, if each has a wheel for every Python and machine on which a session may lack it."""
    found = list(packages)
    for each in found:
        if gaps := unserved(each.wheels):
            raise SystemExit(f"lock: {each.name} {each.version} has no wheel for {', '.join(gaps)}")
    return found


def unserved(wheels: Iterable[str]) -> list[str]:
    """The Pythons and machines with glibc 2.28 or newer that can use none of these wheels."""
    offered = frozenset(tag for wheel in wheels for tag in parse_wheel_filename(wheel)[3])
    gaps = []
    for python, machine in product(PYTHONS, MACHINES):
        glibc = [f"manylinux_2_{minor}_{machine}" for minor in range(28, 4, -1)] + [
            f"manylinux2014_{machine}"
        ]
        usable = {*cpython_tags(python, platforms=glibc), *compatible_tags(python, platforms=glibc)}
        if not offered & usable:
            gaps.append(f"Python {python[0]}.{python[1]} on {machine}")
    return gaps


def without(packages: Iterable[Package], *others: Iterable[Package]) -> list[Package]:
    names = {each.name for other in others for each in other}
    return [each for each in packages if each.name not in names]


def write(name: str, packages: Iterable[Package], torch: Callable[[Package], str] = Package.text) -> None:
    texts = [torch(each) if each.name == "torch" else each.text() for each in packages]
    (ROOT / name).write_text(HEAD.format(what=LISTS[name]) + "".join(texts), encoding="utf-8")


def cpu_torch(torch: Package) -> str:
    """On Linux the builds that PyPI does not have. On macOS those of PyPI, because there are no others."""
    linux = Package("torch", f"{torch.version}+cpu", "sys_platform == 'linux'", cpu_builds(torch.version))
    apple = {name: sha256 for name, sha256 in torch.wheels.items() if "macosx" in name}
    return linux.text() + Package("torch", torch.version, "sys_platform == 'darwin'", apple).text()


def cuda_torch(torch: Package) -> str:
    linux = {name: sha256 for name, sha256 in torch.wheels.items() if "manylinux" in name}
    return Package("torch", torch.version, "", linux).text("===")


def cpu_builds(version: str) -> dict[str, str]:
    """The wheels of that version without CUDA. A new version is looked up and recorded."""
    lines = [line.split() for line in CPU_BUILDS.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
    known = {name: sha256 for sha256, name in lines if name.startswith(f"torch-{version}+cpu-")}
    if known:
        return known
    with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=60) as answer:
        page = urllib.parse.unquote(answer.read().decode())
    offered = dict(
        re.findall(rf"(torch-{re.escape(version)}\+cpu-[\w.-]+\.whl)#sha256=([0-9a-f]{{64}})", page)
    )
    new = {name: sha256 for name, sha256 in offered.items() if serves(name)}
    if not new:
        raise SystemExit(f"lock: {CPU_INDEX} has no torch {version}; set TORCH_CPU_INDEX to a mirror")
    with CPU_BUILDS.open("a", encoding="utf-8") as stream:
        stream.writelines(f"{sha256}  {name}\n" for name, sha256 in sorted(new.items()))
    return new


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
