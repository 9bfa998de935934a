"""Asks platforms, in workers: for their offers, and for the sessions there.

One observation of a platform covers all its sessions, and is never asked for twice at a time. Decides
nothing: the answers come back in a later tick.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from orchestrator.core.run import RunRecord
from orchestrator.engine.perform import Backends
from orchestrator.engine.reach import Reach
from orchestrator.engine.readings import Readings, explained, observe
from orchestrator.engine.surveying import Surveyed, survey
from orchestrator.engine.tracking import Tracked
from orchestrator.engine.workers import Workers
from orchestrator.platforms.platform import Platform
from orchestrator.session.outbox import Outbox
from orchestrator.unforeseen import Unforeseen


class Looking:
    """Which platforms are being asked. The workers bring `Surveyed` and `Readings`. Not thread-safe."""

    def __init__(
        self, backends: Backends, reach: Reach, workers: Workers[Any], unforeseen: Unforeseen
    ) -> None:
        self._backends = backends
        self._reach = reach
        self._workers = workers
        self._unforeseen = unforeseen
        self._observing: set[str] = set()
        self._observed_at: dict[str, float] = {}

    def survey(self, names: Iterable[str]) -> None:
        """Asks these platforms for their offers."""
        for name in names:
            self._start_survey(name, self._backends.platforms[name])

    def observe(self, sessions: Iterable[Tracked], monotonic: float) -> None:
        """Asks for these sessions where the poll interval of their platform is over."""
        names: dict[str, list[str]] = {}
        records: dict[str, list[RunRecord]] = {}
        polls: dict[str, float] = {}
        platforms = dict(self._backends.platforms)
        for tracked in sessions:
            looks = tracked.observed()
            if not looks or self._reach.is_unknown(tracked.record, monotonic):
                continue
            elsewhere = self._reach.elsewhere(tracked.record)
            for name, (platform, poll_seconds) in looks.items():
                if there := elsewhere.get(name):
                    platform = f"{there.name} of {there.where}"
                    platforms[platform] = there
                # Without its platform: the user removed it from the config.
                if platform not in self._observing and platform in platforms:
                    if platform not in polls:
                        names[platform], records[platform], polls[platform] = [], [], poll_seconds
                    names[platform].append(name)
                    records[platform].append(tracked.record)
                    if poll_seconds < polls[platform]:
                        polls[platform] = poll_seconds
        for platform, wanted in names.items():
            last = self._observed_at.get(platform)
            if last is not None and monotonic - last < polls[platform]:
                continue
            self._observing.add(platform)
            self._observed_at[platform] = monotonic
            outboxes: dict[str, Outbox] = {}
            bundles: dict[str, str] = {}
            for record in records[platform]:
                outboxes |= self._backends.shipped(record)
                if record.session is not None:
                    bundles[record.session.name] = record.session.order.bundle
            self._start_observation(platform, platforms[platform], tuple(wanted), outboxes, bundles)

    def observed(self, platform: str) -> None:
        """The platform has answered."""
        self._observing.discard(platform)

    def _start_survey(self, name: str, platform: Platform) -> None:
        self._workers.start(
            f"survey:{name}",
            lambda: survey(name, platform, self._unforeseen),
            lambda reason: Surveyed(name, trouble=reason),
        )

    def _start_observation(
        self,
        name: str,
        platform: Platform,
        wanted: tuple[str, ...],
        outboxes: dict[str, Outbox],
        bundles: dict[str, str],
    ) -> None:
        told, folders = self._unforeseen, self._backends.folders
        self._workers.start(
            f"observe:{name}",
            lambda: explained(observe(name, platform, wanted, told, outboxes), bundles, folders),
            lambda reason: Readings(name, {}, reason),
        )
