"""What the controller's log must never contain: the secrets that the controller itself can read.

Decides which they are: what the config refers to, the database's password, and variables of the environment
that are named like a secret. Must never repeat one. What a session's log may hold is the agent's to mask.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress

from orchestrator.config import Config
from orchestrator.core.mask import Mask
from orchestrator.errors import InputError
from orchestrator.references import REFERENCE, resolve

SECRET_CHARS_MIN = 8  # in a variable of the environment; shorter ones are rather numbers and words
_NAMED_SO = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASS|PASSWORD|PGPASSWORD|PASSPHRASE|CREDENTIALS?|AUTH)(_|$)")


def mask(config: Config) -> Mask:
    """Removes these secrets from a text."""
    return Mask((*_referred(config, config.document.tree), *_environment(), *_logins(config.database)))


def _referred(config: Config, tree: object) -> Iterator[str]:
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _referred(config, value)
    elif isinstance(tree, str) and REFERENCE.fullmatch(tree):
        with suppress(InputError):  # whoever needs it says so
            yield resolve(tree, config.home)


def _environment() -> Iterator[str]:
    for name, value in os.environ.items():
        if len(value) >= SECRET_CHARS_MIN and _NAMED_SO.search(name.upper()) and not _is_path(value):
            yield value


def _is_path(value: str) -> bool:
    """Whether the variable says where a secret is. A secret may begin with a slash as well."""
    return value.startswith("/") and os.path.exists(value)  # noqa: PTH110 - Path raises for a long one


def _logins(url: str) -> Iterator[str]:
    """The passwords in the database's URL, which a reference may have brought there."""
    yield from re.findall(r"://[^/@]*?:([^@]+)@", url)
    yield from re.findall(r"[?&](?:password|sslpassword)=([^&]+)", url)
