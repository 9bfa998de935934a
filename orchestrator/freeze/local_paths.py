"""Lines of a requirements file that name something on this machine, such as `-e .` or a local wheel.

Decides which of them no session could install, because the job's source does not hold what they name. pip
reads a relative path from the session's working folder, which is the top of the source. Must never know
jobs, or ask a package index.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import unquote

ARCHIVES = (".whl", ".zip", ".tar.gz", ".tgz", ".tar", ".tar.bz2", ".tar.xz")
REMEDY = "put the code into `source`, or build a wheel that a package index has, and name its version"
_EDITABLE = re.compile(r"(?:-e|--editable)(?:\s*=\s*|\s+|(?<=-e))(.+)")
_NAMED = re.compile(r"[A-Za-z0-9][\w.-]*\s*(?:\[[^\]]*\]\s*)?@\s*(.+)")
_AFTER = re.compile(r"\s+-|\s*;")  # of what follows a path: options such as --hash, and a marker
_EXTRAS = re.compile(r"\[[^\]/]*\]$")
_MAKES_IT_A_PROJECT = ("pyproject.toml", "setup.py")


@dataclass(frozen=True)
class LocalPath:
    """What one line names. `path`: with `/`, without its extras; absolute if it begins with `/` or `~`.
    `optional`: an archive that only some machines need, as a marker says."""

    path: str
    editable: bool
    optional: bool = False

    @property
    def absolute(self) -> bool:
        return self.path.startswith(("/", "~"))

    def trouble(self, names: Collection[str]) -> str:
        """Why no session could install it, given the paths in the source; empty if one could."""
        if self.absolute or self.optional:
            return ""
        inside = posixpath.normpath(self.path)
        if inside.split("/")[0] == "..":
            return f"is outside the source: {REMEDY}"
        if inside in names or any(inside.startswith(f"{name}/") for name in names):
            return ""  # a file, or a link to a folder
        below = "" if inside == "." else f"{inside}/"
        if any(below + name in names for name in _MAKES_IT_A_PROJECT):
            return ""
        if inside == ".":
            return (
                "is the source, which has no pyproject.toml or setup.py: remove the line, because the "
                "command can import what is in the source without it"
            )
        if any(name.startswith(below) for name in names):
            return f"has no pyproject.toml or setup.py, so pip cannot install it: {REMEDY}"
        return f"is not in the source, from whose top pip reads it: {REMEDY}"


def local_path(line: str) -> LocalPath | None:
    """What a logical line of a requirements file names on this machine; None if it names nothing here."""
    editable, named = _EDITABLE.fullmatch(line), _NAMED.fullmatch(line)
    found = editable or named
    whole = (line if found is None else found[1]).strip()
    text = _AFTER.split(whole, maxsplit=1)[0].strip().strip("'\"")
    if text.startswith("-"):
        return None
    # pip looks for a folder whatever the marker says, but not for an archive.
    optional = ";" in whole and editable is None and text.lower().endswith(ARCHIVES)
    if text.lower().startswith("file:"):
        path = re.sub(r"^//(?:localhost)?(?=/)", "", text[5:].partition("#")[0])
        return LocalPath(unquote(path), editable is not None, optional)
    if "://" in text or named is not None:
        return None
    text = _EXTRAS.sub("", text)
    is_path = editable is not None or "/" in text or text.startswith((".", "~"))
    if not is_path and not text.lower().endswith(ARCHIVES):
        return None
    return LocalPath(text, editable is not None, optional)
