"""Prints the licences of all packages that are installed for the Python that runs this, except our own.

    python scripts/notices.py > THIRD-PARTY-NOTICES

Decides what a notice contains: name, version, licence, the project's home, and every licence text and notice
in its wheel. Uses only the standard library, because it runs in the image, which has nothing else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from importlib import metadata

OURS = "accelerator-orchestrator"
RULE = "=" * 100
HEAD = """THIRD-PARTY NOTICES

The orchestrator is licensed under the Apache License 2.0 (LICENSE, next to this file). This image also
contains the packages below, each under its own licence. Python and the system's packages are part of the base
image. Their licences are at /usr/local/lib/python3.*/LICENSE.txt and /usr/share/doc/*/copyright.
"""
_TEXT = re.compile(r"(?i)(?:un)?licen[cs]e|copying|notice|authors")
_COMPILED = re.compile(r"[^/]+\.libs/([^/]+)")


def notices(packages: Iterable[metadata.Distribution]) -> str:
    """One document with all of them, sorted by name."""
    others = {name(each): each for each in packages if name(each) != OURS}
    return "\n".join([HEAD, *(notice(others[key]) for key in sorted(others))])


def name(package: metadata.Distribution) -> str:
    return re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()


def notice(package: metadata.Distribution) -> str:
    about = package.metadata
    lines = [RULE, f"{name(package)} {package.version}", f"Licence: {licence(package)}"]
    lines += (
        [f"Home: {home}"]
        if (home := homepage(about.get_all("Project-URL") or (), field(package, "Home-page")))
        else []
    )
    compiled = sorted(match[1] for each in package.files or () if (match := _COMPILED.fullmatch(str(each))))
    lines += [f"Compiled libraries in it: {', '.join(compiled)}"] if compiled else []
    texts = [each for each in package.files or () if "dist-info" in str(each) and _TEXT.match(each.name)]
    if not texts:
        lines += ["Its package does not contain the text of its licence."]
    for each in sorted(texts, key=str):
        lines += ["", f"--- {each.name}", "", each.read_text(encoding="utf-8").strip()]
    return "\n".join([*lines, ""])


def licence(package: metadata.Distribution) -> str:
    """The licence that it declares: an SPDX expression, or else one line of free text, or else
    classifiers."""
    about = package.metadata
    text = field(package, "License-Expression") or field(package, "License")
    classes = [
        each.rpartition(" :: ")[2] for each in about.get_all("Classifier") or () if each.startswith("License")
    ]
    return text if text and "\n" not in text else ", ".join(classes) or "unstated"


def field(package: metadata.Distribution, name: str) -> str:
    found = package.metadata.get_all(name) or [""]
    return str(found[0]).strip()


def homepage(urls: Iterable[str], given: str) -> str | None:
    named = dict(each.split(", ", 1) for each in urls if ", " in each)
    first = next(
        (url for label, url in named.items() if label.lower() in ("homepage", "source", "repository")), None
    )
    return given or first or next(iter(named.values()), None)


if __name__ == "__main__":
    sys.stdout.reconfigure(encoding="utf-8")  # type: ignore[union-attr]
    print(notices(metadata.distributions()))
