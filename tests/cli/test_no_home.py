"""A user without a home folder or a name, such as a container's arbitrary uid: what is missing is named, and
what needs neither works."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests import no_production
from tests.cli.calls import BINARIES, PATIENCE, UNLIMITED, Answer, Caller
from tests.waiting import wait_until

# In a user namespace, a process has a uid that no passwd entry knows, and still may read this installation.
UID = "12345"
NAMESPACE = ("unshare", "--user", f"--map-user={UID}", f"--map-group={UID}")
Call = Callable[..., Answer]


@pytest.fixture
def nobody(user: Caller) -> Call:
    """Runs a command as that uid, with these variables and a PATH alone."""
    if subprocess.run([*NAMESPACE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user cannot make a user namespace")

    def call(*words: str, code: int = 0, **variables: str) -> Answer:
        kept = {name: user.environment()[name] for name in ("PATH", "PIP_NO_INDEX", no_production.VARIABLE)}
        done = subprocess.run(
            [*NAMESPACE, str(BINARIES / "orchestrator"), *words], cwd=user.folder, env=kept | variables,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.mark.parametrize(
    ("words", "variables", "why"),
    [
        (("ps",), {}, "HOME is not set"),
        (("submit", "job.yaml"), {"HOME": ""}, "HOME is not set"),
        (("doctor",), {"HOME": "relative"}, "HOME is 'relative', which is no absolute path,"),
    ],
)
def test_a_home_that_cannot_be_known_is_asked_for(
    nobody: Call, words: tuple[str, ...], variables: dict[str, str], why: str
) -> None:
    said = nobody(*words, code=2, **variables).err
    assert f"{why} and no passwd entry names a home folder of uid {UID}" in said
    assert "set HOME, ORCHESTRATOR_HOME or --home" in said


def test_what_needs_neither_home_nor_name_works(nobody: Call, user: Caller) -> None:
    home = ("--home", str(user.home))
    (user.home / "config.yaml").unlink()
    nobody("init", *home)
    assert "there are no runs yet" in nobody("ps", *home).out
    nobody("uninstall", *home)


def test_what_is_missing_is_named(nobody: Call, user: Caller) -> None:
    home = ("--home", str(user.home))
    user.config(UNLIMITED + "  remote: {type: kaggle}\n")
    assert "set HOME or XDG_DATA_HOME" in nobody("completion", "bash", "--install", *home, code=2).err
    assert "set HOME" in nobody("service", "install", *home, code=2).err
    assert "set USER" in nobody("service", "install", "--print", "--system", *home, code=2).err
    looked = {each["what"]: each for each in nobody("doctor", *home, "--json", code=3).json["findings"]}
    assert looked["platform here"]["state"] == "ok"
    assert "set KAGGLE_API_TOKEN to it" in looked["platform remote"]["text"]


def test_a_folder_below_an_unknown_home_is_refused_by_its_option(nobody: Call, user: Caller) -> None:
    user.config(UNLIMITED + "stores:\n  home: {type: folder, path: ~/kept}\n")
    said = nobody("prune", "--home", str(user.home), code=2).err
    assert "'path'" in said
    assert "~ in '~/kept' is not known: HOME is not set" in said


def test_a_run_goes_to_its_end(nobody: Call, user: Caller) -> None:
    user.config(UNLIMITED)
    job = user.job(total=3, pace=0)
    run = nobody("submit", job, "--home", str(user.home), "--json").json["run"]
    wait_until(lambda: user.record(run).standing == "done", "the run to be done")
    assert not list(user.folder.rglob("~"))
