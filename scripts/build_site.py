"""Builds docs/ into a site: `make site`, then open build/site/index.html.

Decides where the site is written. No page, script, style or font comes from the network. A warning, such as a
link to nowhere or a page that `docs/index.md` does not list, fails the build.
"""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.cmd.build import main as sphinx

ROOT = Path(__file__).resolve().parent.parent


def build(site: Path) -> int:
    """Writes the site into this folder, and what Sphinx remembers beside it; returns the exit code."""
    words = [
        "--fresh-env",
        "--fail-on-warning",
        "--keep-going",
        "--quiet",
        "--builder",
        "html",
        "--conf-dir",
        str(ROOT / "docs"),
    ]
    return sphinx([*words, "--doctree-dir", str(site.with_name(f"{site.name}-state")), str(ROOT), str(site)])


def main(words: list[str]) -> int:
    if len(words) > 1 or any(word.startswith("-") for word in words):
        print("usage: build_site.py [FOLDER]   (default: build/site)", file=sys.stderr)
        return 2
    site = Path(words[0]) if words else ROOT / "build" / "site"
    status = build(site.absolute())
    if status == 0:
        print(f"site: {site / 'index.html'}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
