"""The system packages that tests need: prints what is missing, or installs it.

With CI=true or SYSTEM_DEPS=1 it installs with apt-get, and starts no service. Otherwise it prints the
command, and the tests that need the package are skipped. What the system's release does not have comes with a
script of ours.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

# Debian starts the services it installs unless policy-rc.d forbids that. An existing policy-rc.d is kept.
INSTALL = """set -e
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\\nexit 101\\n' > "$policy"
    chmod 755 "$policy"
fi
apt-get update -q
apt-get install -y -q --no-install-recommends "$@"
"""
NEWER_PYTHON = Path(__file__).with_name("newer_python.py")


SHELLS = ("zsh", "fish")


@dataclass(frozen=True)
class Part:
    name: str
    packages: tuple[str, ...]
    used_for: str
    present: Callable[[], bool]
    script: Path | None = None  # gets it without root, instead of packages


def has_postgresql() -> bool:
    installed = any(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    return installed or (shutil.which("initdb") is not None and shutil.which("postgres") is not None)


def has_docker() -> bool:
    return shutil.which("dockerd") is not None


def has_compose() -> bool:
    plugin = (
        shutil.which("docker") is not None
        and not subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    )
    return plugin or shutil.which("docker-compose") is not None


def has_shells() -> bool:
    return all(shutil.which(shell) is not None for shell in SHELLS)


def has_newer_python() -> bool:
    check = [sys.executable, str(NEWER_PYTHON), "--check"]
    return not subprocess.run(check, capture_output=True, check=False).returncode


PARTS = (
    Part("PostgreSQL", ("postgresql",), "the tests of the ledger on PostgreSQL", has_postgresql),
    Part("Docker", ("docker.io",), "the tests of containers and images", has_docker),
    Part("Docker Compose", ("docker-compose",), "the tests of compose.yaml", has_compose),
    Part("zsh or fish", SHELLS, "the tests of completion in these shells", has_shells),
    Part("Python 3.12 or newer", (), "the tests of Colab's command line", has_newer_python, NEWER_PYTHON),
)


def main(parts: tuple[Part, ...] = PARTS, environ: Mapping[str, str] = os.environ) -> int:
    missing = [part for part in parts if not part.present()]
    if not missing:
        return 0
    if environ.get("CI") == "true" or environ.get("SYSTEM_DEPS") == "1":
        return install(missing)
    for part in missing:
        print(f"{part.name} is missing; skipping {part.used_for}")
    packages = " ".join(package for part in missing for package in part.packages)
    if packages:
        command = f"sudo apt-get install -y --no-install-recommends {packages}"
        print(f"  get it with:  sudo apt-get update && {command}")
    for part in missing:
        if part.script is not None:
            print(f"  get {part.name} with:  {sys.executable} {part.script}")
    print("  or let make:  SYSTEM_DEPS=1 make test")
    return 0


def install(missing: list[Part]) -> int:
    for part in missing:
        if part.script is not None:
            print(f"installing {part.name}", flush=True)
            if code := subprocess.run([sys.executable, str(part.script)], check=False).returncode:
                return code
    packages = [package for part in missing for package in part.packages]
    if packages and (code := install_packages(packages)):
        return code
    absent = [part.name for part in missing if not part.present()]
    if absent:
        print(f"still missing: {', '.join(absent)}", file=sys.stderr)
    return 1 if absent else 0


def install_packages(packages: list[str]) -> int:
    print(f"installing {', '.join(packages)}", flush=True)
    root = [] if os.geteuid() == 0 else ["sudo"]
    if shutil.which((*root, "apt-get")[0]) is None:
        print(f"cannot install: {(*root, 'apt-get')[0]} was not found", file=sys.stderr)
        return 1
    done = subprocess.run([*root, "sh", "-c", INSTALL, "sh", *packages], stdout=subprocess.DEVNULL)
    if done.returncode:
        print("apt-get failed; see its output above", file=sys.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
