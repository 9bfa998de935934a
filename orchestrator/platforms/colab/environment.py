"""Where Colab's command line is installed, and what its processes see.

Decides its Python, its packages and its variables. It needs a newer Python than we do, and keeps tokens in
files that everyone may read (docs/references/colab.md#what-it-writes). So it gets an environment of its own,
shared by all accounts, and each account a home of its own that nobody else may open. Must never know what is
asked of it.
"""

from __future__ import annotations

import fcntl
import hashlib
import ipaddress
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator.errors import AccessDenied, InputError, Transient
from orchestrator.files.drafts import draft_folder, set_aside, write_whole

LOCK = Path(__file__).with_name("cli.lock")
OLDEST = (3, 12)
NO_PRODUCTION = "ORCHESTRATOR_NO_PRODUCTION"  # set: only a Colab on this machine's loopback
INSTALL_SECONDS = 600.0
_SETTINGS = b'{"enable_update_check": false}\n'  # its notice of a new version goes to standard output
# What a user may have set for a network that needs it. Everything else of our environment stays out.
_INHERITED = (
    "PATH", "LANG", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy",
    "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", NO_PRODUCTION,
)  # fmt: skip
_HERE = "127.0.0.1,localhost"
_PYTHONS = ">=3.12,<3.16"
_SAID_MAX = 500


@dataclass(frozen=True)
class Environment:
    """Colab's command line for one account, whose files are in `folder`.

    `python`: the interpreter to use, 3.12 or newer; None: the newest that is found. `cache`: where the
    packages are installed; None: the user's cache folder. `auth`: `oauth2`, a login of its own, or `adc`, the
    file `adc_file` (an authorized_user file of Google's). `proxy` and `ca_file` are for networks that need
    them; unset, those of this process's environment apply. `say` is told what takes long.
    """

    folder: Path
    python: Path | None = None
    cache: Path | None = None
    auth: str = "oauth2"
    adc_file: Path | None = None
    proxy: str | None = None
    ca_file: Path | None = None
    say: Callable[[str], None] = lambda _: None

    @property
    def home(self) -> Path:
        """The command line's HOME: it has the login."""
        return self.folder / "home"

    @property
    def token(self) -> Path:
        return self.home / ".config" / "colab-cli" / "token.json"

    def is_logged_in(self) -> bool:
        """Whether there is a login, valid or not. Asks nobody."""
        if self.auth == "adc":
            return self.adc_file is not None and self.adc_file.is_file()
        return self.token.is_file()

    def ready(self) -> Path:
        """The command line's interpreter. Installs it if needed, complete or not at all; another process that
        needs it meanwhile waits. Takes up to a minute, and milliseconds afterwards. Raises AccessDenied if
        there is no suitable Python, with the commands that help; Transient if the packages cannot be
        fetched."""
        self._keep_home()
        make_home(self.home)
        installed = self._installed()
        python = installed / "bin" / "python"
        if not python.exists():
            with _only_one(installed.parent):
                if not python.exists():
                    self._install(installed)
        return python

    def variables(self, home: Path | None = None) -> dict[str, str]:
        """The whole environment of its processes; `home` replaces the account's."""
        self._keep_home()
        found = {name: os.environ[name] for name in _INHERITED if os.environ.get(name)}
        found |= {"HOME": str(home or self.home), "TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "1000"}
        found.setdefault("LANG", "C.UTF-8")
        if self.proxy is not None:
            for name in ("HTTPS_PROXY", "HTTP_PROXY"):
                found |= {name: self.proxy, name.lower(): self.proxy}
            found |= {"NO_PROXY": _HERE, "no_proxy": _HERE}
        if self.ca_file is not None:
            found |= {"REQUESTS_CA_BUNDLE": str(self.ca_file), "SSL_CERT_FILE": str(self.ca_file)}
        if self.auth == "adc" and self.adc_file is not None:
            found["GOOGLE_APPLICATION_CREDENTIALS"] = str(self.adc_file)
        return found

    def _keep_home(self) -> None:
        if os.environ.get(NO_PRODUCTION) and not (self.proxy and _on_loopback(self.proxy)):
            raise InputError(f"{NO_PRODUCTION} is set, and no proxy on this machine's loopback")

    # --- Installing -------------------------------------------------------------------------------------

    def _installed(self) -> Path:
        """Where the packages of this list are, for this interpreter."""
        cache = self.cache
        if cache is None:
            from platformdirs import user_cache_path

            cache = user_cache_path("accelerator-orchestrator", appauthor=False)
        wanted = LOCK.read_bytes() + str(self.python or "").encode()
        return cache / f"colab-cli-{hashlib.sha256(wanted).hexdigest()[:16]}"

    def _install(self, place: Path) -> None:
        self.say("Installing Google Colab's command line")
        with draft_folder(place.parent, 0o700) as draft:
            python = str(self.python or _PYTHONS)
            if refused := _uv("venv", "--no-project", "--allow-existing", "--python", python, str(draft)):
                raise AccessDenied(_no_python(self.python, refused))
            if (version := _version(draft)) < OLDEST:
                raise AccessDenied(_no_python(self.python, f"it is {'.'.join(map(str, version))}"))
            if refused := _uv(
                "pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:",
                "--compile-bytecode", "--python", str(draft / "bin" / "python"), "--requirements", str(LOCK),
            ):  # fmt: skip
                raise Transient(f"Google Colab's command line cannot be installed: {refused}")
            set_aside(place)  # its interpreter may be gone
            draft.rename(place)


def make_home(home: Path) -> None:
    """A home for the command line, which nobody else can open. Does nothing if it is there."""
    settings = home / ".config" / "colab-cli"
    if not (settings / "settings.json").exists():
        for folder in (home.parent, home, home / ".config", settings):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(settings / "settings.json", _SETTINGS, sync=False)
    home.chmod(0o700)


def _uv(*words: str) -> str:
    """Runs uv. Returns what it said if it failed, otherwise an empty text."""
    from uv import find_uv_bin

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"PATH": os.pathsep.join([environ.get("PATH", os.defpath), *map(str, _pythons())])}
    if index := environ.get("PIP_INDEX_URL"):
        environ.setdefault("UV_DEFAULT_INDEX", index)
    environ.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            [find_uv_bin(), *words, "--no-config", "--no-python-downloads", "--quiet"],
            env=environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"uv: {type(error).__name__}"
    said = " ".join(done.stderr.decode("utf-8", "replace").split())
    return (said[-_SAID_MAX:] or f"uv ended with {done.returncode}") if done.returncode else ""


def _pythons() -> Iterator[Path]:
    """pyenv's interpreters: on the PATH it has only programs that refuse to start without a choice."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob("versions/*/bin"), reverse=True)


def _version(environment: Path) -> tuple[int, ...]:
    lines = (environment / "pyvenv.cfg").read_text(encoding="utf-8").splitlines()
    given = dict(line.split(" = ", 1) for line in lines if " = " in line)
    return tuple(int(part) for part in given.get("version_info", "0").split(".")[:2])


def _no_python(python: Path | None, said: str) -> str:
    from uv import find_uv_bin

    if python is not None:
        return f"{python} is not a Python of version 3.12 or newer: {said}"
    if "No interpreter found" not in said:
        return f"no environment for Google Colab's command line can be made: {said}"
    return (
        f"Google Colab's command line needs Python 3.12 or newer, and none was found.\n"
        f"To get one:  {find_uv_bin()} python install 3.13\n"
        "Or name one with the platform's option `python`"
    )


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def _only_one(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / "colab-cli.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
