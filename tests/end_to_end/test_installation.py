"""A stranger's way without a clone: the wheel, three installers, the README's first job, and what is left."""

from __future__ import annotations

import email
import json
import re
import shlex
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end import installing
from tests.end_to_end.installing import OURS, ROOT, Built
from tests.waiting import wait_until

MADE = {"PKG-INFO", "setup.cfg"}  # by setuptools, into a source distribution


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return installing.build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Empty packages to install, and those of the tests to import."""
    folder = tmp_path_factory.mktemp("packages")
    return installing.empty_packages(folder / "empty"), installing.borrowed_packages(folder / "borrowed")


def test_the_source_distribution_is_the_repository(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = [member.name.partition("/")[2] for member in archive if member.isfile()]
    own = {name for name in names if ".egg-info/" not in name} - MADE
    assert own == set(built.files)


def test_the_wheel_holds_the_code_the_examples_and_the_pages_as_they_are(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        held = {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}
    code = {name: name for name in built.files if name.startswith("orchestrator/")}
    examples = {
        f"orchestrator/examples/{Path(name).name}": name
        for name in built.files
        if name.startswith("docs/examples/") and name.endswith((".py", ".yaml"))
    }
    pages = {f"orchestrator/{name}": name for name in built.files if re.fullmatch(r"docs/[^/]+\.md", name)}
    assert "orchestrator/docs/any-script.md" in pages
    assert held == {name: (ROOT / file).read_bytes() for name, file in {**code, **examples, **pages}.items()}


def test_the_metadata_is_fit_for_an_index(built: Built) -> None:
    with zipfile.ZipFile(built.wheel) as archive:
        [name] = [each for each in archive.namelist() if each.endswith("/METADATA")]
        told = email.message_from_bytes(archive.read(name))
        licences = {each.rpartition("/")[2] for each in archive.namelist() if "/licenses/" in each}
    text = str(told.get_payload())
    assert told["Description-Content-Type"] == "text/markdown"
    assert "A job of your own" in text
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert [link for link in links if not link.startswith("https://")] == []
    assert licences == {"LICENSE", "NOTICE"}
    page = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \|", page.partition("## Extras")[2].partition("\n## ")[0], re.M)
    assert sorted(rows) == sorted(told.get_all("Provides-Extra", []))


@dataclass(frozen=True)
class Installed:
    """`programs`: where the commands are."""

    folder: Path
    programs: Path
    variables: dict[str, str]

    def run(self, *words: str) -> str:
        return installing.run([str(self.programs / words[0]), *words[1:]], self.folder, self.variables)

    def shell(self, line: str) -> str:
        return installing.run(["bash", "-ec", line], self.folder, self.variables)


def by_pip(folder: Path, wheel: Path, variables: dict[str, str]) -> tuple[Path, Path]:
    place = folder / "venv"
    installing.run([sys.executable, "-m", "venv", "--without-pip", str(place)], folder, variables)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python")]
    installing.run([*pip, "install", "--quiet", str(wheel)], folder, variables)
    return place, place / "bin"


def by_uv(folder: Path, wheel: Path, variables: dict[str, str]) -> tuple[Path, Path]:
    installing.run(["uv", "tool", "install", "--python", sys.executable, str(wheel)], folder, variables)
    return folder / "tools" / OURS, folder / "bin"


def by_pipx(folder: Path, wheel: Path, variables: dict[str, str]) -> tuple[Path, Path]:
    installing.run(
        [sys.executable, "-m", "pipx", "install", "--backend", "uv", "--python", sys.executable, str(wheel)],
        folder, variables,
    )  # fmt: skip
    return folder / "pipx" / "venvs" / OURS, folder / "bin"


INSTALLERS = {"pip": by_pip, "uv tool": by_uv, "pipx": by_pipx}


@pytest.fixture
def installed(
    request: pytest.FixtureRequest, built: Built, packages: tuple[Path, Path], tmp_path: Path
) -> Iterator[tuple[str, Installed]]:
    """The wheel as a user installs it by one of the installers."""
    empty, borrowed = packages
    tools = tmp_path / "installers"
    tools.mkdir()
    (tools / "uv").symlink_to(installing.BINARIES / "uv")
    variables = installing.environment(
        tmp_path, tools, **installing.offline(empty),
        UV_TOOL_DIR=str(tmp_path / "tools"), UV_TOOL_BIN_DIR=str(tmp_path / "bin"),
        PIPX_HOME=str(tmp_path / "pipx"), PIPX_BIN_DIR=str(tmp_path / "bin"),
        PIPX_MAN_DIR=str(tmp_path / "man"),
    )  # fmt: skip
    place, programs = INSTALLERS[request.param](tmp_path, built.wheel, variables)
    installing.lend(borrowed, place)
    variables["PATH"] = f"{programs}:{variables['PATH']}"
    user = Installed(tmp_path, programs, variables)
    yield request.param, user
    if (programs / "orchestrator").exists():
        user.run("orchestrator", "down")


def check_whole(how: str, user: Installed) -> list[str]:
    """Its commands work, and it knows how it was installed. Returns the command that uninstalls it."""
    assert user.run("submit", "--version") == user.run("orchestrator", "--version")
    told = json.loads(user.run("orchestrator", "uninstall", "--json"))
    assert told["left"] == []
    assert told["installation"]["how"] == how
    assert Path(told["installation"]["place"]).is_relative_to(user.folder)
    command = shlex.split(told["installation"]["command"])
    assert command[-1] == OURS
    return command


def check_gone(user: Installed) -> None:
    assert not (user.programs / "orchestrator").exists()
    assert not (user.programs / "submit").exists()


@pytest.mark.parametrize("installed", ["pip", "pipx"], indirect=True)
def test_it_is_installed_whole_and_names_what_uninstalls_it(installed: tuple[str, Installed]) -> None:
    how, user = installed
    command = check_whole(how, user)
    assert "plain-python" in user.run("orchestrator", "examples", "--json")
    assert user.run("orchestrator", "help", "any-script").startswith("# Any script\n")
    if how == "pipx":
        command = [sys.executable, "-m", *command]
    elif "-m" in command:  # pip itself: it asks
        command.append("--yes")
    installing.run(command, user.folder, user.variables)
    check_gone(user)


def readme_commands() -> list[str]:
    """The commands of the README's first job, in its order, with the example that needs no torch."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## A job of your own")[2].partition("\n## ")[0]
    cheap = {"examples first": "examples plain-python", "first.yaml": "plain_python.yaml",
             "pull my-first-job": "pull plain-python"}  # fmt: skip
    lines = [line.strip() for line in re.findall(r"^    (orchestrator .*)$", section, re.MULTILINE)]
    for dear, instead in cheap.items():
        assert any(dear in line for line in lines)
        lines = [line.replace(dear, instead) for line in lines]
    return lines


@pytest.mark.parametrize("installed", ["uv tool"], indirect=True)
def test_the_first_job_of_the_readme_and_what_is_left_behind_it(installed: tuple[str, Installed]) -> None:
    how, user = installed
    uninstalls = check_whole(how, user)
    commands = readme_commands()
    assert [shlex.split(line)[1] for line in commands] == ["examples", "init", "submit", "pull"]
    for line in commands:
        user.shell(line)
        for job in (user.folder / "my-first-job").glob("*.yaml"):
            job.write_text(job.read_text().replace("total: 200000", "total: 2000"))
    assert json.loads((user.folder / "result" / "state.json").read_text())[0] == 2000
    for shell in ("bash", "zsh", "fish"):
        user.run("orchestrator", "completion", shell, "--install")
    wait_until(lambda: not user.run("orchestrator", "down").startswith("stopped"), "no controller")
    told = json.loads(user.run("orchestrator", "uninstall", "--json"))
    assert told["running"] == []
    installing.run(uninstalls, user.folder, user.variables)
    check_gone(user)
    listed = [Path(each["where"]) for each in told["left"] if each["goes"] != "never"]
    files = [path for path in (user.folder / "user").rglob("*") if not path.is_dir()]
    assert [path for path in files if not any(path.is_relative_to(each) for each in listed)] == []
    assert [each for each in listed if not each.exists()] == []
    assert [path.name for path in (user.folder / "tmp").iterdir() if "orchestrator" in path.name] == []
