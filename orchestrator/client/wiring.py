"""Builds platforms, stores, market and engine from the user's config. Only this module does."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import product, takewhile
from pathlib import Path
from random import Random
from zoneinfo import ZoneInfo

from orchestrator import config as configuration
from orchestrator.agent import archive
from orchestrator.client import reaching
from orchestrator.clock import Clock
from orchestrator.config import Config, PlatformConfig, StoreConfig
from orchestrator.engine.engine import Brought, Engine, Watchers
from orchestrator.engine.market import Market
from orchestrator.engine.perform import Backends
from orchestrator.engine.workers import ThreadWorkers
from orchestrator.errors import AccessDenied, InputError, SpecError
from orchestrator.home import UPLINK, Folders
from orchestrator.ledger import Ledger
from orchestrator.platforms import catalog as platforms
from orchestrator.platforms.platform import Equipped, Mailed, Placed, Platform
from orchestrator.platforms.retrying import RetryingPlatform
from orchestrator.references import resolve as resolve_reference
from orchestrator.stores import catalog as stores
from orchestrator.stores import encryption
from orchestrator.stores.retrying import RetryingStore
from orchestrator.stores.store import Store
from orchestrator.unforeseen import Unforeseen, raise_again
from orchestrator.uplink import archive as uplink_archive
from orchestrator.uplink.mailbox import Mailbox


@dataclass(frozen=True)
class Wired:
    """One user's instances. Cheap to build, because platforms and stores connect on first use."""

    config: Config
    clock: Clock
    folders: Folders
    fetch_progress: Callable[[str, int, int | None], None] | None = None  # of inputs: name, bytes, all bytes

    @classmethod
    def from_home(
        cls, home: Path, clock: Clock, fetch_progress: Callable[[str, int, int | None], None] | None = None
    ) -> Wired:
        """Reads the config in `home`. Raises SpecError or InputError if it is wrong."""
        config = configuration.load(home)
        return cls(config, clock, Folders(config.home), fetch_progress)

    def platforms(self) -> dict[str, Platform]:
        """Every configured platform by name, each wrapped in retries."""
        return {each.name: self.platform(each) for each in self.config.platforms}

    @property
    def shipping(self) -> tuple[str, ...]:
        """The platforms whose sessions get what opens the home store, to ship their outbox. A folder needs no
        credential."""
        home = next((each for each in self.config.stores if each.name == self.config.home_store), None)
        if home is None or home.type == "folder":
            return ()
        return tuple(each.name for each in self.config.platforms if self.ships(each))

    @staticmethod
    def ships(given: PlatformConfig) -> bool:
        """Whether its sessions ship their outbox to the home store themselves."""
        return given.options.get("uplink") is True or given.type in platforms.SHIPPING

    def platform(self, given: PlatformConfig) -> Platform:
        """One of the configured platforms, wrapped in retries. Raises SpecError with the config's line for
        wrong options."""
        return RetryingPlatform(self.bare(given), sleep=self._sleep, random=Random())

    def bare(self, given: PlatformConfig) -> Platform:
        """The same without the wrapper."""
        folder = self.folders.platform(given.name)
        with self._at("platforms", given.name):
            before = takewhile(lambda each: each.name != given.name, self.config.platforms)
            platforms.check_single(given.name, given.type, ((each.name, each.type) for each in before))
            made = platforms.build(given.name, given.type, given.options, folder=folder, clock=self.clock)
        if isinstance(made, Equipped):
            made.equip(self.config.accelerators)
        if isinstance(made, Mailed):
            made.connect(Mailbox(lambda: self.store(""), given.name))
        return made

    def stores(self) -> dict[str, Store]:
        """Every configured store by name, each wrapped in retries."""
        return {each.name: self.built(each) for each in self.config.stores}

    def store(self, name: str) -> Store:
        """A run's home store; without a name, the config's. Raises InputError if the config no longer has
        it."""
        wanted = name or self.config.home_store
        given = next((each for each in self.config.stores if each.name == wanted), None)
        if given is None:
            raise InputError(
                f"the checkpoints of this run are in the store {name!r}, which the config no longer has: put "
                f"it back into {self.folders.config}"
            )
        return self.built(given)

    def built(self, given: StoreConfig) -> Store:
        """One of the configured stores, wrapped in retries and, if the config says so, in encryption. Raises
        SpecError like `platform`."""
        with self._at("stores", given.name):
            options = {key: value for key, value in given.options.items() if key != encryption.OPTION}
            made = stores.build(given.name, given.type, options, self.config.home)
            retrying = RetryingStore(made, sleep=self._sleep)  # inside: a retry puts the same encrypted bytes
            resolve = partial(resolve_reference, home=self.config.home)
            return encryption.applied(given.name, retrying, given.options, resolve)

    def _sleep(self, seconds: float) -> None:
        self.clock.wait(threading.Event(), seconds)

    @contextmanager
    def _at(self, *path: str) -> Iterator[None]:
        """Turns an error in the options into a SpecError with the config's line."""
        try:
            yield
        except SpecError:
            raise
        except InputError as error:
            mistakes = (self.config.mistake(*path, message=line) for line in str(error).splitlines())
            raise SpecError(tuple(mistakes)) from error

    def market(self) -> Market:
        names = tuple(each.name for each in self.config.platforms)
        return Market(names, self.config.rules, self.utc_offset_seconds(), self.unreachable())

    def unreachable(self) -> dict[tuple[str, str], str]:
        """(platform, store) → why the platform's sessions, which must ship to the run's home store, do not
        reach this one. The config's home store is there without its name, too. Asks no store,
        and leaves wrong options to whoever needs what they describe."""
        found: dict[tuple[str, str], str] = {}
        for given, each in product(filter(self.ships, self.config.platforms), self.config.stores):
            with suppress(SpecError):
                platform = self.bare(given)
                if isinstance(platform, Placed) and (
                    why := reaching.refusal(each.name, self.built(each), platform)
                ):
                    found[given.name, each.name] = why
                    if each.name == self.config.home_store:
                        found[given.name, ""] = why
        return found

    def utc_offset_seconds(self) -> float:
        """The present offset of the user's time zone, for rules with hours of the day."""
        moment = datetime.fromtimestamp(self.clock.now(), ZoneInfo(self.config.timezone))
        offset = moment.utcoffset()
        return offset.total_seconds() if offset else 0.0

    def backends(self, unforeseen: Unforeseen = raise_again) -> Backends:
        """The backends of the engine. Builds the archives of the agent and the uplink."""
        archive.build(self.folders.agent)
        uplink_archive.build(self.folders.home / UPLINK)
        return Backends(
            self.platforms(), self.stores(), self.config.home_store, self.folders, self.secret, unforeseen
        )

    def secret(self, name: str) -> str:
        """A secret's value from the controller's environment. Raises AccessDenied that says what to do.

        The config's permission is checked again when a session is prepared, because anyone who can write to a
        shared ledger could add any name.
        """
        refusal = self.config.secret_refusal(name)
        if refusal is not None:
            raise AccessDenied(refusal)
        value = os.environ.get(name)
        if value is None:
            raise AccessDenied(
                f"the secret {name} is not in the controller's environment: export {name}=…, then "
                "`orchestrator down` and `orchestrator up`, or submit again"
            )
        return value

    def engine(
        self,
        ledger: Ledger,
        fence: int,
        backends: Backends,
        wake: threading.Event,
        watchers: Watchers,
    ) -> Engine:
        workers: ThreadWorkers[Brought] = ThreadWorkers(wake)
        market, unforeseen = self.market(), backends.unforeseen
        return Engine(ledger, fence, backends, market, workers, self.clock, watchers, unforeseen)


Say = Callable[[str], None]
