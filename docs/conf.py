"""How Sphinx builds the site from the Markdown of this repository: `make site`.

Decides what is a page and how the table of contents comes about. The pages stay where they are and read the
same on a code host: none has a directive, and their links are those of the repository. So the source
folder is the repository's root (`scripts/build_site.py` says so), and a page's address is its path.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "Orchestrator"
html_title = "Orchestrator"
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx_copybutton"]
include_patterns = ["docs/**.md", "changes/README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"]
exclude_patterns = [
    ".*",
    "build",
    "tests",
    "orchestrator",
    "jobs",
    "images",
    "benchmarks",
    "scripts",
    "docs/_*",
]

myst_heading_anchors = 6  # the anchors that code hosts make, so that links to headings work in both places
suppress_warnings = ["myst.header"]

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_extra_path = ["_front"]  # the site's root leads to docs/
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_use_index = False
html_theme_options = {"sidebar_hide_name": False}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True
pygments_style = "friendly"
pygments_dark_style = "github-dark"

_SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
_LINK = re.compile(r"\]\((?!\w+://)([^)#\s]+)\.md\)")
# Pages that stand for what lies beside them.
_FOLDERS = {"docs/decisions/README": "[0-9]*", "docs/references/README": "[a-z]*"}


def contents(page: str) -> str:
    """The page, with a hidden table of contents for each section: the pages that the section links to."""
    title, *parts = _SECTION.split(page)
    made = [title]
    for heading, body in zip(parts[::2], parts[1::2], strict=True):
        linked = "\n".join(dict.fromkeys(_LINK.findall(body)))
        table = f"```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{linked}\n```\n" if linked else ""
        made.append(f"## {heading}\n{body.rstrip()}\n\n{table}\n")
    return "".join(made)


def without_folders(page: str, place: Path) -> str:
    """The page with its links to folders, which a code host lists and a site does not, as plain text."""

    def told(link: re.Match[str]) -> str:
        return link[1] if (place / link[2]).is_dir() else link[0]

    return re.sub(r"(?<!!)\[([^\[\]\n]+)\]\(([\w./-]+)\)", told, page)


def read(app: Any, name: str, source: list[str]) -> None:
    source[0] = without_folders(source[0], Path(app.srcdir, name).parent)
    if name == root_doc:
        source[0] = contents(source[0])
    elif name in _FOLDERS:
        source[0] += f"\n```{{toctree}}\n:glob:\n:titlesonly:\n\n{_FOLDERS[name]}\n```\n"


def setup(app: Any) -> dict[str, bool]:
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
