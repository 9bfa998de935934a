"""What an uplink may lack where it runs: locked lists of packages, and the call of pip that installs them.

A list names one version of every package that a store needs, with the hash of each wheel that pip may take.
scripts/lock.py writes the lists. pip's own settings say where packages come from. Decides which words of pip
may be repeated. Must never know a store, nor when something is installed.
"""

from __future__ import annotations

import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from orchestrator.agent.requirements import ELSEWHERE, masked

LISTS = ("drive", "pyrage", "s3")
LOCKED = ("--require-hashes", "--no-deps", "--only-binary", ":all:")
_QUIET = ("--quiet", "--no-input", "--disable-pip-version-check", "--no-user")
# Settings for other installations: what a list says needs no constraint, and its folder no environment.
_SETTINGS = {"PIP_CONSTRAINT": os.devnull, "PIP_REQUIRE_VIRTUALENV": "0"}
_ADDRESS = re.compile(r"\w+://\S+|(?<=\burl: )\S+")  # a private index may have a token in its path
_ERROR = "ERROR: "


def listed(names: Iterable[str]) -> str:
    """The lists of these names as one, for `pip install -r`. Empty if there are none."""
    data = (pkgutil.get_data(__name__, f"{name}.lock") for name in names if name in LISTS)
    return "".join(each.decode() for each in data if each is not None)


def command(requirements: Path, target: Path) -> list[str]:
    """The call of pip that installs a list into a folder of its own, without the session's folder on its
    path: the training may write there."""
    pip = [sys.executable, "-P", "-m", "pip", "install", *_QUIET, *LOCKED]
    return [*pip, "--target", str(target), "-r", str(requirements)]


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for that call."""
    return {name: value for name, value in environment.items() if name not in ELSEWHERE} | _SETTINGS


def failure(lines: Iterable[str]) -> str:
    """Why pip failed: the last error in its output, or else its last line. Never with the address of an
    index."""
    found = [line.strip() for line in lines if line.strip()]
    errors = [line.removeprefix(_ERROR) for line in found if line.startswith(_ERROR)]
    last = (errors or found or ["it said nothing"])[-1]
    return masked(_ADDRESS.sub("(address)", last))
