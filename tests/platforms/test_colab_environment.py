"""Where Colab's command line is installed, and what its processes see."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.errors import AccessDenied, InputError, Preparing, Transient
from orchestrator.platforms.colab.environment import NO_PRODUCTION, Environment
from orchestrator.platforms.colab.installing import find_python, install
from tests.waiting import wait_until

HERE = "http://127.0.0.1:9"


def test_no_test_reaches_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without a proxy, nor through one elsewhere."""
    monkeypatch.setenv("HTTPS_PROXY", HERE)  # of this process, not of the platform
    for proxy in (None, "http://10.0.0.1:8080", "http://localhost.example:1"):
        with pytest.raises(InputError, match=NO_PRODUCTION):
            Environment(tmp_path, proxy=proxy).ready()
        with pytest.raises(InputError, match=NO_PRODUCTION):
            Environment(tmp_path, proxy=proxy).variables()
    assert list(tmp_path.iterdir()) == []
    assert Environment(tmp_path, proxy=HERE).variables()[NO_PRODUCTION] == "1"


def test_only_what_is_needed_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "PYTHONPATH",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "COLAB_CLI_ASSIGN_RETRIES",
        "AWS_SECRET_ACCESS_KEY",
    ):
        monkeypatch.setenv(name, "stray")
    seen = Environment(tmp_path, proxy=HERE, ca_file=tmp_path / "ca").variables()
    assert "stray" not in seen.values()
    assert (seen["HOME"], seen["https_proxy"]) == (str(tmp_path / "home"), HERE)
    assert seen["REQUESTS_CA_BUNDLE"] == str(tmp_path / "ca")
    adc = Environment(tmp_path, proxy=HERE, auth="adc", adc_file=tmp_path / "adc.json")
    assert adc.variables()["GOOGLE_APPLICATION_CREDENTIALS"] == str(tmp_path / "adc.json")
    assert not adc.is_logged_in()


def test_an_old_or_missing_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if sys.version_info < (3, 12):
        with pytest.raises(AccessDenied, match=r"needs 3\.12 or newer"):
            find_python(Path(sys.executable))
    with pytest.raises(AccessDenied, match="does not start"):
        find_python(tmp_path / "python")
    if sys.version_info < (3, 12):
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.delenv("PYENV_ROOT", raising=False)
        with pytest.raises(AccessDenied, match=r"python install 3\.13"):
            find_python()


def test_an_interrupted_installation_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    colab_python: None,  # noqa: ARG001
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", HERE)
    monkeypatch.setenv("UV_NO_CACHE", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    said: list[str] = []
    environment = Environment(tmp_path / "account", cache=tmp_path / "cache", proxy=HERE, say=said.append)
    with pytest.raises(Transient, match="cannot be installed"):
        environment.ready()
    assert said == ["Installing Google Colab's command line"]
    assert [each.name for each in (tmp_path / "cache").iterdir()] == ["colab-cli.lock"]


_IMPATIENT = """
import sys
from pathlib import Path
from orchestrator.errors import Preparing
from orchestrator.platforms.colab.installing import install
try:
    install(Path(sys.argv[1]), Path(sys.argv[2]), 0.0, print)
except Preparing:
    sys.exit(7)
"""


def test_an_installation_outlives_whoever_asked_for_it_and_is_never_begun_twice(tmp_path: Path) -> None:
    """Its interpreter starts only when the test lets it, and then fails."""
    gate, begun, python = tmp_path / "gate", tmp_path / "begun", tmp_path / "python"
    os.mkfifo(gate)
    python.write_text(f"#!/bin/sh\necho >> {begun}\nread line < {gate}\nexit 1\n")
    python.chmod(0o700)
    place = tmp_path / "cache" / "colab-cli"
    abandoned = place.parent / ".tmp-orchestrator-abandoned"
    abandoned.mkdir(parents=True)
    asked = subprocess.run([sys.executable, "-c", _IMPATIENT, str(place), str(python)], check=False)
    assert asked.returncode == 7
    assert not abandoned.exists()
    wait_until(lambda: begun.exists() and begun.read_text(), "the interpreter to start")
    said: list[str] = []
    for _ in range(2):
        with pytest.raises(Preparing, match="being installed, which may take some minutes; try again"):
            install(place, python, 0.0, said.append)
    assert said == []
    assert begun.read_text() == "\n"
    with gate.open("r+b", buffering=0) as opened:
        opened.write(b"\n" * 9)  # for the next one, too
        with pytest.raises(AccessDenied, match="python does not start"):
            install(place, python, None, said.append)  # waits for the other, and tries once more
    assert len(said) == 1
    assert [each.name for each in place.parent.iterdir()] == ["colab-cli.lock"]
