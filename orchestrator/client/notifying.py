"""The sender of notifications, built from the config: which targets there are, and where their addresses lie.

Decides who may refer to an address. Must never repeat one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from orchestrator import sending
from orchestrator.client.wiring import Wired
from orchestrator.config import Config
from orchestrator.engine.notifying import Notifier
from orchestrator.errors import AccessDenied, InputError
from orchestrator.ledger import Ledger
from orchestrator.references import REFERENCE, resolve
from orchestrator.unforeseen import Unforeseen, raise_again


def notifier(
    wired: Wired, ledger: Ledger, say: Callable[[str], None], unforeseen: Unforeseen = raise_again
) -> Notifier:
    """Sends the ledger's notifications, and has it write one for all that is to be told."""
    config = wired.config
    targets = tuple(each.target for each in config.targets)
    lookup = partial(address, config)
    made = Notifier(ledger.notifications, targets, lookup, sending.send, wired.clock, say, unforeseen)
    ledger.notices, ledger.missed = made.notices, made.missed
    return made


def address(config: Config, target: str) -> str:
    """The address of a target: by its name in the config, or a job's own `env:NAME`.

    The config's permission is checked again for each message, because anyone who can write to a shared ledger
    could add any reference. Raises InputError if it is not there, and AccessDenied if a job may not refer to
    it.
    """
    given = next((each.url for each in config.targets if each.name == target), None)
    if given is None and REFERENCE.fullmatch(target) is None:
        raise InputError(f"the config has no target {target!r} any more: put it back under `notify`")
    refusal = config.address_refusal(target) if given is None else None
    if refusal is not None:
        raise AccessDenied(refusal)
    return resolve(given or target, config.home).strip()
