"""Who controls a database and who waits, for people and for other machines. Changes nothing."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import func, select

from orchestrator.ledger import takeover
from orchestrator.ledger.database import Database
from orchestrator.ledger.lock import Owner, Standby


class Controlled:
    """A ledger's queries about its control. Each may raise `Transient` if the database fails."""

    _database: Database

    @property
    def is_shared(self) -> bool:
        """Whether other machines can use it, too."""
        return self._database.path is None

    @property
    def path(self) -> Path | None:
        """Its file; None if it is on a server."""
        return self._database.path

    def owner(self, *, last: bool = False) -> Owner | None:
        """Who controls this database now; None if no controller is running. `last`: who did last, even if it
        does so no more; None if nobody ever did."""
        return takeover.last_owner(self._database) if last else takeover.owner(self._database)

    def standbys(self) -> tuple[Standby, ...]:
        """The controllers that wait for their turn, the longest first."""
        return takeover.standbys(self._database)

    def alike(self) -> str:
        """What the last controller told the others (`Takeover.tell`)."""
        return takeover.told(self._database)

    def server_time(self) -> float | None:
        """What the server's clock says, in unix seconds; None if the ledger is a file."""
        if self._database.path is not None:
            return None
        with self._database.read() as connection:
            return float(
                connection.execute(select(func.extract("epoch", func.clock_timestamp()))).scalar_one()
            )
