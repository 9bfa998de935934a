"""Whose Python a session on the user's own machine gets: found, refused, and entered. Real environments."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.interpreters import ask
from orchestrator.pythons import NoPython, active, checked, entered, named
from tests.cli.calls import CONFIG, Caller, caller
from tests.waiting import wait_until

VERSION = ".".join(map(str, sys.version_info[:3]))
REPOSITORY = Path(__file__).parent.parent
# What a script in the user's Python imports of ours: `orchestrator.training`, and the runner of notebooks.
SEEN = ("training/*.py", "notebook/*.py", "core/mask.py", "core/notebook.py", "clock.py", "__init__.py")
TOO_NEW = {"StrEnum", "UTC", "Self", "TypeAlias", "pairwise", "file_digest", "assert_never", "batched"}
SEES = """
import json, os, shutil, sys
from pathlib import Path
import only_here, orchestrator.training
told = {name: os.environ.get(name) for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME")}
told |= {name: shutil.which(name) for name in ("python", "python3", "tool")}
Path(sys.argv[1]).write_text(json.dumps(told | {"executable": sys.executable, "PATH": os.environ["PATH"]}))
"""
JOB = """
name: tiny
source: code
command: python train.py {out}
work: {{total: 1, global_batch: 8}}
profiles: {{cpu: {{micro_batch: 8, precision: fp32}}}}
"""


def environment(folder: Path) -> Path:
    """A virtual environment with one module and one program that nothing else has."""
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "only_here.py").write_text("")
    program(folder / "bin" / "tool", "exit 0")
    info = packages / "torch-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 9.9\n")
    return folder


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def conda(root: Path, *names: str) -> Path:
    """An installation of conda with these environments, whose interpreters lead to ours."""
    for prefix in (root, *(root / "envs" / name for name in names)):
        (prefix / "conda-meta").mkdir(parents=True)
        program(prefix / "bin" / "python", f'exec "{sys.executable}" "$@"')
    (root / "condabin").mkdir()
    return root


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("own") / "env")


# --- What a user writes -----------------------------------------------------------------------------------


def test_an_interpreter_that_never_stops_talking_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NoPython, match=r"does not work \(exit code -13\)"):
        checked(program(tmp_path / "python", "exec yes"))


def test_what_an_interpreter_leaves_running_keeps_nobody_waiting(tmp_path: Path) -> None:
    wrapper = program(tmp_path / "python", f'sleep 60 & echo $! >{tmp_path}/pid; exec {sys.executable} "$@"')
    try:
        assert ask(wrapper, seconds=20.0).version == sys.version_info[:3]
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_a_path_is_an_interpreter_or_an_environments_folder(theirs: Path, tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(theirs)
    variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for text in (str(theirs), f"{theirs}/bin/python", "./.venv", ".venv"):
        found = checked(named(text, variables, tmp_path))
        assert (found.torch, found.is_virtual) == ("9.9", True), text
    with pytest.raises(NoPython, match=r"/nowhere does not exist; valid is the path of an interpreter"):
        named("/nowhere", variables)
    with pytest.raises(NoPython, match=r"is a folder without bin/python"):
        named(str(tmp_path), variables)
    with pytest.raises(NoPython, match=r"write the whole path"):
        named("./.venv", variables)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(NoPython, match=r"is not a program that can be started"):
        named(str(tmp_path / "notes.txt"), variables)


@pytest.mark.parametrize("text", ["env", "./env/bin/python"])
def test_an_environment_whose_base_is_gone_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to("python3")
    (tmp_path / "env" / "bin" / "python3").symlink_to("/gone/python3.12")
    with pytest.raises(NoPython, match=r"env/bin/python leads to /gone/python3\.12, which does not exist"):
        named(text, {"PATH": "/usr/bin"}, tmp_path)


@pytest.mark.parametrize("where", ["CONDA_EXE", "CONDA_PREFIX", "usual", "listed", "asked"])
def test_a_name_is_a_conda_environment(tmp_path: Path, where: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    root = conda(home / "miniforge3" if where == "usual" else tmp_path / "conda", "train", "other")
    variables = {"HOME": str(home), "PATH": "/usr/bin"}
    if where == "CONDA_EXE":
        variables["CONDA_EXE"] = str(root / "bin" / "conda")
    elif where == "CONDA_PREFIX":
        variables["CONDA_PREFIX"] = str(root / "envs" / "other")
    elif where == "listed":
        (home / ".conda").mkdir()
        (home / ".conda" / "environments.txt").write_text(f"/gone\n{root}/envs/train\n{root}/envs/other\n")
    elif where == "asked":
        told = json.dumps({"envs": [str(root / "envs" / "train"), str(root / "envs" / "other")]})
        variables["PATH"] = str(program(tmp_path / "bin" / "conda", f"echo '{told}'").parent)
    assert named("train", variables) == root / "envs" / "train" / "bin" / "python"
    told_names = "valid: base, other, train" if where in ("CONDA_EXE", "CONDA_PREFIX", "usual") else "valid"
    with pytest.raises(NoPython, match=told_names):
        named("trian", variables)


def test_what_is_no_python_or_too_old_is_told(tmp_path: Path) -> None:
    old = json.dumps({"path": "/old/python", "prefix": "/old", "base": "/old", "version": [3, 8, 20],
                      "folders": [], "packages": {}})  # fmt: skip
    with pytest.raises(
        NoPython, match=r"/old/python is Python 3\.8\.20; a session needs Python 3\.9 or newer"
    ):
        checked(program(tmp_path / "old", f"echo '{old}'"))
    with pytest.raises(NoPython, match=r"broken does not work \(exit code 1\): no stdlib"):
        checked(program(tmp_path / "broken", "echo no stdlib >&2; exit 1"))
    with pytest.raises(NoPython, match=r"is not a Python interpreter"):
        checked("/bin/echo")


def test_the_agents_zip_is_no_folder_of_our_own_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each session would seem to have another Python, and install its requirements again."""
    before = ask(sys.executable).folders
    (tmp_path / "agent.pyz").write_bytes(b"")
    monkeypatch.syspath_prepend(tmp_path / "agent.pyz")
    assert ask(sys.executable).folders == before


def test_what_start_up_files_print_or_break_does_not_matter(tmp_path: Path) -> None:
    folder = tmp_path / "mein Ordner ü"
    venv.EnvBuilder(symlinks=True).create(folder)
    starting = next(folder.glob("lib/python3*/site-packages")) / "sitecustomize.py"
    for text in ("import atexit\nprint('[1]')\natexit.register(print, '{}')\n", "raise RuntimeError\n"):
        starting.write_text(text)
        assert checked(named(str(folder), {})).prefix == str(folder)


def test_a_conda_environment_without_python_says_so(tmp_path: Path) -> None:
    (tmp_path / "empty" / "conda-meta").mkdir(parents=True)
    with pytest.raises(NoPython, match=r"empty is a conda environment without Python: `conda install -p "):
        named(str(tmp_path / "empty"), {})


# --- What is active ---------------------------------------------------------------------------------------


def test_the_activated_environment_comes_first(theirs: Path, tmp_path: Path) -> None:
    variables = {"PATH": "/usr/bin:/bin", "VIRTUAL_ENV": str(theirs), "CONDA_PREFIX": str(tmp_path)}
    found, why = active(variables)
    assert (found.prefix, why) == (str(theirs), "the activated virtual environment")
    root = conda(tmp_path / "conda", "train")
    prefix = root / "envs" / "train"
    assert active({"CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": "train"})[1].endswith(
        "environment train"
    )
    # conda activates `base` by itself, so it does not count more than the environment that holds us
    assert "installed in" in active({"CONDA_PREFIX": str(root), "CONDA_DEFAULT_ENV": "base"})[1]
    assert "installed in" in active({"VIRTUAL_ENV": "/gone"})[1]


@pytest.fixture(scope="module")
def tool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment that holds only us, as pipx and `uv tool` make them."""
    folder = tmp_path_factory.mktemp("tool") / "env"
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = next(folder.glob("lib/python3*/site-packages"))
    (packages / "orchestrator").symlink_to(REPOSITORY / "orchestrator")
    needs = {"accelerator_orchestrator": ("PyYAML>=6", 'torch; extra == "training"'), "pyyaml": (), "pip": ()}
    for name, requires in needs.items():
        info = packages / f"{name}-1.0.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {each}\n" for each in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}")
    return folder


def chosen_in(tool: Path, theirs: Path, **variables: str) -> dict[str, str]:
    """What is active for a program in that environment, and its PATH in a session."""
    code = (
        "import json, os, sys; from pathlib import Path; from orchestrator.pythons import active, entered; "
        "found, why = active(os.environ); "
        "print(json.dumps({'path': found.path, 'why': why, "
        "'PATH': entered(found, os.environ, Path(sys.argv[1]))['PATH']}))"
    )
    path = f"{tool}/bin:{theirs}/bin:/usr/bin:/bin"
    done = subprocess.run(
        [tool / "bin" / "python", "-c", code, tool.parent / "links"],
        env={"PATH": path, "HOME": "/nonexistent", **variables}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, str] = json.loads(done.stdout)
    return found


def test_an_environment_that_holds_only_us_is_never_the_users(tool: Path, theirs: Path) -> None:
    for variables in ({}, {"VIRTUAL_ENV": str(tool)}):
        found = chosen_in(tool, theirs, **variables)
        assert (found["path"], found["why"]) == (f"{theirs}/bin/python3", "the first in PATH")
        assert found["PATH"].split(":") == [f"{theirs}/bin", "/usr/bin", "/bin"]
    assert chosen_in(tool, theirs, PATH=f"{tool}/bin")["path"] == sys._base_executable  # type: ignore[attr-defined]
    info = next(tool.glob("lib/python3*/site-packages")) / "torch-9.9.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: torch\nVersion: 9.9\n")
    found = chosen_in(tool, theirs)  # what is added makes it the user's
    assert found["path"] == f"{tool}/bin/python"
    (info / "METADATA").unlink()
    info.rmdir()


# --- Entering it ------------------------------------------------------------------------------------------


def test_names_that_would_lead_elsewhere_are_made_to_lead_there(tmp_path: Path, theirs: Path) -> None:
    """A system's Python keeps PATH's order, and `python` starts it even if it is called python3 only."""
    base = ask(sys._base_executable)  # type: ignore[attr-defined]
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "python3.11").symlink_to(base.path)
    odd = ask(folder / "python3.11")
    variables = entered(
        odd, {"PATH": f"{theirs}/bin:/usr/bin:/bin", "VIRTUAL_ENV": str(theirs)}, tmp_path / "l"
    )
    assert variables["PATH"].split(":")[0] == str(tmp_path / "l")
    assert "VIRTUAL_ENV" not in variables
    for name in ("python", "python3"):
        code = "import sys; print(sys.executable)"
        said = subprocess.run([name, "-c", code], env=variables, capture_output=True, text=True, check=True)
        assert said.stdout.strip() == odd.path
    assert entered(checked(theirs / "bin" / "python"), variables, tmp_path / "none")["VIRTUAL_ENV"] == str(
        theirs
    )
    assert not (tmp_path / "none").exists()


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Caller]:
    with caller(tmp_path) as found:
        found.config()
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "train.py").write_text(SEES)
        (tmp_path / "job.yaml").write_text(JOB.format(out=tmp_path / "seen.json"))
        yield found


def seen(user: Caller) -> dict[str, str]:
    found: dict[str, str] = json.loads((user.folder / "seen.json").read_text())
    return found


def test_a_session_runs_in_the_environment_that_was_active_at_submit(user: Caller, theirs: Path) -> None:
    """The controller was started before, from elsewhere."""
    controller = user.start("up", PYTHONHOME="")
    wait_until(lambda: user.owner() is not None, "the controller")
    told = user("plan", "job.yaml", VIRTUAL_ENV=str(theirs))
    assert f"{theirs}/bin/python ({VERSION}," in told.out
    assert "with torch 9.9; the activated virtual environment)" in told.out
    run = str(user("submit", "job.yaml", "--json", VIRTUAL_ENV=str(theirs)).json["run"])
    user.wait_for_phase(run, "done")
    found = seen(user)
    assert found["executable"] == found["python"] == f"{theirs}/bin/python"
    assert found["python3"] == f"{theirs}/bin/python3"
    assert found["tool"] == f"{theirs}/bin/tool"
    assert found["VIRTUAL_ENV"] == str(theirs)
    shown = user("show", run)
    assert f"{theirs}/bin/python ({VERSION}," in shown.out
    controller.terminate()


def test_the_job_wins_over_the_config_and_the_config_over_what_is_active(user: Caller, theirs: Path) -> None:
    user.config(CONFIG.replace("{type: process", f"{{type: process, python: {theirs}"))
    told = user("plan", "job.yaml", "--json").json["pythons"]
    assert [(each["path"], each["why"]) for each in told] == [
        (f"{theirs}/bin/python", "`python` in the config")
    ]
    (user.folder / "job.yaml").write_text(
        JOB.format(out=user.folder / "seen.json") + f"python: {sys.executable}\n"
    )
    [found] = user("plan", "job.yaml", "--json").json["pythons"]
    assert (found["path"], found["why"]) == (sys.executable, "`python` in the job")
    (user.folder / "job.yaml").write_text(JOB.format(out="x") + "python: nowhere/env\n")
    answer = user("submit", "job.yaml", code=2)
    assert "job.yaml:7: python: " in answer.err
    assert "nowhere/env does not exist" in answer.err
    user.config(CONFIG.replace("{type: process", "{type: process, python: /nowhere"))
    (user.folder / "job.yaml").write_text(JOB.format(out="x"))
    assert (
        "config.yaml:3: platforms.here.python: /nowhere does not exist"
        in user("plan", "job.yaml", code=2).err
    )
    assert "/nowhere does not exist" in user("doctor", code=3).out


def test_a_run_whose_python_is_gone_is_held_and_told_what_to_do(user: Caller) -> None:
    """It is gone when the second session starts."""
    own = environment(user.folder / "env")
    user.job(gate=20)
    text = (user.folder / "job.yaml").read_text().replace("source: source", "source: counting")
    (user.folder / "job.yaml").write_text(text + f"python: {own}\n")
    (user.folder / "counting").symlink_to(Path(__file__).parent / "cli" / "data" / "source")
    run = user.submitted("job.yaml")
    wait_until(lambda: user.record(run).accepted, "a checkpoint")
    own.rename(user.folder / "elsewhere")
    user.wait_for_phase(run, "held")
    reason = user.record(run).standing_reason
    assert f"{own}/bin/python cannot be started: No such file or directory" in reason
    assert "`python` in the job" in reason
    assert "orchestrator retry" in reason
    assert user.record(run).generation == 2
    (user.folder / "elsewhere").rename(own)
    user.open_gate(40)
    user("release", run)
    user.wait_for_phase(run, "done")


def test_what_a_script_imports_of_ours_works_in_the_oldest_python() -> None:
    package = REPOSITORY / "orchestrator"
    for path in (path for pattern in SEEN for path in package.glob(pattern)):
        tree = ast.parse(path.read_text(), str(path), feature_version=(3, 9))
        assert not any(isinstance(each, ast.Match) for each in ast.walk(tree)), path
        names = {
            alias.name for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) for alias in each.names
        }
        assert not names & TOO_NEW, path
        for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
            is_zip = isinstance(call.func, ast.Name) and call.func.id == "zip"
            assert not is_zip or not call.keywords, f"{path}:{call.lineno}: zip(strict=…) needs Python 3.10"
