"""Set-up on machines that lack something: what it chooses, and what it tells the user."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from orchestrator import config
from orchestrator.agent import packages
from orchestrator.clock import SystemClock
from orchestrator.platforms import catalog
from orchestrator.stores import encrypted
from scripts import lock, notices, setup, system_parts
from tests.waiting import PATIENCE

ROOT = Path(setup.__file__).parent.parent
TORCH = "torch==2.13.0+cpu"
DOCKERFILES = ("Dockerfile", "images/base/Dockerfile", "images/graphmer/Dockerfile")
UPLINK_LISTS = sorted(ROOT.glob("orchestrator/agent/packages/*.lock"))
LOCKED_LINE = r"[a-z0-9-]+={2,3}[\w.+]+(?: ; [^#]*?)? (?: +--hash=sha256:[0-9a-f]{64})+"


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> None:
    """A wheel with only metadata: enough for pip to resolve it."""
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


def test_a_cuda_build_is_refused_without_a_driver(pip: list[str], tmp_path: Path) -> None:
    offer_cuda_build(tmp_path / "wheels")
    with pytest.raises(setup.SetupError) as refusal:
        setup.cpu_index(pip, TORCH, (tmp_path / "unreachable").as_uri())
    text = str(refusal.value)
    assert "needs torch==2.13.0+cpu" in text
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


def locked(folder: Path, wheel: Path) -> list[str]:
    """A requirements list with that wheel as it is now, in pip's format."""
    name, version = wheel.name.split("-")[:2]
    text = f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"
    (folder / "locked.txt").write_text(text)
    return [*setup.LOCKED, "--target", str(folder / "installed"), "-r", str(folder / "locked.txt")]


@pytest.mark.parametrize("changed", [False, True])
def test_a_package_that_is_not_what_was_locked_is_refused(
    pip: list[str], tmp_path: Path, changed: bool
) -> None:
    """Changed on the index or in transit, with the same version."""
    write_wheel(tmp_path / "wheels", "greeting", "1.0")
    [wheel] = (tmp_path / "wheels").iterdir()
    words = locked(tmp_path, wheel)
    if changed:
        write_wheel(tmp_path / "wheels", "greeting", "1.0", requires="evil")
    done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is changed
    assert ("THESE PACKAGES DO NOT MATCH THE HASHES" in done.stderr) is changed
    assert (tmp_path / "installed").exists() is not changed


def test_what_is_in_no_list_is_not_installed(pip: list[str], tmp_path: Path) -> None:
    """A dependency that is not in the lock is not installed."""
    write_wheel(tmp_path / "wheels", "unlisted", "1.0")
    write_wheel(tmp_path / "wheels", "greeting", "1.0", requires="unlisted")
    words = locked(tmp_path, tmp_path / "wheels" / "greeting-1.0-py3-none-any.whl")
    subprocess.run([*pip, *words], capture_output=True, check=True)
    assert [path.name for path in (tmp_path / "installed").iterdir()] == ["greeting-1.0.dist-info"]


def test_whatever_pip_installs_for_us_is_installed_by_hash_alone() -> None:
    """Every call of pip that reaches an index is given a list of hashes, never a package's name."""
    texts = {path: (ROOT / path).read_text() for path in (*DOCKERFILES, "scripts/setup.py")}
    for path in DOCKERFILES:
        commands = texts[path].replace("\\\n", " ").splitlines()
        calls = [
            part for line in commands if "-m pip " in line for part in line.split("&&") if "-m pip " in part
        ]
        fetching = [call for call in calls if " install " in call and "--no-index" not in call]
        assert fetching, path
        assert all("--require-hashes --no-deps --only-binary :all:" in call for call in fetching), path
    assert texts["scripts/setup.py"].count("*LOCKED, ") == 2
    beside = packages.command(Path("a.lock"), Path("site"))
    assert " ".join(packages.LOCKED) == " ".join(setup.LOCKED) in " ".join(beside)
    assert beside[-2:] == ["-r", "a.lock"]


def test_no_other_code_of_ours_calls_pip() -> None:
    """What a job asks for is locked by `submit`, and test_requirements.py shows that its hashes count."""
    calling = {
        path.relative_to(ROOT).as_posix()
        for folder in ("orchestrator", "scripts", "images")
        for path in (ROOT / folder).rglob("*.py")
        if '"-m", "pip"' in path.read_text()
    } - {"orchestrator/installation.py"}  # what it says is for a person to type
    assert calling == {
        "orchestrator/agent/packages/__init__.py",
        "orchestrator/agent/requirements.py",
        "orchestrator/platforms/notebook/cell.py",
        "scripts/setup.py",
    }


def test_every_list_has_hashes_and_no_address() -> None:
    places = ("scripts/*.lock", "images/*/*.lock", "images/base/*.txt", "orchestrator/agent/packages/*.lock",
              *lock.OWN)  # fmt: skip
    lists = [path for place in places for path in ROOT.glob(place)]
    assert len(lists) == len(lock.LISTS)
    for path in lists:
        text = path.read_text()
        assert "://" not in text
        entries = [entry for entry in text.replace("\\\n", " ").splitlines() if not entry.startswith("#")]
        assert entries
        assert all(re.fullmatch(LOCKED_LINE, entry) for entry in entries), path


def test_the_lists_serve_this_machine_and_fit_together() -> None:
    """They contain what pyproject.toml asks for, and an installation from them lacks nothing."""
    paths = ("scripts/runtime.lock", "scripts/development.lock", "images/base/torch-cpu.txt")
    listed = lock.versions(ROOT / path for path in paths)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for each in project["optional-dependencies"].values() for line in each),
    ]
    for each in map(Requirement, wanted):
        assert all(map(each.specifier.contains, listed[canonicalize_name(each.name)])), each
    done = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("wheel", "ours"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", True),
        ("a-1-cp39-abi3-macosx_11_0_arm64.whl", True),
        ("a-1-cp313-abi3-manylinux_2_28_x86_64.whl", True),  # for 3.13 and newer
        ("a-1-cp315-abi3-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
    ],
)
def test_the_lists_hold_wheels_for_the_machines_we_support(wheel: str, ours: bool) -> None:
    assert lock.serves(wheel) is ours


@pytest.mark.parametrize(
    ("wheels", "gaps"),
    [
        (["a-1-py3-none-any.whl"], 0),
        (["a-1-cp39-abi3-manylinux_2_17_x86_64.whl", "a-1-cp39-abi3-manylinux_2_24_aarch64.whl"], 0),
        (["a-1-cp311-abi3-manylinux2014_x86_64.whl"], 4),
        (["a-1-cp311-abi3-manylinux_2_17_x86_64.whl", "a-1-cp311-abi3-musllinux_1_2_aarch64.whl"], 4),
        (["a-1-cp311-abi3-manylinux_2_17_x86_64.whl", "a-1-cp311-abi3-manylinux_2_34_aarch64.whl"], 4),
        ([f"a-1-cp31{n}-cp31{n}-manylinux_2_17_{m}.whl" for n in (1, 2, 3) for m in lock.MACHINES], 2),
    ],
)
def test_a_list_for_sessions_serves_every_python_and_machine(wheels: list[str], gaps: int) -> None:
    assert len(lock.unserved(wheels)) == gaps


def test_the_lists_for_sessions_have_the_versions_that_we_test_with() -> None:
    ours = lock.pinned(
        ROOT / path
        for path in ("scripts/runtime.lock", "scripts/development.lock", "images/base/torch-cpu.txt")
    )
    assert set(lock.UPLINK) == set(packages.LISTS) == {path.stem for path in UPLINK_LISTS}
    for name, wanted in lock.UPLINK.items():
        listed = lock.pinned([ROOT / f"orchestrator/agent/packages/{name}.lock"])
        assert wanted in listed
        assert listed.items() <= ours.items()
    assert encrypted.PACKAGES in packages.LISTS


def test_our_own_wheel_has_every_file_of_the_package() -> None:
    """Also the lists, which the controller packs into the agent."""
    package = ROOT / "orchestrator"
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    taken = {path for pattern in patterns["orchestrator"] for path in package.glob(pattern)}
    others = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert others <= taken
    assert set(UPLINK_LISTS) <= others


def test_the_notices_name_every_package_with_a_licence() -> None:
    packages = {notices.name(each): each for each in metadata.distributions()}
    text = notices.notices(packages.values())
    named = re.findall(rf"^{notices.RULE}\n([\w.-]+) (\S+)\nLicence: \S", text, re.MULTILINE)
    assert dict(named) == {name: each.version for name, each in packages.items() if name != notices.OURS}
    assert "Permission is hereby granted" in text


def test_a_package_without_a_text_of_its_licence_says_so(tmp_path: Path) -> None:
    write_wheel(tmp_path, "greeting", "1.0")
    with zipfile.ZipFile(tmp_path / "greeting-1.0-py3-none-any.whl") as archive:
        archive.extractall(tmp_path / "site")
    text = notices.notices(metadata.distributions(path=[str(tmp_path / "site")]))
    assert "greeting 1.0\nLicence: unstated\nIts package does not contain the text of its licence." in text


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "[yyyy]" not in text
    assert "[name of copyright owner]" not in text
    owner = re.search(r"Copyright \d{4}.*", text)
    assert owner is not None
    assert owner[0] in (ROOT / "NOTICE").read_text()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in a folder with a space in its name, with the files that set-up reads."""
    root = tmp_path / "a clone"
    for path in setup.DECISIVE:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, root / path)
    return root


def run_setup(root: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "scripts" / "setup.py")]
    return subprocess.run(command, env=os.environ | env, capture_output=True, text=True, timeout=PATIENCE)


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
