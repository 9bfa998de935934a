"""Inputs from the network, for a submit: fetches them into the cache, or only looks what would be fetched.

Decides who may name a token. Must never record a run.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import cache, partial

from orchestrator import catalog
from orchestrator.client.wiring import Wired
from orchestrator.core.job import Input
from orchestrator.errors import AccessDenied, InputError
from orchestrator.fetching import cache as cached
from orchestrator.fetching.addresses import Allowed
from orchestrator.fetching.bringing import Fetched, Fetcher, KaggleData, Wish
from orchestrator.fetching.cache import Cache
from orchestrator.fetching.sources import Kind, is_fetched
from orchestrator.fetching.transfer import Transfers
from orchestrator.fetching.web import Web
from orchestrator.freeze import inputs
from orchestrator.freeze.leaving import Part
from orchestrator.spec import Parsed


@dataclass(frozen=True)
class Fetching:
    """How a job's inputs become pinned. `brings`: they are fetched; otherwise only looked at."""

    wired: Wired
    brings: bool = True

    def pinned(self, parsed: Parsed) -> tuple[tuple[Input, ...], tuple[Fetched, ...]]:
        """The inputs with the sha256 of their content, and those of the network. Without `brings`, the latter
        may have no sha256 yet. Raises InputError, AccessDenied, Transient."""
        given = parsed.job.inputs
        local = iter(inputs.pin(tuple(each for each in given if not is_fetched(each.origin))))
        if not any(is_fetched(each.origin) for each in given):
            return tuple(local), ()
        wishes = {
            number: self._wish(parsed, number) for number, each in enumerate(given) if is_fetched(each.origin)
        }
        fetcher = self._fetcher()
        found = {n: (fetcher.bring if self.brings else fetcher.look)(wish) for n, wish in wishes.items()}
        pinned = (_pinned(each, found[n]) if n in found else next(local) for n, each in enumerate(given))
        return tuple(pinned), tuple(found.values())

    def _wish(self, parsed: Parsed, number: int) -> Wish:
        each, wish = parsed.job.inputs[number], parsed.input_wishes[number]
        limit = wish.bytes_max or self.wired.config.inputs.bytes_max
        return Wish(each.name, each.origin, limit, each.sha256, self._token(each.name, wish.token))

    def _token(self, name: str, variable: str | None) -> str:
        """Its value. A job may be a stranger's, so it may name what it could list as a secret."""
        if variable is None:
            return ""
        if refusal := self.wired.config.secret_refusal(variable):
            raise InputError(f"input {name!r}: token: {refusal}")
        value = os.environ.get(variable, "").strip()
        if not value.isascii() or not value.isprintable():
            raise InputError(f"input {name!r}: the token in {variable} has characters that no token has")
        if not value:
            raise AccessDenied(
                f"input {name!r}: its token is in {variable}, which is not set: export {variable}=…"
            )
        return value

    def _fetcher(self) -> Fetcher:
        rules, clock = self.wired.config.inputs, self.wired.clock
        web = Web(Allowed.of(rules.allow_private), clock)
        progress = self.wired.fetch_progress or (lambda *_: None)
        made = Cache(cached.folder(), clock, rules.cache_bytes_max)
        return Fetcher(made, web, Transfers(web, progress), cache(partial(_kaggle, self.wired)))


def _pinned(each: Input, found: Fetched) -> Input:
    return replace(each, origin=found.source, sha256=found.sha256, size=found.size)


def parts(found: tuple[Fetched, ...]) -> tuple[Part, ...]:
    """What of the network goes to the sessions, for the list of what leaves."""
    return tuple(
        Part("input", each.name, each.files, each.size or 0, ((each.source, each.size or 0),))
        for each in found
    )


def _kaggle(wired: Wired) -> KaggleData:
    """With the account of the config's platform, else as Kaggle's own programs log in."""
    from orchestrator.platforms.catalog import TYPES
    from orchestrator.platforms.kaggle.account import Account
    from orchestrator.platforms.kaggle.data import AccountData
    from orchestrator.platforms.kaggle.options import KaggleOptions

    given = next((each for each in wired.config.platforms if each.type == Kind.KAGGLE), None)
    if given is None:
        account = Account("kaggle", KaggleOptions(), wired.clock)
        return AccountData(lambda: account.client)
    options: KaggleOptions = catalog.checked("platform", given.name, given.type, given.options, TYPES)
    configured = Account(given.name, options, wired.clock)
    return AccountData(lambda: configured.client)
