"""Requirements that name something on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator import spec
from orchestrator.client import planning
from orchestrator.errors import SpecError
from orchestrator.freeze import bundle
from orchestrator.freeze.local_paths import LocalPath, local_path
from tests.specs import GOOD

NAMES = (
    "train.py",
    "setup.py",
    "libs/one/pyproject.toml",
    "libs/plain/code.py",
    "wheels/a-1-py3-none-any.whl",
    "link",
)


@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("-e .", "."), ("-e.", "."), ("--editable=./one", "./one"), (".[dev]", "."),
        ("./one ; extra == 'x'", "./one"),
        ("../shared", "../shared"), ("/opt/one", "/opt/one"), ("~/one", "~/one"),
        ("file:///opt/one", "/opt/one"),
        ("one @ file://localhost/opt/one", "/opt/one"), ("file:./one", "./one"), ("-e 'my lib'", "my lib"),
        ("one-1-py3-none-any.whl --hash=sha256:00", "one-1-py3-none-any.whl"),
        ("wheels/one.tar.gz", "wheels/one.tar.gz"),
        ("torch>=2; python_version < '3.12'", None), ("one[dev]==1.0", None), ("git+https://host/one", None),
        ("-e git+https://host/one#egg=one", None),
        ("one @ https://host/one.whl", None), ("https://host/one.whl", None),
        ("--index-url https://host/simple", None), ("-f ./wheels", None), ("--pre", None), ("one.two", None),
        ('one --config-settings="a=./b"', None), ("one==1 --global-option=./b", None),
        ("-e ./one --config-settings a=./b", "./one"), ("file:./my%20lib", "./my lib"),
    ],
)  # fmt: skip
def test_what_a_line_names_here(line: str, path: str | None) -> None:
    found = local_path(line)
    assert (None if found is None else found.path) == path
    assert found is None or found.editable == line.startswith(("-e", "--editable"))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (".", ""), ("./libs/one", ""), ("libs/one/", ""), ("wheels/a-1-py3-none-any.whl", ""),
        ("link/one", ""),
        ("/opt/one", ""), ("..", "outside the source"), ("libs/../../one", "outside the source"),
        ("libs/plain", "no pyproject.toml or setup.py"), ("wheels/b-1-py3-none-any.whl", "not in the source"),
        ("link2/one", "not in the source"),
    ],
)  # fmt: skip
def test_what_no_session_could_install(path: str, told: str) -> None:
    found = LocalPath(path, False).trouble(NAMES)
    assert told in found
    assert bool(told) == bool(found)


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ("./gone.whl; sys_platform == 'win32'", False), ("./gone.whl", True),
        ("./gone; sys_platform == 'win32'", True), ("-e ./gone ; sys_platform == 'win32'", True),
    ],
)  # fmt: skip
def test_an_archive_for_other_machines_may_be_missing(line: str, is_refused: bool) -> None:
    found = local_path(line)
    assert found is not None
    assert bool(found.trouble(NAMES)) == is_refused


def test_the_top_of_a_source_that_is_no_project() -> None:
    assert "remove the line" in LocalPath(".", True).trouble(("train.py",))


def job(folder: Path, wanted: str, more: str = "") -> spec.Parsed:
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text("")
    (folder / "code" / "requirements.txt").write_text(wanted)
    (folder / "job.yaml").write_text(f"{GOOD}requirements: code/requirements.txt\n{more}")
    return spec.load(folder / "job.yaml")


def test_a_job_is_refused_with_the_lines_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    parsed = job(tmp_path, "-r more.txt\n\n../mine\n")
    (tmp_path / "code" / "more.txt").write_text("-e .\n")
    archive = tmp_path / "frozen.tar.gz"
    made = bundle.frozen(parsed.source, tmp_path / "bundles")
    (tmp_path / "bundles" / f"{made.sha256}.tar.gz").rename(archive)
    with pytest.raises(SpecError) as found:
        planning._check_local_paths(parsed, archive)
    told = str(found.value)
    assert "more.txt:1: '-e .' is the source, which has no pyproject.toml" in told
    assert "requirements.txt:3: '../mine' is outside the source: put the code into `source`" in told
    assert "requirements" in found.value.mistakes[0].path
