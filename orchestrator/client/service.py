"""The controller as a service of this machine: systemd's user manager, or launchd on a Mac.

Decides what the unit says and whether a reboot would end things. A stop must leave the sessions running, so
only the controller's own process is signalled, not its control group (docs/references/operations.md#systemd).
Must never know a run.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import user
from orchestrator.client.home import DATABASE, VARIABLE, Home, default
from orchestrator.errors import AccessDenied, BackendError, InputError
from orchestrator.files import write_whole
from orchestrator.ledger.database import has_password

STOP_SECONDS = 90  # the longest that a tick waits for the ledger is 30
COMMAND_SECONDS_MAX = 100.0  # a stop takes STOP_SECONDS at most
LOOK_SECONDS_MAX = 5.0
# The installed controller needs what `up` would find in this shell: its programs, the
# places of its logins, and the cache with fetched inputs and the locks of GPUs.
KEPT_VARIABLES = ("PATH", DATABASE, "DOCKER_HOST", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TZ")

UNIT = """\
[Unit]
Description=Orchestrator: the controller of {home}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
ExecStart={command}
{environment}Restart=on-failure
RestartSec=10
# It finishes its tick and leaves. Sessions on this machine go on, also if one runs out of memory.
KillMode=process
TimeoutStopSec={stop}
OOMPolicy=continue
UMask=0077
{user}
[Install]
WantedBy={target}
"""


@dataclass(frozen=True)
class Service:
    """The service of one home. `path` is its unit's file; None: this machine has neither systemd nor
    launchd. `lingers`: it starts at boot, not only with a login. None: unknown."""

    name: str
    path: Path | None
    installed: bool = False
    enabled: bool = False
    active: bool = False
    lingers: bool | None = None
    advice: str = ""

    @property
    def survives_reboot(self) -> bool:
        """Whether the controller is back after a reboot without anybody's help."""
        return self.enabled and self.lingers is not False


def name_of(home: Home) -> str:
    """One name for each home, so that several homes can each have a service."""
    with suppress(user.NoHome):
        if VARIABLE not in os.environ and default() == home.path:
            return "orchestrator"
    return f"orchestrator-{hashlib.sha256(str(home.path).encode()).hexdigest()[:8]}"


def unit(home: Home, *, system: bool = False, standby: bool = False) -> str:
    """The text of a systemd unit for this home: of the user's manager, or (`system`) of the machine's.
    `standby`: it waits while another machine's controller runs. Raises InputError if a password would be in
    it."""
    environment = "".join(
        f"Environment={_quoted(f'{name}={value}')}\n" for name, value in _kept(home).items()
    )
    return UNIT.format(
        home=str(home.path).replace("%", "%%").replace("\n", " "),
        command=" ".join(_quoted(word).replace("$", "$$") for word in _command(standby)),
        environment=environment,
        stop=STOP_SECONDS,
        user=f"User={user.name()}\n" if system else "",
        target="multi-user.target" if system else "default.target",
    )


def plist(home: Home, *, standby: bool = False) -> bytes:
    """The same for launchd. It restarts a controller that failed, and leaves its children alone."""
    return plistlib.dumps({
        "Label": f"dev.{name_of(home)}",
        "ProgramArguments": list(_command(standby)),
        "EnvironmentVariables": _kept(home),
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "AbandonProcessGroup": True,
        "ExitTimeOut": STOP_SECONDS,
        "ProcessType": "Background",
        "Umask": 0o077,
    })  # fmt: skip


def _command(standby: bool) -> tuple[str, ...]:
    words = (str(Path(sys.executable).absolute()), "-P", "-m", "orchestrator", "up")
    return (*words, "--standby") if standby else words


def _kept(home: Home) -> dict[str, str]:
    """The service's variables. A unit is no place for a password: every user of the machine may read it."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if os.environ.get(name)}
    if not home.reads_variable():
        kept.pop(DATABASE, None)
    if has_password(kept.get(DATABASE, "")):
        raise InputError(
            f"{DATABASE} has a password, which would be in the service's unit: write the URL into a file in "
            f"{home.path}, such as database-url, with mode 600; set `database: file:database-url` in "
            f"{home.folders.config}; then try again"
        )
    return {VARIABLE: str(home.path), **kept}


def _quoted(text: str) -> str:
    """One word of a unit: systemd.syntax(7). In a command, but not in `Environment=`, a `$` is doubled, too:
    systemd.service(5), systemd.exec(5)."""
    if "\n" in text or "\0" in text:
        raise InputError("a path or variable of the service has a line break: it cannot be in a unit")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


# --- On this machine ------------------------------------------------------------------------------------


def look(home: Home) -> Service:
    """What this machine has of it. Changes nothing, and raises nothing for a machine without services."""
    name = name_of(home)
    try:
        folder = _agents() if sys.platform == "darwin" else _units()
    except user.NoHome as error:
        return Service(name, None, advice=f"{error}: set HOME, or start `orchestrator up` at boot")
    if sys.platform == "darwin":
        path = folder / f"dev.{name}.plist"
        loaded = _runs("launchctl", "print", f"gui/{os.getuid()}/dev.{name}")
        return Service(name, path, path.exists(), path.exists(), loaded, None)
    if shutil.which("systemctl") is None:
        return Service(name, None, advice="this machine has no systemd: start `orchestrator up` at boot")
    path = folder / f"{name}.service"
    lingers = _says("loginctl", "show-user", str(os.getuid()), "--property=Linger", "--value")
    return Service(
        name,
        path,
        path.exists(),
        _runs("systemctl", "--user", "is-enabled", "--quiet", path.name),
        _runs("systemctl", "--user", "is-active", "--quiet", path.name),
        None if lingers is None else lingers == "yes",
        "" if lingers == "yes" else f"to start it at boot, before you log in: {linger_command()}",
    )


def install(home: Home, *, standby: bool = False) -> Service:
    """Writes the unit, enables it and starts it. Idempotent: a changed unit replaces the old one, and what
    runs starts again with it.

    Raises InputError on a machine without services, and BackendError if its manager refuses.
    """
    found = look(home)
    if found.path is None:
        raise InputError(f"{found.advice}; `orchestrator service install --print` shows a unit to adapt")
    try:
        found.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise AccessDenied(
            f"{found.path.parent} cannot be created ({error.strerror}): set HOME to a folder that you can "
            "write to",
            backend="service",
        ) from error
    home.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform == "darwin":
        write_whole(found.path, plist(home, standby=standby))
        if found.active:
            _do("launchctl", "bootout", f"gui/{os.getuid()}/dev.{found.name}")
        _do("launchctl", "bootstrap", f"gui/{os.getuid()}", str(found.path))
    else:
        text = unit(home, standby=standby).encode()
        changed = found.installed and found.path.read_bytes() != text
        write_whole(found.path, text)
        _do("systemctl", "--user", "daemon-reload")
        if changed:
            _do("systemctl", "--user", "try-restart", found.path.name)
        _do("systemctl", "--user", "enable", "--now", found.path.name)
    return look(home)


def uninstall(home: Home) -> Service:
    """Stops the service and removes the unit; sessions continue. Does nothing if there is none."""
    found = look(home)
    if found.path is None or not found.installed:
        return found
    if sys.platform == "darwin":
        _runs("launchctl", "bootout", f"gui/{os.getuid()}/dev.{found.name}")
        found.path.unlink()
    else:
        _do("systemctl", "--user", "disable", "--now", found.path.name)
        found.path.unlink(missing_ok=True)
        _do("systemctl", "--user", "daemon-reload")
    return look(home)


def linger_command() -> str:
    with suppress(InputError):
        return f"loginctl enable-linger {user.name()}"
    return f"loginctl enable-linger {os.getuid()}"


def _agents() -> Path:
    return user.home() / "Library" / "LaunchAgents"


def _units() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME")
    return (Path(config) if config else user.home() / ".config") / "systemd" / "user"


def _ran(
    words: tuple[str, ...], seconds: float = LOOK_SECONDS_MAX
) -> subprocess.CompletedProcess[str] | None:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return None


def _runs(*words: str) -> bool:
    done = _ran(words)
    return done is not None and done.returncode == 0


def _says(*words: str) -> str | None:
    done = _ran(words)
    return done.stdout.strip() if done is not None and done.returncode == 0 else None


def _do(*words: str) -> None:
    done = _ran(words, COMMAND_SECONDS_MAX)
    if done is None:
        raise BackendError(f"`{' '.join(words)}` could not be run", backend="service")
    if done.returncode:
        said = " ".join(done.stderr.split())[:300]
        if "bus" in said.lower():
            raise AccessDenied(
                f"the user's service manager cannot be reached ({said}): log in as this user, not with su or "
                f"sudo; or run `{linger_command()}` first; or install a system service: `orchestrator "
                "service install --print --system`",
                backend="service",
            )
        raise BackendError(f"`{' '.join(words)}` failed: {said}", backend="service")
