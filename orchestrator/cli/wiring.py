"""From the user's config to living instances: platforms, stores, ledger, engine. Nothing else wires."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from orchestrator import config as configuration
from orchestrator.agent import archive
from orchestrator.clock import Clock, SystemClock
from orchestrator.config import Config
from orchestrator.engine import Brought, Engine, Watchers
from orchestrator.errors import AccessDenied
from orchestrator.ledger import Ledger
from orchestrator.market import Market
from orchestrator.perform import Backends, Folders
from orchestrator.platforms import catalog as platforms
from orchestrator.platforms.platform import Platform
from orchestrator.platforms.retrying import RetryingPlatform
from orchestrator.stores import catalog as stores
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.workers import ThreadWorkers


@dataclass(frozen=True)
class Wired:
    """One user's instances. Cheap to make: platforms and stores connect when they are used."""

    config: Config
    clock: Clock
    folders: Folders

    @classmethod
    def from_home(cls, home: Path | None = None) -> Wired:
        """Reads the config below `$ORCHESTRATOR_HOME`. Raises SpecError or InputError for what is wrong in it."""
        config = configuration.load(home or configuration.home_folder())
        return cls(config, SystemClock(), Folders(config.home))

    def ledger(self) -> Ledger:
        return Ledger.open(self.config.database)

    def platforms(self) -> dict[str, Platform]:
        """Every configured platform by name, behind its retries."""
        made = {}
        for each in self.config.platforms:
            folder = self.config.home / "platforms" / each.name
            platform = platforms.build(each.name, each.type, each.options, folder=folder, clock=self.clock)
            made[each.name] = RetryingPlatform(platform)
        return made

    def store(self) -> Store:
        """The home store, behind its retries."""
        home = self.config.store(self.config.home_store)
        return RetryingStore(stores.build(home.name, home.type, home.options, self.config.home))

    def market(self) -> Market:
        names = tuple(each.name for each in self.config.platforms)
        return Market(names, self.config.rules, self.utc_offset_seconds())

    def utc_offset_seconds(self) -> float:
        """Of the user's time zone now, for rules that speak of hours of the day."""
        moment = datetime.fromtimestamp(self.clock.now(), ZoneInfo(self.config.timezone))
        offset = moment.utcoffset()
        return offset.total_seconds() if offset else 0.0

    def backends(self) -> Backends:
        """What the engine acts through; builds the agent's archive if this version has not yet."""
        archive.build(self.folders.agent)
        return Backends(self.platforms(), self.store(), self.folders, secret)

    def engine(self, ledger: Ledger, fence: int, wake: threading.Event, watchers: Watchers) -> Engine:
        workers: ThreadWorkers[Brought] = ThreadWorkers(wake)
        return Engine(ledger, fence, self.backends(), self.market(), workers, self.clock, watchers)


def secret(name: str) -> str:
    """A secret's value, from the environment of the controller. Raises AccessDenied with the way out."""
    value = os.environ.get(name)
    if value is None:
        raise AccessDenied(
            f"the secret {name} is not in the controller's environment: export {name}=…, then "
            "`orchestrator down` and `orchestrator up`, or submit again"
        )
    return value


Say = Callable[[str], None]
