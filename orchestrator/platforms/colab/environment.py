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
        cache = user_cache() if self.cache is None else self.cache
        wanted = LOCK.read_bytes() + str(self.python or "").encode()
        return cache / f"colab-cli-{hashlib.sha256(wanted).hexdigest()[:16]}"

    def _install(self, place: Path) -> None:
        self.say("Installing Google Colab's command line")
        python = find_python(self.python)
        with draft_folder(place.parent, 0o700) as draft:
            try:
                _uv("venv", "--no-project", "--allow-existing", "--python", str(python), str(draft))
                _uv(
                    "pip", "install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--python",
                    str(draft / "bin" / "python"), "--compile-bytecode", "--requirements", str(LOCK),
                )  # fmt: skip
            except UvFailed as error:
                raise Transient(f"Google Colab's command line cannot be installed: {error}") from error
            set_aside(place)  # its interpreter may be gone
            draft.rename(place)


def find_python(given: Path | None = None) -> Path:
    """A Python that the command line runs on: the given one, or one that is found. Raises AccessDenied with
    the commands that help."""
    from uv import find_uv_bin

    try:
        if given is None:
            return Path(_uv("python", "find", "--no-project", _PYTHONS).strip())
        version = _uv("python", "find", "--no-project", "--show-version", str(given)).strip()
    except UvFailed as error:
        if given is not None:
            raise AccessDenied(f"{given} does not start: {error}") from error
        raise AccessDenied(
            "Google Colab's command line needs Python 3.12 or newer, and none was found.\n"
            f"To get one:  {find_uv_bin()} python install 3.13\n"
            "Or name one with the platform's option `python`"
        ) from error
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise AccessDenied(f"{given} is Python {version}; Colab's command line needs 3.12 or newer")
    return given


def make_home(home: Path) -> None:
    """A home for the command line, which nobody else can open. Does nothing if it is there."""
    settings = home / ".config" / "colab-cli"
    if not (settings / "settings.json").exists():
        for folder in (home.parent, home, home / ".config", settings):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(settings / "settings.json", _SETTINGS, sync=False)
    home.chmod(0o700)


def user_cache() -> Path:
    """The user's folder for what can be made again."""
    from platformdirs import user_cache_path

    return user_cache_path("accelerator-orchestrator", appauthor=False)


class UvFailed(Exception):
    """What uv said."""


def _uv(*words: str) -> str:
    """Runs uv and returns what it printed. Raises UvFailed."""
    from uv import find_uv_bin

    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environ |= {"PATH": os.pathsep.join([environ.get("PATH", os.defpath), *map(str, _pythons())])}
    if index := environ.get("PIP_INDEX_URL"):
        environ.setdefault("UV_DEFAULT_INDEX", index)
    environ.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            [find_uv_bin(), *words, "--no-config", "--no-python-downloads"], env=environ,
            stdin=subprocess.DEVNULL, capture_output=True, timeout=INSTALL_SECONDS, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UvFailed(f"uv: {type(error).__name__}") from error
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[-_SAID_MAX:]
        raise UvFailed(said or f"uv ended with {done.returncode}")
    return done.stdout.decode()


def _pythons() -> Iterator[Path]:
    """pyenv's interpreters: on the PATH it has only programs that refuse to start without a choice."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(root.glob("versions/*/bin"), reverse=True)


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
