"""The user's platforms, stores and rules: `config.yaml` in the orchestrator's home, or the defaults.

Decides what the file may contain and where secrets are looked up; the file itself holds none. Must never know
the options of a platform or store: the catalogues check them, and `Config.mistake` adds the line.
"""

from __future__ import annotations

import fnmatch
import ipaddress
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, ConfigDict, Field

from orchestrator.core import credentials
from orchestrator.core.job import Rule
from orchestrator.core.prices import Prices
from orchestrator.errors import InputError, Mistake
from orchestrator.files import write_whole
from orchestrator.home import CONFIG, LEDGER
from orchestrator.references import REFERENCE, resolve
from orchestrator.spec.checks import is_reserved, zone_problem
from orchestrator.spec.document import Document, Problem, read
from orchestrator.spec.fields import NAME, NAME_LENGTH_MAX, NAME_WORDS, Name, Section, Text
from orchestrator.spec.job import read_bytes
from orchestrator.spec.mistakes import unknown, validate
from orchestrator.spec.notices import NotifyTarget, Targets, target_problems
from orchestrator.spec.prices import PricesSection, price_problems
from orchestrator.spec.rules import Rules, build_rules, rule_problems

# Variables with logins of platforms, stores and databases. Jobs get them only if the config allows it.
_OWN = ("AWS_", "AZURE_", "DOCKER_", "GOOGLE_APPLICATION_", "KAGGLE_", "PGPASS", "SSH_")
TARGETS_MAX = 32  # of notifications; each is sent to in a thread of its own
_DIALECTS = ("sqlite", "postgresql", "postgresql+psycopg")
_URL = re.compile(r"([A-Za-z0-9_+.-]+)://(.*)", re.DOTALL)
_PASSWORD = re.compile(r"://[^@]*:[^@]*@|[?&](password|sslpassword)=", re.IGNORECASE)


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
    `prices`: what sessions cost, if it says so.
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
    document: Document = field(default_factory=lambda: Document(CONFIG), repr=False, compare=False)

    @property
    def names_database(self) -> bool:
        """Whether `database` is what the config says, not the default."""
        return _given(self.document.tree, "database") is not None

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


_OptionsName = Annotated[
    str, Field(pattern=NAME, max_length=NAME_LENGTH_MAX, description=f"a name: {NAME_WORDS}")
]


class _Instance(BaseModel):
    """A platform or store: its type, and the options of that type."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: Name = Field(description="the name of a type, such as process or folder")


class _SecretsSection(Section):
    allow: list[Annotated[str, Field(pattern=r"^[A-Za-z_*][A-Za-z0-9_*]*$", max_length=200)]] | None = Field(
        default=None,
        description="a list of the names of secrets that jobs may list, such as WANDB_API_KEY or HF_*",
    )


class _MetricsSection(Section):
    port: int = Field(ge=1, le=65535, description="a port, such as 9464")
    address: Text = Field(
        default="127.0.0.1",
        description="an IP address of this machine (default: 127.0.0.1, which only this machine reaches)",
    )
    hosts: list[Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$", max_length=253)]] = Field(
        default=[], description="a list of names of this machine, such as box.local"
    )


class _ConfigSection(Section):
    platforms: dict[_OptionsName, _Instance] | None = Field(
        default=None, min_length=1, description="a mapping of names to {type: …, options…}"
    )
    stores: dict[_OptionsName, _Instance] | None = Field(
        default=None, min_length=1, description="a mapping of names to {type: …, options…}"
    )
    home_store: Name | None = Field(default=None, description="the name of one of the stores")
    database: Text | None = Field(
        default=None,
        description="sqlite:///PATH, postgresql://HOST/NAME without a password, env:NAME or file:PATH",
        json_schema_extra={"writeOnly": True},
    )
    rules: Rules = Field(default=[], description="a list of rules")
    timezone: Text | None = Field(default=None, description="a time zone such as Europe/Berlin")
    metrics: _MetricsSection | None = Field(default=None, description="a mapping such as {port: 9464}")
    secrets: _SecretsSection = Field(
        default_factory=_SecretsSection, description="a mapping such as {allow: [WANDB_API_KEY]}"
    )
    notify: Targets = Field(default=[], max_length=TARGETS_MAX, description="a list of {name, url, on, jobs}")
    prices: PricesSection | None = Field(
        default=None, description="a mapping such as {currency: EUR, per_hour: {box: 0.05}}"
    )


def load(home: Path) -> Config:
    """The configuration in `home`, or the defaults if it has no config.yaml.

    Raises SpecError with every mistake, InputError if the file cannot be read.
    """
    path = home / CONFIG
    if not path.exists():
        return _config(home, _ConfigSection(), Document(str(path)), f"sqlite:///{home / LEDGER}")
    return parsed(home, read_bytes(path, "move it away, then `orchestrator init` writes one"))


def parsed(home: Path, data: bytes, path: Path | None = None) -> Config:
    """The configuration of `home` if its config.yaml had this content. `path`: the file that mistakes name,
    if it is another. Raises SpecError with every mistake."""
    path = path or home / CONFIG
    document = read(data, str(path))
    if document.tree is None and not document.problems:  # everything is commented out
        document = Document(str(path), {}, document.lines)
    found = _Database(home, _given(document.tree, "database"))
    section = validate(_ConfigSection, document, _problems(document.tree, found))
    return _config(home, section, document, found.url or f"sqlite:///{home / LEDGER}")


def _config(home: Path, section: _ConfigSection, document: Document, database: str) -> Config:
    platforms, stores = section.platforms, section.stores
    return Config(
        home=home,
        database=database,
        platforms=DEFAULT_PLATFORMS if platforms is None else tuple(
            PlatformConfig(name, given.type, dict(given.model_extra or {}))
            for name, given in platforms.items()
        ),
        stores=DEFAULT_STORES if stores is None else tuple(
            StoreConfig(name, given.type, dict(given.model_extra or {})) for name, given in stores.items()
        ),
        home_store=section.home_store or next(iter(stores or ("home",))),
        rules=build_rules(section.rules, "config"),
        timezone=section.timezone or machine_timezone(),
        secrets_allow=None if section.secrets.allow is None else tuple(section.secrets.allow),
        targets=tuple(each.build() for each in section.notify),
        prices=None if section.prices is None else section.prices.build(),
        metrics=None if section.metrics is None else MetricsConfig(
            section.metrics.port, section.metrics.address, tuple(section.metrics.hosts)
        ),
        document=document,
    )  # fmt: skip


def _given(tree: object, key: str) -> object:
    return tree.get(key) if isinstance(tree, dict) else None


def _problems(tree: object, database: _Database) -> Iterator[Problem]:
    yield from rule_problems(_given(tree, "rules"), ("rules",))
    yield from target_problems(_given(tree, "notify"), ("notify",))
    zone = _given(tree, "timezone")
    told = zone_problem(zone) if isinstance(zone, str) and zone else None
    if told is not None:
        yield Problem(("timezone",), told)
    if database.problem is not None:
        yield Problem(("database",), database.problem)
    address = _given(_given(tree, "metrics"), "address")
    if isinstance(address, str) and not _is_address(address):
        yield Problem(("metrics", "address"), f"{address!r} is not an IP address; valid: such as 127.0.0.1")
    for key in ("platforms", "stores"):
        yield from _literal_secrets(_given(tree, key), (key,))
    platforms = _given(tree, "platforms")
    known = list(platforms) if isinstance(platforms, dict) else [each.name for each in DEFAULT_PLATFORMS]
    yield from price_problems(_given(tree, "prices"), known, ("prices",))
    stores, home_store = _given(tree, "stores"), _given(tree, "home_store")
    names = list(stores) if isinstance(stores, dict) else [store.name for store in DEFAULT_STORES]
    if isinstance(home_store, str) and home_store not in names:
        yield Problem(("home_store",), unknown("store", home_store, names))
    elif home_store is None and len(names) > 1:
        yield Problem(
            ("home_store",), f"missing, but there are several stores; valid: one of {', '.join(names)}"
        )


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _literal_secrets(options: object, path: tuple[str, ...]) -> Iterator[Problem]:
    for name, value in options.items() if isinstance(options, dict) else ():
        if isinstance(value, dict):
            yield from _literal_secrets(value, (*path, name))
        elif _is_text(value) and credentials.in_variable(name, value) and not REFERENCE.fullmatch(str(value)):
            yield Problem((*path, name), "looks like a secret; refer to it: env:NAME or file:PATH")


def _is_text(value: object) -> bool:
    """Numbers count too: an API key may consist of digits only."""
    return isinstance(value, str | int | float) and not isinstance(value, bool)


class _Database:
    """The URL that `database:` gives, or the problem with it. No message repeats any part of it."""

    def __init__(self, home: Path, given: object) -> None:
        self.url: str | None = None
        self.problem: str | None = None
        if not isinstance(given, str) or not given:
            return
        literal = REFERENCE.fullmatch(given) is None
        try:
            url = given if literal else resolve(given, home)
            self.url = _checked(url, home, literal=literal)
        except InputError as error:
            self.problem = str(error)


def _checked(url: str, home: Path, *, literal: bool) -> str:
    match = _URL.fullmatch(url)
    if match is None:
        raise InputError("not a URL; valid: sqlite:///PATH, postgresql://HOST/NAME, env:NAME or file:PATH")
    dialect, rest = match.groups()
    if literal and dialect != "sqlite" and _PASSWORD.search(url):
        raise InputError(
            "the config may not contain a password; write the whole URL into an environment variable or a "
            "file that only you can read, and refer to it: env:NAME or file:PATH"
        )
    if dialect not in _DIALECTS:
        raise InputError(unknown("database", dialect, _DIALECTS))
    if dialect != "sqlite":
        return f"postgresql+psycopg://{rest}"
    path = rest.removeprefix("/")
    if not rest.startswith("/") or path.split("?")[0] in ("", ":memory:"):
        raise InputError("not a file; valid: sqlite:///PATH, because the ledger must outlive the process")
    return f"sqlite:///{home / path}"


def machine_timezone() -> str:
    """This machine's time zone by name: `$TZ`, else what /etc/localtime points at, else UTC."""
    named = os.environ.get("TZ", "").removeprefix(":")
    linked = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]
    return next((zone for zone in (named, linked) if zone and zone_problem(zone) is None), "UTC")


# --- Written by `init` ----------------------------------------------------------------------------------

_HEAD = """\
# The orchestrator's configuration. Never write secrets here, only references: env:NAME or file:PATH.
# `orchestrator doctor` checks what works and what is missing.

# Where sessions may run: a name of your choice, its type, and the options of that type.
"""
_TAIL = """
# The store where every run's checkpoints live.
home_store: {home_store}

# Where runs are recorded. PostgreSQL, shared by several machines: write its URL into the file database-url
# in this folder, with mode 600, and set database: file:database-url
# database: sqlite:///{ledger}

# The time zone of `hours_of_day` in rules, of plans and of deadlines.
timezone: {timezone}

# The secrets that jobs may list, by name or pattern. By default, all except credentials of your accounts.
# secrets: {{allow: [WANDB_API_KEY, HF_*]}}

# Who is told what happens; `orchestrator notify test` tries it. docs/notifications.md has the kinds.
# notify:
#   - name: phone
#     url: env:NOTIFY_URL
#     on: [done, failed, held]

# Figures of the controller for Prometheus, at http://127.0.0.1:9464/metrics.
# metrics: {{port: 9464}}

# Where jobs should run and where not. A job's own rules come before these.
# rules:
#   - name: nights only on my own machines
#     when: {{hours_of_day: [22, 6], expected_hours: {{at_most: 8}}}}
#     prefer: {{owned: true}}
#   - name: no quota for experiments
#     when: {{tags: [experiment]}}
#     avoid: {{metered: true}}
"""


def write_default(
    home: Path,
    platforms: Sequence[PlatformConfig] = DEFAULT_PLATFORMS,
    stores: Sequence[StoreConfig] = DEFAULT_STORES,
) -> Path:
    """Writes a commented config.yaml that `load` can read; the first of `stores` is the home store.

    Raises InputError if there is one already, or if the home cannot be written.
    """
    path = home / CONFIG
    text = _HEAD + _instances("platforms", platforms)
    text += "\n# Where checkpoints are kept; relative paths start at this file's folder.\n"
    text += _instances("stores", stores)
    text += _TAIL.format(home_store=stores[0].name, ledger=LEDGER, timezone=machine_timezone())
    if path.exists():
        raise InputError(f"{path} already exists; edit it, or move it away first")
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, text.encode())
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror})") from error
    return path


class _Dumper(yaml.SafeDumper):
    """Quotes text that is a number in YAML 1.2 but not in PyYAML, which implements 1.1."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9.]+[eE][-+]?[0-9]+"), list("-+.0123456789")
)


def _instances(key: str, instances: Sequence[PlatformConfig | StoreConfig]) -> str:
    table = {given.name: {"type": given.type, **given.options} for given in instances}
    return as_block({key: table})


def as_block(table: Mapping[str, Any]) -> str:
    """The table as YAML in block style: lines to write into a config."""
    return yaml.dump(table, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=math.inf)


def as_flow(table: Mapping[str, Any]) -> str:
    """The table as YAML on one line, to paste."""
    return yaml.dump(table, Dumper=_Dumper, default_flow_style=True, sort_keys=False, width=math.inf).strip()
