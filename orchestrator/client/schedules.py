"""Schedules: registered jobs that run again by themselves: `client.schedules`.

Imports lazily, so that a listing of runs loads no calendar. Decides nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.client.client import Client
    from orchestrator.client.registering import Registration, ScheduleChange, ScheduleRemoval, ScheduleStatus
    from orchestrator.core.schedule import Fire
    from orchestrator.cron import Upcoming


class Schedules:
    """The schedules of a client. A schedule is named after its job. Every method that takes a `name` raises
    InputError, with the nearest name, if there is no such schedule."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def declared(self, job: str | os.PathLike[str]) -> bool:
        """Whether the job in this YAML file has a schedule. Raises SpecError or InputError for a wrong
        file."""
        from pathlib import Path

        from orchestrator import spec

        own = self._client.wired().config.accelerators
        return spec.load(Path(job), own).job.schedule is not None

    def register(
        self,
        job: str | os.PathLike[str],
        *,
        platforms: str | Iterable[str] = (),
        now: bool = False,
        unless_running: bool = False,
    ) -> Registration:
        """Freezes the scheduled job in this YAML file and registers its schedule, or edits the one of this
        name. Makes sure that a controller runs. `now`: it also fires once at once; with `unless_running` not
        if a run of this job is under way. A growing run that sleeps is not: firing wakes it.

        `platforms`: use only these. Raises the same errors as `Client.submit`, and InputError for a job
        without a schedule, or for an edit that would change what a growing run computes.
        """
        from orchestrator.client import registering

        names = (platforms,) if isinstance(platforms, str) else tuple(platforms)
        return registering.register(self._client, job, names, now=now, unless_running=unless_running)

    def all(self) -> tuple[ScheduleStatus, ...]:
        """Every schedule, by name."""
        from orchestrator.client import registering

        return registering.statuses(self._client)

    def one(self, name: str) -> ScheduleStatus:
        """The schedule of this name."""
        from orchestrator.client import registering

        return registering.status(self._client, name)

    def fires(self, name: str, limit: int | None = None) -> tuple[Fire, ...]:
        """What became of its planned instants, the newest first; at most `limit` of them."""
        from orchestrator.client import registering

        return registering.fires(self._client, name, limit)

    def upcoming(self, name: str | None = None, count: int = 10) -> tuple[Upcoming, ...]:
        """The next fires of this schedule, or of all; at most `count` of them, in order."""
        from orchestrator.client import registering

        return registering.upcoming(self._client, name, count)

    def pause(self, name: str) -> ScheduleChange:
        """Fires no more until it is resumed. Runs under way go on; one that sleeps does so until then."""
        from orchestrator.client import registering

        return registering.pause(self._client, name)

    def resume(self, name: str) -> ScheduleChange:
        """Fires again. What was planned during the pause is not made up for."""
        from orchestrator.client import registering

        return registering.resume(self._client, name)

    def run(self, name: str) -> ScheduleChange:
        """Fires now, in addition to what is planned, also if it is paused. Raises InputError outside its
        window, or if its one run is done."""
        from orchestrator.client import registering

        return registering.run(self._client, name)

    def remove(self, name: str) -> ScheduleRemoval:
        """Removes the schedule and its history, also if this version cannot read it. Its runs stay; one that
        sleeps is held, and may be released."""
        from orchestrator.client import registering

        return registering.remove(self._client, name)

    def unreadable(self) -> dict[str, str]:
        """The schedules that this version cannot read, because they are damaged or a newer one wrote them,
        with the reason. They do not fire."""
        from orchestrator.client import registering

        return registering.unreadable(self._client)
