"""What was measured, as the ledger keeps it: a job's rates, and how long our sessions lived on an offer.

Both are in one table, by a key. A row that cannot be read is left out: it is then measured again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select

from orchestrator.core import wire
from orchestrator.ledger.database import Database
from orchestrator.ledger.tables import damage, measurements

if TYPE_CHECKING:  # a listing starts without the core's events
    from orchestrator.core.lifetimes import Lifetime
    from orchestrator.core.speed import Measurement

T = TypeVar("T")
MEASUREMENTS_MAX = 256
JOBS_MAX = 10_000  # whose measurements a controller keeps in memory


class Measured:
    """The queries. Each may raise `Transient` or another BackendError if the database fails."""

    _database: Database
    _measured: dict[str, tuple[Measurement, ...]]
    _controls: bool

    def measurements(self, job_key: str) -> tuple[Measurement, ...]:
        """A job's measured rates on any accelerator, oldest first; at most the newest 256.

        The controller reads them only once, because no other process adds to them.
        """
        from orchestrator.core.speed import Measurement

        if self._controls and job_key in self._measured:
            return self._measured[job_key]
        found = self._newest(job_key, MEASUREMENTS_MAX, Measurement)
        if len(self._measured) >= JOBS_MAX:  # the one read first goes: it is read again if it is needed
            self._measured.pop(next(iter(self._measured)), None)
        self._measured[job_key] = found
        return found

    def lifetimes(self, platform: str, accelerator: str) -> tuple[Lifetime, ...]:
        """How long our sessions there lived, oldest first; at most the newest LIFETIMES_MAX."""
        from orchestrator.core.lifetimes import LIFETIMES_MAX, Lifetime

        return self._newest(place_key(platform, accelerator), LIFETIMES_MAX, Lifetime)

    def _newest(self, key: str, count: int, of: type[T]) -> tuple[T, ...]:
        c = measurements.c
        query = (
            select(c.at, c.body).where(c.job_key == key).order_by(c.at.desc(), c.number.desc()).limit(count)
        )
        with self._database.read() as connection:
            rows = list(connection.execute(query).all())
        read = (_decoded(of, row.body) for row in reversed(rows) if not damage(row))
        return tuple(each for each in read if each is not None)


def place_key(platform: str, accelerator: str) -> str:
    """The key of an offer. No job's name has a slash."""
    return f"{platform}/{accelerator}"


def _decoded(of: type[T], text: str) -> T | None:
    try:
        found: Any = wire.decode(of, text.encode())
    except ValueError:
        return None
    return found  # type: ignore[no-any-return]
