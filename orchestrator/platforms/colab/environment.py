"""Where Colab's command line is installed, and what its processes see.

Decides its place and its variables. It needs a newer Python than we do, and keeps tokens in files that
everyone may read (docs/references/colab.md#what-it-writes). So it gets an environment of its own, shared by
all accounts, and each account a home of its own that nobody else may open. Must never know what is asked of
it.
"""

from __future__ import annotations

import hashlib
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from orchestrator import user
from orchestrator.errors import InputError
from orchestrator.files import allow, make_folder
from orchestrator.files.drafts import write_whole
from orchestrator.platforms.colab.installing import LOCK, install

NO_PRODUCTION = "ORCHESTRATOR_NO_PRODUCTION"  # set: only a Colab on this machine's loopback
_SETTINGS = b'{"enable_update_check": false}\n'  # its notice of a new version goes to standard output
# What a user may have set for a network that needs it. Everything else of our environment stays out.
_INHERITED = (
    "PATH", "LANG", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy",
    "all_proxy", "no_proxy", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR", NO_PRODUCTION,
)  # fmt: skip
_HERE = "127.0.0.1,localhost"


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

    def ready(self, seconds: float | None = None) -> Path:
        """The command line's interpreter. Installs it if needed, which takes a minute, and several on a slow
        network. `seconds`: how long to wait for that. Raises what `installing.install` raises."""
        self._keep_home()
        make_home(self.home)
        installed = self._installed()
        python = installed / "bin" / "python"
        if not python.exists():
            install(installed, self.python, seconds, self.say)
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

    def _installed(self) -> Path:
        """Where the packages of this list are, for this interpreter."""
        cache = user_cache() if self.cache is None else self.cache
        wanted = LOCK.read_bytes() + str(self.python or "").encode()
        return cache / f"colab-cli-{hashlib.sha256(wanted).hexdigest()[:16]}"


def make_home(home: Path) -> None:
    """A home for the command line, which nobody else can open. Does nothing if it is there."""
    settings = home / ".config" / "colab-cli"
    if not (settings / "settings.json").exists():
        for folder in (home.parent, home, home / ".config", settings):
            make_folder(folder, 0o700)
        write_whole(settings / "settings.json", _SETTINGS, sync=False)
    allow(home)


def user_cache() -> Path:
    return user.cache("accelerator-orchestrator")


def _on_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
