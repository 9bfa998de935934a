"""The system packages that tests need: prints what is missing, or installs it.

With CI=true or SYSTEM_DEPS=1 it installs with apt-get, and starts no service. Otherwise it prints the
command, and the tests that need the package are skipped.
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


@dataclass(frozen=True)
class Part:
    name: str
    packages: tuple[str, ...]
    used_for: str
    present: Callable[[], bool]


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


PARTS = (
    Part("PostgreSQL", ("postgresql",), "the tests of the ledger on PostgreSQL", has_postgresql),
    Part("Docker", ("docker.io",), "the tests of containers and images", has_docker),
    Part("Docker Compose", ("docker-compose",), "the tests of compose.yaml", has_compose),
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
    print(
        f"  get it with:  sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}"
    )
    print("  or let make:  SYSTEM_DEPS=1 make test")
    return 0


def install(missing: list[Part]) -> int:
    packages = [package for part in missing for package in part.packages]
    print(f"installing {', '.join(packages)}", flush=True)
    root = [] if os.geteuid() == 0 else ["sudo"]
    if shutil.which((*root, "apt-get")[0]) is None:
        print(f"cannot install: {(*root, 'apt-get')[0]} was not found", file=sys.stderr)
        return 1
    done = subprocess.run([*root, "sh", "-c", INSTALL, "sh", *packages], stdout=subprocess.DEVNULL)
    if done.returncode:
        print("apt-get failed; see its output above", file=sys.stderr)
        return done.returncode
    absent = [part.name for part in missing if not part.present()]
    if absent:
        print(f"still missing after apt-get: {', '.join(absent)}", file=sys.stderr)
    return 1 if absent else 0


if __name__ == "__main__":
    sys.exit(main())
