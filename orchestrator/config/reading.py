"""Reads `config.yaml`: its sections, and every problem with them at once.

Must never know the options of a platform or store; the catalogues check them.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from orchestrator.config.accelerators import OWN_MAX, Accelerators, accelerator_problems, readable
from orchestrator.config.accelerators import build as build_accelerators
from orchestrator.config.config import (
    DEFAULT_PLATFORMS,
    DEFAULT_STORES,
    Config,
    MetricsConfig,
    PlatformConfig,
    StoreConfig,
    given,
)
from orchestrator.config.database import Database
from orchestrator.core import credentials
from orchestrator.home import CONFIG, LEDGER
from orchestrator.references import REFERENCE
from orchestrator.spec.checks import zone_problem
from orchestrator.spec.document import Document, Problem, read
from orchestrator.spec.fetching import InputsSection, input_rules_problems
from orchestrator.spec.fields import NAME, NAME_LENGTH_MAX, NAME_WORDS, Name, Section, Text
from orchestrator.spec.job import read_bytes
from orchestrator.spec.mistakes import unknown, validate
from orchestrator.spec.notices import Targets, target_problems
from orchestrator.spec.prices import PricesSection, price_problems
from orchestrator.spec.rules import Rules, build_rules, rule_problems

TARGETS_MAX = 32  # of notifications; each is sent to in a thread of its own

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
    inputs: InputsSection = Field(
        default_factory=InputsSection,
        description="a mapping such as {allow_private: [nas.local]}",
    )
    accelerators: Accelerators | None = Field(
        default=None,
        max_length=OWN_MAX,
        description="a mapping of names to {memory_gb: …, teraflops: {…}, arch: sm_89}",
    )


def load(home: Path) -> Config:
    """The configuration in `home`, or the defaults if it has no config.yaml.

    Raises SpecError with every mistake, InputError if the file cannot be read.
    """
    path = home / CONFIG
    if not os.path.lexists(path):
        return _config(home, _ConfigSection(), Document(str(path)), f"sqlite:///{home / LEDGER}")
    return parsed(home, read_bytes(path, "move it away, then `orchestrator init` writes one"))


def parsed(home: Path, data: bytes, path: Path | None = None) -> Config:
    """The configuration of `home` if its config.yaml had this content. `path`: the file that mistakes name,
    if it is another. Raises SpecError with every mistake."""
    path = path or home / CONFIG
    document = read(data, str(path))
    if document.tree is None and not document.problems:  # everything is commented out
        document = Document(str(path), {}, document.lines)
    found = Database(home, given(document.tree, "database"))
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
        inputs=section.inputs.build(),
        accelerators=build_accelerators(section.accelerators),
        document=document,
    )  # fmt: skip


def _problems(tree: object, database: Database) -> Iterator[Problem]:
    own = readable(given(tree, "accelerators"))
    yield from accelerator_problems(given(tree, "accelerators"))
    yield from rule_problems(given(tree, "rules"), ("rules",), own)
    yield from target_problems(given(tree, "notify"), ("notify",))
    yield from input_rules_problems(given(tree, "inputs"), ("inputs",))
    zone = given(tree, "timezone")
    told = zone_problem(zone) if isinstance(zone, str) and zone else None
    if told is not None:
        yield Problem(("timezone",), told)
    if database.problem is not None:
        yield Problem(("database",), database.problem)
    address = given(given(tree, "metrics"), "address")
    if isinstance(address, str) and not _is_address(address):
        yield Problem(("metrics", "address"), f"{address!r} is not an IP address; valid: such as 127.0.0.1")
    for key in ("platforms", "stores"):
        yield from _literal_secrets(given(tree, key), (key,))
    platforms = given(tree, "platforms")
    known = list(platforms) if isinstance(platforms, dict) else [each.name for each in DEFAULT_PLATFORMS]
    yield from price_problems(given(tree, "prices"), known, ("prices",), own)
    stores, home_store = given(tree, "stores"), given(tree, "home_store")
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


def machine_timezone() -> str:
    """This machine's time zone by name: `$TZ`, else what /etc/localtime points at, else UTC."""
    named = os.environ.get("TZ", "").removeprefix(":")
    linked = str(Path("/etc/localtime").resolve()).partition("/zoneinfo/")[2]
    return next((zone for zone in (named, linked) if zone and zone_problem(zone) is None), "UTC")
