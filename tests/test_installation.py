"""The commands that a message names fit how the program was installed: by uv tool, pipx or pip."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from orchestrator.installation import NAME, Installation, found

WHEEL = "/opt/new wheels/accelerator_orchestrator-0.1.0-py3-none-any.whl"


def by_uv(place: Path, *rows: str) -> Installation:
    (place / "uv-receipt.toml").write_text(f"[tool]\nrequirements = [{', '.join(rows)}]\n")
    return found(place)


def test_uv_keeps_the_source_the_extras_and_what_was_added(tmp_path: Path) -> None:
    own = f'{{ name = "{NAME}", extras = ["notify"], path = "{WHEEL}" }}'
    tool = by_uv(tmp_path, own, '{ name = "ipykernel", specifier = ">=6" }')
    begins = ["uv", "tool", "install", "--with", "ipykernel>=6"]
    assert shlex.split(tool.adding("drive")) == [*begins, f"{WHEEL}[drive,notify]"]
    assert shlex.split(tool.adding_package("six")) == [*begins, "--with", "six", f"{WHEEL}[notify]"]
    assert tool.updating.startswith(
        "`uv tool install --force 'FILE[notify]'`, with the newer version's wheel"
    )


def test_uv_with_an_index_a_checkout_and_a_receipt_that_cannot_be_read(tmp_path: Path) -> None:
    tool = by_uv(tmp_path, f'{{ name = "{NAME}" }}')
    assert shlex.split(tool.adding("drive")) == ["uv", "tool", "install", f"{NAME}[drive]"]
    assert tool.updating == f"`uv tool upgrade {NAME}`"
    checkout = by_uv(tmp_path, f'{{ name = "{NAME}", editable = "/src/it" }}')
    assert shlex.split(checkout.adding("drive")) == ["uv", "tool", "install", "--editable", "/src/it[drive]"]
    assert checkout.updating == "`git -C /src/it pull`, then `make setup` there"
    for text in ("", "requirements = 3", "[tool]\nrequirements = [3]", "\x00"):
        (tmp_path / "uv-receipt.toml").write_text(text)
        assert found(tmp_path).adding("drive") == f"uv tool install '{NAME}[drive]'"


def test_pipx_gets_the_packages_of_an_extra(tmp_path: Path) -> None:
    (tmp_path / "pipx_metadata.json").touch()
    words = shlex.split(found(tmp_path).adding("notify"))
    assert words[:3] == ["pipx", "inject", NAME]
    assert [word.split("<")[0] for word in words[3:]] == ["apprise"]
    assert shlex.split(found(tmp_path).adding("postgresql"))[3].startswith("psycopg[binary]<")
    assert found(tmp_path).adding("unknown") == f"pipx inject {NAME} '{NAME}[unknown]'"
    assert found(tmp_path).adding_package("six") == f"pipx inject {NAME} six"
    assert Installation("pipx", tmp_path, "").updating == f"`pipx upgrade {NAME}`"


@pytest.mark.parametrize(
    ("has_pip", "begins"),
    [
        (True, [sys.executable, "-m", "pip", "install"]),
        (False, ["uv", "pip", "install", "--python", sys.executable]),
    ],
)
def test_pip_installs_into_this_environment(tmp_path: Path, has_pip: bool, begins: list[str]) -> None:
    own = Installation("pip", tmp_path, "", has_pip=has_pip)
    assert shlex.split(own.adding("drive")) == [*begins, f"{NAME}[drive]"]
    assert shlex.split(own.adding_package("six")) == [*begins, "six"]
    assert own.updating == f"`{shlex.join([*begins, '-U', NAME])}`"
    wheel = Installation("pip", tmp_path, "", Path(WHEEL), has_pip=has_pip)
    assert wheel.updating.startswith(f"`{shlex.join(begins)} FILE`")
