"""Set-up on machines that lack something: what it chooses, and what it tells the user."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator import config
from orchestrator.clock import SystemClock
from orchestrator.platforms import catalog
from scripts import setup, system_parts

ROOT = Path(setup.__file__).parent.parent
TORCH = "torch==2.13.0"


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel of nothing but metadata: enough for pip to resolve it."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name.replace('-', '_')}-{version}"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Dist: {requires}\n" if requires else ""
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
        wheel.writestr(f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{stem}.dist-info/RECORD", "")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """pip on a machine whose only index is empty and whose only wheels are in `tmp_path/wheels`."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    (tmp_path / "simple").mkdir()
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "simple").as_uri())
    return [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]


def offer_cuda_build(wheels: Path) -> None:
    write_wheel(wheels, "torch", "2.13.0", requires="nvidia-cublas")
    write_wheel(wheels, "nvidia-cublas", "13.1")


def test_a_cuda_build_is_refused_without_a_driver(pip: list[str], tmp_path: Path) -> None:
    offer_cuda_build(tmp_path / "wheels")
    with pytest.raises(setup.SetupError) as refusal:
        setup.cpu_index(pip, TORCH, (tmp_path / "unreachable").as_uri())
    text = str(refusal.value)
    assert "nvidia-cublas" in text
    assert "TORCH_CPU_INDEX" in text


def test_the_cpu_index_wins_over_a_cuda_build(pip: list[str], tmp_path: Path) -> None:
    offer_cuda_build(tmp_path / "wheels")
    index = tmp_path / "cpu"
    write_wheel(index / "torch", "torch", "2.13.0+cpu")
    (index / "torch" / "index.html").write_text('<a href="torch-2.13.0+cpu-py3-none-any.whl">torch</a>')
    options = setup.cpu_index(pip, TORCH, index.as_uri())
    assert options == ["--extra-index-url", index.as_uri()]
    assert setup.dry_run([*pip, *options, TORCH])["torch"].startswith(index.as_uri())


def test_a_cpu_build_at_hand_needs_no_index(pip: list[str], tmp_path: Path) -> None:
    write_wheel(tmp_path / "wheels", "torch", "2.13.0+cpu")
    assert setup.cpu_index(pip, TORCH, (tmp_path / "unreachable").as_uri()) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder with a space, holding what set-up reads."""
    root = tmp_path / "a clone"
    (root / "scripts").mkdir(parents=True)
    for path in setup.DECISIVE:
        shutil.copy(ROOT / path, root / path)
    return root


def run_setup(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "setup.py")]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=120)


def test_a_missing_python3_venv_names_the_package_to_install(checkout: Path, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking"
    lacking.mkdir()
    (lacking / "ensurepip.py").write_text("raise ModuleNotFoundError('as Debian ships it')\n")
    done = run_setup(checkout, PYTHONPATH=str(lacking))
    assert done.returncode == 1
    assert f"apt-get install -y python3.{sys.version_info.minor}-venv" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_done_twice(checkout: Path) -> None:
    venv = checkout / ".venv"
    venv.mkdir()
    stamp = json.dumps(setup.fingerprint(checkout))
    (venv / ".setup-stamp.json").write_text(stamp)
    done = run_setup(checkout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [path.name for path in venv.iterdir()] == [".setup-stamp.json"]


def test_an_interrupted_or_moved_environment_is_not_taken_for_a_whole_one(checkout: Path) -> None:
    before = setup.fingerprint(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    assert setup.fingerprint(moved)["machine"] != before["machine"]
    (moved / "pyproject.toml").write_text("changed")
    assert setup.fingerprint(moved)["files"] != before["files"]
    assert setup.read_stamp(moved / ".venv" / ".setup-stamp.json") == {}


def test_a_python_that_is_too_old_can_read_the_script_and_say_so() -> None:
    source = Path(setup.__file__).read_text(encoding="utf-8")
    assert ast.parse(source, feature_version=(3, 7)).body


def test_the_demo_s_config_is_valid_and_sets_a_short_wall(tmp_path: Path) -> None:
    shutil.copy(ROOT / "scripts" / "demo_config.yaml", tmp_path / "config.yaml")
    (given,) = config.load(tmp_path).platforms
    platform = catalog.build(
        given.name, given.type, given.options, folder=tmp_path / "p", clock=SystemClock()
    )
    (offer,) = platform.survey()
    assert offer.unavailable is None
    assert offer.traits.session_seconds is not None
    assert offer.traits.session_seconds < 60


MISSING = system_parts.Part("a server", ("server-package",), "the tests of a server", lambda: False)


def test_a_missing_system_part_is_named_with_the_command_to_get_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert system_parts.main((MISSING,), environ={}) == 0
    text = capsys.readouterr().out
    assert "a server is missing; skipping the tests of a server" in text
    assert "apt-get install -y --no-install-recommends server-package" in text


def test_a_system_part_that_is_there_is_not_mentioned(capsys: pytest.CaptureFixture[str]) -> None:
    present = system_parts.Part("a shell", ("dash",), "everything", lambda: shutil.which("sh") is not None)
    assert system_parts.main((present,), environ={"CI": "true"}) == 0
    assert capsys.readouterr().out == ""
