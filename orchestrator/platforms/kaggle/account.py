"""The Kaggle account that our sessions run on: its credentials and its client.

Creating one makes no request. Missing credentials raise at the first call, so a config may name a platform
that is not set up yet. Renewed credentials are used from the next call on.
"""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.clock import Clock
from orchestrator.errors import AccessDenied, InputError
from orchestrator.platforms.kaggle import credentials
from orchestrator.platforms.kaggle.client import KaggleClient
from orchestrator.platforms.kaggle.connection import Witness
from orchestrator.platforms.kaggle.credentials import SETTINGS, Credentials
from orchestrator.platforms.kaggle.options import KaggleOptions
from orchestrator.user import NoHome, expanded, home, known_home


class Account:
    """`client` raises AccessDenied if there are no credentials, and says how to get some. `witness` hears
    each request and its answer."""

    def __init__(
        self, name: str, options: KaggleOptions, clock: Clock, witness: Witness = lambda *_: None
    ) -> None:
        self._name = name
        self._options = options
        self._clock = clock
        self._witness = witness
        self._made: tuple[Credentials, KaggleClient] | None = None

    @property
    def client(self) -> KaggleClient:
        """The same client as long as the credentials stay the same."""
        found, made = self._credentials(), self._made
        if made is None or made[0] != found:
            made = self._made = (found, self._client(found))
        return made[1]

    def _client(self, found: Credentials) -> KaggleClient:
        return KaggleClient(found, endpoint=self._options.endpoint, backend=self._name, clock=self._clock,
                            witness=self._witness)  # fmt: skip

    def exposed(self) -> tuple[Path, ...]:
        """Credential files that other users of this machine can read."""
        if self._options.username is None:
            return credentials.exposed(os.environ, known_home())
        files = (self._options.token_file, self._options.key_file)
        return tuple(path for path in files if path is not None and expanded(path).stat().st_mode & 0o077)

    def _credentials(self) -> Credentials:
        try:
            found = self._configured() or credentials.find(os.environ, known_home())
        except (InputError, OSError) as error:
            raise AccessDenied(str(error), backend=self._name) from error
        if found is None:
            raise AccessDenied(
                f"no Kaggle credentials found: create a token at {SETTINGS} and {_how_to_keep()}",
                backend=self._name,
            )
        return found

    def _configured(self) -> Credentials | None:
        options = self._options
        if options.username is None:
            return None
        if options.token_file is not None:
            return Credentials(options.username, token=credentials.read(options.token_file))
        assert options.key_file is not None
        return Credentials(options.username, key=credentials.read(options.key_file))


def _how_to_keep() -> str:
    try:
        home()
    except NoHome as error:
        return f"set KAGGLE_API_TOKEN to it (there is no ~/.kaggle, because {error})"
    return "save it as ~/.kaggle/access_token"
