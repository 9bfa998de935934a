"""How this program was installed, and the commands that fit: to uninstall it, to bring it up to date, to add
an extra or a package.

Decides by what each installer leaves beside the program. Changes nothing and asks no package index. Must
never know what a package is for.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

NAME = "accelerator-orchestrator"


@dataclass(frozen=True)
class Installation:
    """`how`: uv tool, pipx, pip or a checkout. `command`: what a person types to uninstall it. `source`: the
    file or folder it came from, if it came from this machine. `kept`: what uv installs with it again."""

    how: str
    place: Path
    command: str
    source: Path | None = None
    is_editable: bool = False
    has_pip: bool = True
    extras: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()

    def adding(self, extra: str) -> str:
        """The command that adds an extra of this program."""
        if self.how == "uv tool":
            return self._by_uv({*self.extras, extra}, self.kept)
        if self.how == "pipx":
            return shlex.join(("pipx", "inject", NAME, *(_requirements(extra) or (f"{NAME}[{extra}]",))))
        return self._by_pip(f"{NAME}[{extra}]")

    def adding_package(self, package: str) -> str:
        """The command that adds another package to this program's environment."""
        if self.how == "uv tool":
            return self._by_uv(set(self.extras), (*self.kept, package))
        if self.how == "pipx":
            return shlex.join(("pipx", "inject", NAME, package))
        return self._by_pip(package)

    @property
    def updating(self) -> str:
        """What to do to get a newer version, as a sentence's end: it begins with a command."""
        if self.is_editable and self.source is not None:
            return f"`git -C {shlex.quote(str(self.source))} pull`, then `make setup` there"
        if self.source is not None:
            command = {"uv tool": "uv tool install --force", "pipx": "pipx install --force"}.get(self.how)
            file = f"'FILE[{','.join(self.extras)}]'" if self.extras else "FILE"
            return f"`{command or self._by_pip()} {file}`, with the newer version's wheel as FILE"
        if self.how in ("uv tool", "pipx"):
            return f"`{'uv tool' if self.how == 'uv tool' else 'pipx'} upgrade {NAME}`"
        return f"`{self._by_pip('-U', NAME)}`"

    def _by_pip(self, *words: str) -> str:
        python = str(Path(sys.executable).absolute())
        if self.has_pip:
            return shlex.join((python, "-m", "pip", "install", *words))
        return shlex.join(("uv", "pip", "install", "--python", python, *words))

    def _by_uv(self, extras: set[str], others: tuple[str, ...]) -> str:
        what = f"{self.source or NAME}[{','.join(sorted(extras))}]" if extras else str(self.source or NAME)
        beside = [word for each in others for word in ("--with", each)]
        return shlex.join(
            ("uv", "tool", "install", *beside, *(("--editable",) if self.is_editable else ()), what)
        )


def found(prefix: Path | None = None) -> Installation:
    """Of the running program. Never raises."""
    place = Path(sys.prefix) if prefix is None else prefix
    if (place / "uv-receipt.toml").is_file():
        return _of_uv(place)
    source, is_editable = _origin()
    if (place / "pipx_metadata.json").is_file():
        return Installation("pipx", place, f"pipx uninstall {NAME}", source, is_editable)
    python = shlex.quote(str(Path(sys.executable).absolute()))
    how = "a checkout" if is_editable else "pip"
    if find_spec("pip") is not None:
        command = f"{python} -m pip uninstall {NAME}"
        return Installation(how, place, command, source, is_editable)
    command = f"uv pip uninstall --python {python} {NAME}"
    return Installation(how, place, command, source, is_editable, has_pip=False)


def _of_uv(place: Path) -> Installation:
    own: dict[str, Any] = {}
    kept: list[str] = []
    try:
        rows = tomllib.loads((place / "uv-receipt.toml").read_text(encoding="utf-8"))["tool"]["requirements"]
        for row in rows:
            if row["name"] == NAME:
                own = row
            elif set(row) <= {"name", "specifier"}:
                kept.append(f"{row['name']}{row.get('specifier', '')}")
        extras = tuple(map(str, own.get("extras", ())))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        extras = ()
    source = next((own[kind] for kind in ("path", "directory", "editable") if kind in own), None)
    return Installation(
        "uv tool", place, f"uv tool uninstall {NAME}", Path(source) if isinstance(source, str) else None,
        "editable" in own, extras=extras, kept=tuple(kept),
    )  # fmt: skip


def _origin() -> tuple[Path | None, bool]:
    """The file or folder on this machine that it was installed from, and whether it runs from there."""
    try:
        text = distribution(NAME).read_text("direct_url.json")
        told = json.loads(text) if text else {}
        address = urlsplit(told.get("url", ""))
        source = Path(unquote(address.path)) if address.scheme == "file" else None
        return source, bool(told.get("dir_info", {}).get("editable"))
    except (PackageNotFoundError, OSError, ValueError, AttributeError, TypeError):
        return None, False


def _requirements(extra: str) -> list[str]:
    """The packages of an extra, with their versions, as this version names them."""
    try:
        every = distribution(NAME).requires or ()
    except (PackageNotFoundError, OSError):
        return []
    marked = re.compile(rf"\s*;\s*extra\s*==\s*(['\"]){re.escape(extra)}\1\s*$")
    return [marked.sub("", each) for each in every if marked.search(each)]
