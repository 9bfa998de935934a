"""Where Colab's command line is installed, and the environment that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """One account's copy of the command line, in the platform's own `folder` (0700).

    `python`: the interpreter to use, at least 3.12; None: one is looked for. `auth`: `oauth2`, a login of its
    own, or `adc`, the file `adc_file` (an authorized_user file of Google's). `proxy` and `ca_file` are for
    networks that need them; unset, those of this process's environment apply. `say` is told what takes long.
    """

    folder: Path
    python: Path | None = None
    auth: str = "oauth2"
    adc_file: Path | None = None
    proxy: str | None = None
    ca_file: Path | None = None
    say: Callable[[str], None] = lambda _: None

    def ready(self) -> Path:
        """The command line's interpreter, after installing it if needed: idempotent, safe with others doing
        the same, and complete or not at all. Takes up to a minute. Raises AccessDenied if there is no
        suitable Python, with the commands that help; Transient if the packages cannot be fetched."""
        raise NotImplementedError
