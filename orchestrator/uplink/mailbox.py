"""Both ends of a mailbox over a store's registers, and the Secret that opens one in a notebook.

Reads, applies a rule of `orchestrator.session.mailbox`, and swaps; again if somebody else was faster. Decides
nothing else. Must never repeat what a Secret holds.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache

from orchestrator.core import wire
from orchestrator.errors import Conflict, InputError, Rejected, Transient
from orchestrator.session.mailbox import PROTOCOL, Box, Worker, beaten, held, left
from orchestrator.session.signing import Keys
from orchestrator.session.staging import Content
from orchestrator.stores.opening import carried
from orchestrator.stores.portable import Portable
from orchestrator.stores.register import Held, Registers
from orchestrator.stores.store import Store
from orchestrator.uplink import parcel
from orchestrator.uplink.layout import SessionKeys
from orchestrator.uplink.registers import registers_of

NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,60}")
_TRIES_MAX = 20
_MARK, _OLD_MARK = "orchestrator-secret-2:", "orchestrator-secret-1:"


class TooOld(InputError):
    """The mailbox is written in a way that this version does not know."""


class Mailbox:
    """The mailbox `name` of a store, which is opened with the first use. Implements
    `orchestrator.session.mailbox.Mail`."""

    def __init__(self, store: Callable[[], Store], name: str) -> None:
        if not NAME.fullmatch(name):
            raise InputError(f"{name!r} cannot name a mailbox: use lower-case letters, digits and hyphens")
        self._opened = cache(store)
        self._order = f"mailboxes/{name}/order"
        self._worker = f"mailboxes/{name}/worker"

    def _registers(self) -> Registers:
        return registers_of(self._opened())

    def send(self, run: str, session: str, contents: Iterable[Content], home: bytes, identity: str) -> str:
        """See `Mail.send`."""
        store = self._opened()
        mine, its = carried(store), wire.decode(Portable, home)
        if (mine.type, mine.options) != (its.type, its.options):
            raise Rejected(f"the run's home store is not the one of the mailbox: {session} cannot be sent")
        if mine.recipients and not identity:
            raise Rejected(
                "the home store is encrypted, and the notebook was made before it was: make it anew"
            )
        sent = parcel.write(store, SessionKeys(run, session), contents, identity)
        return wire.encode(replace(sent, key="")).decode()

    def box(self) -> Box:
        """Raises TooOld if a newer version wrote it, and Rejected if it cannot be read."""
        return self._box(self._registers().read(self._order))

    def worker(self) -> Worker | None:
        """None if there was never one, or its register cannot be read."""
        return _worker(self._registers().read(self._worker))

    def change(self, rule: Callable[[Box], Box]) -> Box:
        """See `Mail.change`."""
        for _ in range(_TRIES_MAX):
            there = self._registers().read(self._order)
            before = self._box(there)
            after = rule(before)
            if after == before:
                return before
            after = replace(after, number=before.number + 1, protocol=PROTOCOL)
            try:
                self._registers().swap(self._order, wire.encode(after), _version(there))
            except Conflict:
                continue
            return after
        raise Transient("others kept changing the mailbox", operation="swap")

    def hold(self, me: Worker, gone: Callable[[Worker | None], bool]) -> Worker | None:
        """Writes me into the register, with the next count. None if another worker, which is not `gone`, has
        it. After an error the register may have me: call it again."""
        return self._write(lambda there: held(there, me, gone(there)))

    def beat(self, me: Worker) -> Worker | None:
        """The same for the next count. None if the register is not mine any more."""
        return self._write(lambda there: beaten(there, me))

    def leave(self, me: Worker) -> None:
        """Takes me out of the register, if I am in it."""
        self._write(lambda there: left(there, me))

    def _write(self, rule: Callable[[Worker | None], Worker | None]) -> Worker | None:
        for _ in range(_TRIES_MAX):
            there = self._registers().read(self._worker)
            after = rule(_worker(there))
            if after is None:
                return None
            try:
                self._registers().swap(self._worker, wire.encode(after), _version(there))
            except Conflict:
                continue
            return after
        raise Transient("others kept changing the mailbox", operation="swap")

    def _box(self, there: Held | None) -> Box:
        if there is None:
            return Box()
        try:
            box = wire.decode(Box, there.value)
        except ValueError as error:
            raise Rejected(f"the register {self._order} cannot be read: {error}") from None
        if box.protocol > PROTOCOL:
            raise TooOld(f"a newer version of the orchestrator wrote the register {self._order}")
        return box


def _worker(there: Held | None) -> Worker | None:
    try:
        return None if there is None else wire.decode(Worker, there.value)
    except ValueError:
        return None


def _version(there: Held | None) -> str | None:
    return None if there is None else there.version


# --- The Secret -----------------------------------------------------------------------------------------


def place(portable: Portable) -> str:
    """A short name of the store. It stays when the keys that open it change."""
    named = (portable.type, sorted(portable.options.items()), bool(portable.recipients))
    return hashlib.sha256(wire.encode(named)).hexdigest()[:16]


@dataclass(frozen=True)
class Secret:
    """What a notebook needs to attend to the mailbox `mailbox`: what opens its store, and the keys that it
    shares with a home."""

    mailbox: str
    portable: Portable
    keys: Keys

    def text(self) -> str:
        """One line to paste."""
        return _MARK + base64.urlsafe_b64encode(wire.encode(self)).decode()

    @classmethod
    def parse(cls, text: str) -> Secret:
        """Raises InputError if this is not the whole text of a Secret. Never repeats it."""
        found = "".join(text.split())
        if not found:
            raise InputError("the Secret is empty")
        if found.startswith(_OLD_MARK):
            raise InputError("it is of an older version, and does not tell who may send sessions")
        if not found.startswith(_MARK):
            raise InputError("this is not the Secret of a mailbox, or the Secret of another version")
        try:
            return wire.decode(
                cls, base64.b64decode(found.removeprefix(_MARK), altchars=b"-_", validate=True)
            )
        except ValueError:
            raise InputError("the Secret did not arrive whole: paste it again") from None
