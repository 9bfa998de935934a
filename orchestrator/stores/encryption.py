"""The option `encrypt` of a store: `{recipients: [age1…], identity: file:PATH}`.

Decides which mistakes in it are reported, and wraps the store. Must never repeat a secret key that somebody
wrote into the wrong place, nor know how an identity is looked up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from orchestrator.core.wording import unknown
from orchestrator.errors import InputError
from orchestrator.stores.store import Store
from orchestrator.stores.unencrypted import UnencryptedStore

OPTION = "encrypt"
_KEYS = ("recipients", "identity")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:.+")
_EXAMPLE = "{recipients: [age1…], identity: file:PATH}"


@runtime_checkable
class Keyed(Protocol):
    """Optional, for a store that needs a key to read what is in it."""

    def key_trouble(self) -> str:
        """Why nothing that is put now could be read back later; empty if it could."""


def key_trouble(store: Store) -> str:
    """What a person should know before a run relies on the store; empty if all is well."""
    trouble = store.key_trouble() if isinstance(store, Keyed) else ""
    return f"{trouble}. Until then, nothing in it can be resumed or pulled" if trouble else ""


def applied(name: str, store: Store, options: Mapping[str, object], looked_up: Callable[[str], str]) -> Store:
    """The store as its options want it: encrypted, or noticing what was encrypted.

    `looked_up` returns what a reference (file:PATH, env:NAME) refers to. It is called when something is
    decrypted for the first time. Raises InputError with a line for every mistake in `encrypt`.
    """
    if OPTION not in options:
        return UnencryptedStore(store, name=name)
    from orchestrator.stores import age
    from orchestrator.stores.encrypted import EncryptedStore

    given = options[OPTION]
    mistakes = list(_mistakes(given, age.recipient_problem, age.RECIPIENTS_MAX))
    if mistakes:
        raise InputError("\n".join(f"store {name!r}: {mistake}" for mistake in mistakes))
    assert isinstance(given, Mapping)
    reference = given.get("identity")
    identity = None if reference is None else partial(looked_up, reference)
    return EncryptedStore(store, given["recipients"], identity, name=name)


def _mistakes(given: object, problem: Callable[[object], str | None], most: int) -> Iterator[str]:
    if not isinstance(given, Mapping):
        yield f"{OPTION} is not a mapping; valid: {_EXAMPLE}"
        return
    for key in given:
        if key not in _KEYS:
            yield f"{OPTION}: {unknown(f'option {key!r}', str(key), _KEYS)}"
    keys = given.get("recipients")
    if not isinstance(keys, list) or not 1 <= len(keys) <= most:
        yield f"{OPTION}.recipients is not a list of 1 to {most} public keys; valid: [age1…]"
    else:
        for number, key in enumerate(keys):
            told = problem(key)
            if told is not None:
                yield f"{OPTION}.recipients.{number}: {told}"
    identity = given.get("identity")
    if "identity" in given and not (isinstance(identity, str) and _REFERENCE.fullmatch(identity)):
        yield f"{OPTION}.identity is not a reference to a secret; valid: env:NAME or file:PATH"
