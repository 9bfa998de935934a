"""`run.curves`: the metrics that a run's sessions reported. Imports lazily. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.curves import Curves


class RunCurves:
    """Of one run."""

    def __init__(self, client: Client, run: str) -> None:
        self._client, self._run = client, run

    def read(
        self, metrics: str | Iterable[str] = (), *, points: int | None = None, bytes_max: int | None = None
    ) -> Curves:
        """Every metric as one series over all sessions, or only these `metrics`. Steps that were trained
        again count once. Contains only what the controller has collected; some platforms give their reports
        at the end of a session.

        Keeps about `points` of each metric, by default 2,000: of more reports the lowest and the highest
        values. With `bytes_max` it reads only samples of larger files. Reads no store and asks no platform.
        """
        from orchestrator.client import curves

        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        return curves.read(self._client, self._run, names, points, bytes_max)
