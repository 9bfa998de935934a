"""What tells a ledger from its copies: an id, and the tokens that its controllers drew.

A copy has the id and the tokens too, but not those that were drawn after the copy was made. Each store that
the ledger uses shows the newest token (`orchestrator.engine.ownership`). A token is written here before any
store hears of it, so that a crash in between is not taken for a copy. Decides nothing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sqlalchemy import Connection, select, update

from orchestrator.core import wire
from orchestrator.ledger.tables import CONTROLLER_ROW, controller

if TYPE_CHECKING:  # their modules import this one, and a listing starts without the core's checkpoints
    from orchestrator.core.checkpoint import CheckpointRef
    from orchestrator.ledger.ledger import Ledger
    from orchestrator.ledger.reading import LedgerReader

TOKENS_MAX = 64
_ROW = controller.c.number == CONTROLLER_ROW


@dataclass(frozen=True)
class Identity:
    """`ledger` is its id. `tokens`: the newest last. `stores`: those, by name, that were ever shown a token.
    `running`: a controller runs, or it ended without saying so."""

    ledger: str
    tokens: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    running: bool = False


@dataclass(frozen=True)
class Made:
    """What a journal says of a run's checkpoints in its store.

    `names`: those that this ledger accepted, ever. `own`: the incarnations of sessions that no other ledger
    knows: they began after the run last came from one. `started`: these, and all before. `judged`: what was
    in the store of generations up to this one was looked at when the run last came from there.
    """

    names: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    started: frozenset[str] = frozenset()
    judged: int = 0

    def has(self, ref: CheckpointRef) -> bool:
        """Whether no other ledger can have accepted it without this one."""
        return ref.name in self.names or ref.incarnation in self.own

    def knows(self, ref: CheckpointRef) -> bool:
        """Whether this ledger has judged it, or will: its session is one of its own."""
        return self.has(ref) or ref.generation <= self.judged

    def has_lineage(self, incarnation: str) -> bool:
        """Whether one of its sessions wrote the blobs of this incarnation."""
        return incarnation in self.started


def begin(connection: Connection) -> None:
    """Gives a ledger its id with its tables, so that a copy has it even if no controller ran before."""
    if not _read(connection).ledger:
        _write(connection, Identity(secrets.token_hex(16)))


def of(ledger: LedgerReader) -> Identity:
    """The ledger's identity. An empty id: what is stored is unreadable."""
    with ledger._database.read() as connection:
        return _read(connection)


def change(
    ledger: Ledger, *, token: str = "", store: str = "", running: bool | None = None, forget: bool = False
) -> Identity:
    """Adds a token and the name of a store, if they are given, and returns the identity afterwards. `forget`:
    the ledger is a copy, so none of its tokens count."""
    with ledger._database.write() as connection:
        found = _read(connection)
        tokens = () if forget else found.tokens
        after = replace(
            found,
            ledger=found.ledger or secrets.token_hex(16),
            tokens=(*tokens, token)[-TOKENS_MAX:] if token else tokens,
            stores=tuple(sorted({*found.stores, *([store] if store else [])})),
            running=found.running if running is None else running,
        )
        if after != found:
            _write(connection, after)
    return after


def _read(connection: Connection) -> Identity:
    """One that is unreadable counts as none: then the stores are shown another id."""
    text = str(connection.execute(select(controller.c.identity).where(_ROW)).scalar_one())
    try:
        return wire.decode(Identity, text.encode())
    except ValueError:
        return Identity("")


def _write(connection: Connection, identity: Identity) -> None:
    connection.execute(update(controller).where(_ROW).values(identity=wire.encode(identity).decode()))
