"""The service's unit: what systemd makes of it, and that its own command line works."""

from __future__ import annotations

import configparser
import os
import plistlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.client import service
from orchestrator.client.checkup import findings
from orchestrator.client.home import VARIABLE, Home
from orchestrator.clock import SystemClock
from orchestrator.config import write_default
from orchestrator.errors import InputError
from orchestrator.files import in_memory
from orchestrator.ledger import Ledger
from tests.waiting import wait_until


def read(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def test_a_stop_leaves_the_sessions_and_a_crash_is_repaired(tmp_path: Path) -> None:
    found = read(service.unit(Home(tmp_path)))["Service"]
    assert found["Type"] == "exec"
    assert found["KillMode"] == "process", "a session is in the same control group"
    assert found["OOMPolicy"] == "continue", "a session that runs out of memory does not stop the controller"
    assert found["Restart"] == "on-failure"
    assert int(found["TimeoutStopSec"]) > 30
    assert "User" not in found
    assert read(service.unit(Home(tmp_path), system=True))["Service"]["User"]


def test_its_command_line_runs_a_controller_that_sigterm_ends_with_success(tmp_path: Path) -> None:
    """Without systemd: exactly the words and the environment of the unit."""
    home = tmp_path / "a home with spaces, 100% and $HOME"
    text = service.unit(Home(home))
    lines = [line.partition("=") for line in text.splitlines()]
    [command] = [_plain(value) for key, _, value in lines if key == "ExecStart"]
    words = [_variable(value) for key, _, value in lines if key == "Environment"]
    environment = {name: value for name, _, value in words}
    assert environment[VARIABLE] == str(home)
    with subprocess.Popen(
        command, env=environment, cwd=Path.cwd(), stdout=subprocess.PIPE, text=True
    ) as child:
        url = f"sqlite:///{home / 'ledger.sqlite'}"
        wait_until(lambda: (home / "tick.json").exists(), "a tick")
        with Ledger.open(url) as ledger:
            owner = ledger.owner()
            assert owner is not None
            assert owner.pid == child.pid, "the process that systemd watches is the controller"
        child.send_signal(signal.SIGTERM)
        assert child.wait(240) == 0


def _variable(value: str) -> tuple[str, str, str]:
    """In `Environment=`, `$` has no meaning: systemd.exec(5)."""
    return shlex.split(value)[0].replace("%%", "%").partition("=")


def _plain(value: str) -> list[str]:
    """What systemd makes of quoted words: shlex reads quotes alike; then `$$` and `%%` are one each."""
    return [word.replace("$$", "$").replace("%%", "%") for word in shlex.split(value)]


PASSWORDS = [
    "postgresql://me:hunter2@db/ledger",
    "postgresql://db/ledger?password=hunter2",
    "postgresql://db/ledger?sslpassword=hunter2",
    "postgresql://me:hunter2@db:port/ledger",  # which cannot be read
]


@pytest.mark.parametrize("url", PASSWORDS)
def test_no_password_gets_into_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """A unit of the machine is for all to read, and `--print` goes to a screen."""
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", url)
    for made in (service.unit, service.plist):
        with pytest.raises(InputError, match="database: file:database-url") as caught:
            made(Home(tmp_path))
        assert "hunter2" not in str(caught.value)
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", "postgresql://me@db/ledger")
    assert 'Environment="ORCHESTRATOR_DATABASE=postgresql://me@db/ledger"\n' in service.unit(Home(tmp_path))


def test_a_database_that_the_config_names_is_not_kept_in_a_unit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is used only if the config does not name a database, or names the variable."""
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", PASSWORDS[0])
    config = tmp_path / "config.yaml"
    for text in ("timezone: UTC", "database: env:ORCHESTRATOR_DATABASE", "# database: file:x", "a: [", ""):
        config.write_text(text)
        with pytest.raises(InputError, match="database: file:database-url"):
            service.unit(Home(tmp_path))
    for text in ("database: file:database-url", "database: sqlite:///other.sqlite", "database: env:OTHER"):
        config.write_text(text)
        assert "ORCHESTRATOR_DATABASE" not in service.unit(Home(tmp_path), standby=True)
        assert b"hunter2" not in service.plist(Home(tmp_path))


def test_the_config_that_init_writes_recommends_a_database_that_a_service_accepts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_default(tmp_path)
    recommended = re.search(r"set (database: \S+)", (tmp_path / "config.yaml").read_text())
    assert recommended is not None
    (tmp_path / "config.yaml").write_text(recommended[1])
    (tmp_path / "database-url").write_text(PASSWORDS[0])
    monkeypatch.setenv("ORCHESTRATOR_DATABASE", PASSWORDS[0])
    assert Home(tmp_path).database().endswith("me:hunter2@db/ledger")
    assert "hunter2" not in service.unit(Home(tmp_path), standby=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="this machine has no systemd-analyze")
def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    path = tmp_path / "orchestrator.service"
    path.write_text(service.unit(Home(tmp_path)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--user", str(path)], capture_output=True, text=True, check=False
    )
    assert str(path.name) not in done.stderr, done.stderr


def test_each_home_has_a_service_of_its_own(tmp_path: Path) -> None:
    one, two = service.name_of(Home(tmp_path / "one")), service.name_of(Home(tmp_path / "two"))
    assert one != two
    assert one.startswith("orchestrator-")
    with pytest.raises(InputError, match="line break"):
        service.unit(Home(tmp_path / "a\nb"))


def test_launchd_gets_the_same(tmp_path: Path) -> None:
    found = plistlib.loads(service.plist(Home(tmp_path)))
    assert found["ProgramArguments"] == [
        str(Path(sys.executable).absolute()),
        "-P",
        "-m",
        "orchestrator",
        "up",
    ]
    assert found["EnvironmentVariables"][VARIABLE] == str(tmp_path)
    assert found["AbandonProcessGroup"] is True


SYSTEMCTL = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$*" in *is-enabled*|*is-active*) test -e "$UNIT" && test ! -e "$CALLS.stopped";; esac
"""


def test_install_and_uninstall_are_idempotent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in the place of systemctl notes what it is asked; without systemd there is nothing else."""
    home, tools = Home(tmp_path / "home"), tmp_path / "tools"
    tools.mkdir()
    for name in ("systemctl", "loginctl"):
        (tools / name).write_text(SYSTEMCTL)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    path = tmp_path / "config" / "systemd" / "user" / f"{service.name_of(home)}.service"
    monkeypatch.setenv("UNIT", str(path))
    assert not service.look(home).enabled
    for _ in range(2):
        found = service.install(home)
        assert (found.installed, found.enabled, found.active) == (True, True, True)
        assert found.lingers is False
        assert "enable-linger" in found.advice
        assert not found.survives_reboot
    assert path.read_text() == service.unit(home)
    assert "try-restart" not in (tmp_path / "calls").read_text()
    service.install(home, standby=True)
    assert _plain(read(path.read_text())["Service"]["ExecStart"])[-2:] == ["up", "--standby"]
    for _ in range(2):
        assert not service.uninstall(home).installed
    calls = (tmp_path / "calls").read_text()
    assert f"--user enable --now {path.name}" in calls
    assert f"--user try-restart {path.name}" in calls, "what ran had the old command line"
    assert f"--user disable --now {path.name}" in calls


def test_a_machine_without_systemd_is_told_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = service.look(Home(tmp_path))
    assert (found.path, found.survives_reboot) == (None, False)
    with pytest.raises(InputError, match="--print"):
        service.install(Home(tmp_path))


def test_a_launch_agent_is_printed_on_any_machine(tmp_path: Path) -> None:
    found = plistlib.loads(service.plist(Home(tmp_path / "a home"), standby=True))
    assert found["ProgramArguments"][-2:] == ["up", "--standby"]
    assert found["EnvironmentVariables"][VARIABLE] == str(tmp_path / "a home")


def test_a_home_in_memory_is_told_from_one_on_a_disk() -> None:
    assert in_memory(Path("/dev/shm/a/home/that is not there"))
    assert not in_memory(Path("/proc/self"))
    said = {each.what: each for each in findings(Home(Path("/dev/shm/no-such-home")), SystemClock())}
    assert "a reboot removes every run" in said["home: reboot"].text


def test_the_service_shares_this_shell_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the inputs that a submit fetched, and the locks by which no two controllers use one GPU."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert f'Environment="XDG_CACHE_HOME={tmp_path / "cache"}"\n' in service.unit(Home(tmp_path))
