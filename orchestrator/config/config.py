"""What a user's config says, as values: platforms, stores, rules, and which secrets jobs may have.

The file itself holds no secret. Must never know the options of a platform or store: the catalogues check
them, and `Config.mistake` adds the line.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.config.yaml_text import as_flow
from orchestrator.core.job import Rule
from orchestrator.core.own_accelerators import Own
from orchestrator.core.prices import Prices
from orchestrator.errors import Mistake
from orchestrator.home import CONFIG
from orchestrator.references import REFERENCE
from orchestrator.spec.checks import is_reserved
from orchestrator.spec.document import Document
from orchestrator.spec.fetching import InputRules
from orchestrator.spec.notices import NotifyTarget

# Variables with logins of platforms, stores and databases. Jobs get them only if the config allows it.
_OWN = ("AWS_", "AZURE_", "DOCKER_", "GOOGLE_APPLICATION_", "KAGGLE_", "PGPASS", "SSH_")


@dataclass(frozen=True)
class PlatformConfig:
    """One of the user's platforms. `options` are as written; the catalogue of platforms checks them."""

    name: str
    type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class StoreConfig:
    """One of the user's stores. `options` are as written; the catalogue of stores checks them."""

    name: str
    type: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class MetricsConfig:
    """Where the controller serves its metrics. `hosts`: names, besides localhost and IP addresses, by which
    it may be asked."""

    port: int
    address: str = "127.0.0.1"
    hosts: tuple[str, ...] = ()


DEFAULT_PLATFORMS = (PlatformConfig("process", "process", {"accelerator": "cpu"}),)
DEFAULT_STORES = (StoreConfig("home", "folder", {"path": "store"}),)


@dataclass(frozen=True)
class Config:
    """A user's whole configuration.

    `database` is an SQLAlchemy URL with its secrets filled in, so it is never shown. `home_store` names one
    of `stores`. `timezone` is for the hours in rules. `secrets_allow` are the names, or patterns of names, of
    secrets that jobs may list; None: the config does not say. `targets` are who is told what happens.
    `prices`: what sessions cost, if it says so. `inputs`: limits of those from the network. `accelerators`:
    those that the catalogue lacks.
    """

    home: Path
    database: str = field(repr=False)
    platforms: tuple[PlatformConfig, ...]
    stores: tuple[StoreConfig, ...]
    home_store: str
    rules: tuple[Rule, ...] = ()

    timezone: str = "UTC"
    secrets_allow: tuple[str, ...] | None = None
    targets: tuple[NotifyTarget, ...] = ()
    prices: Prices | None = None
    metrics: MetricsConfig | None = None
    inputs: InputRules = field(default_factory=InputRules)
    accelerators: Own = field(default_factory=dict)
    document: Document = field(default_factory=lambda: Document(CONFIG), repr=False, compare=False)

    @property
    def names_database(self) -> bool:
        """Whether `database` is what the config says, not the default."""
        return given(self.document.tree, "database") is not None

    def mistake(self, *path: str | int, message: str) -> Mistake:
        """A mistake at a key path such as ("platforms", "process", "accelerator"), with its line."""
        return self.document.mistake(path, message)

    def secret_refusal(self, name: str, listed: Sequence[str] = ()) -> str | None:
        """Why no job may get the secret of this name, and the line that would allow it; None: it may.

        `listed`: all secrets of the job. The line includes them, so that the job keeps those it already gets.
        """
        if is_reserved(name):
            return f"the secret {name} is the orchestrator's own and is never sent: give it another name"
        if self._gives(name):
            return None
        allowed = self.secrets_allow or ()
        missing = [each for each in listed if not _matches(each, allowed) and not is_reserved(each)]
        line = as_flow({"allow": list(dict.fromkeys((*allowed, *missing, name)))})
        told = f"to let jobs have it, add to {self.home / CONFIG}: secrets: {line}"
        if self.secrets_allow is not None:
            return f"the secret {name} is not in `secrets.allow`; {told}"
        rest = "jobs then get no other secret, so add all that your jobs list"
        return f"the secret {name} looks like your own login; {told} ({rest})"

    def address_refusal(self, reference: str) -> str | None:
        """Why the address that a job refers to is not looked up; None: it is. A job, which may be a
        stranger's, may name the variables that it could list as secrets, and those of the config's targets,
        but no file."""
        match = REFERENCE.fullmatch(reference)
        name = match.group(1) if match is not None else None
        if name is None:
            return "a job's `notify.url` must be env:NAME; in the config's `notify` it may also be file:PATH"
        if any(each.url == reference for each in self.targets):
            return None
        refusal = self.secret_refusal(name)
        target = as_flow({"notify": [{"name": "mine", "url": reference}]})
        return refusal and f"`notify.url`: {refusal}; or make it a target of the config: {target}"

    def _gives(self, name: str) -> bool:
        return not self._is_own(name) if self.secrets_allow is None else _matches(name, self.secrets_allow)

    def _is_own(self, name: str) -> bool:
        """Whether the orchestrator itself logs in with it, judged by its name and this config."""
        return name.startswith(_OWN) or name in set(_referred(self.document.tree))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _referred(tree: object) -> Iterator[str]:
    """The environment variables that the config refers to."""
    if isinstance(tree, dict | list):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from _referred(value)
    elif isinstance(tree, str) and (match := REFERENCE.fullmatch(tree)) and match.group(1):
        yield match.group(1)


def given(tree: object, key: str) -> object:
    """What a part of the document has under this key; None if nothing."""
    return tree.get(key) if isinstance(tree, dict) else None
